"""`--kube-context`: kubectl forwards a port, and is started again when it ends."""

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roma.cli import port_forward
from roma.cli.app import app
from roma.cli.port_forward import ClusterService, forwarded
from roma.domain.errors import ConfigError, ExchangeError
from roma.tools.demo.ports import free_ports
from tests.support.waiting import until

AT = ClusterService("prod", "models", "roma-gateway-page", 8500)
LISTENS = """#!/bin/sh
echo "$$ $*" >> {log}
echo "a warning"
for last; do :; done
echo "Forwarding from 127.0.0.1:${{last%:*}}{port} -> 8500"
exec sleep 60
"""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Put a program named kubectl first into PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(text):
        (tmp_path / "kubectl").write_text(text)
        (tmp_path / "kubectl").chmod(0o755)

    return write


def calls(log):
    """Return pid and arguments of each call."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [(int(line.split()[0]), line.split()[1:]) for line in lines]


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_the_port_stays_the_same_when_kubectl_ends_with_its_pod(
    kubectl, tmp_path, monkeypatch
):
    monkeypatch.setattr(port_forward, "PAUSE", 0.01)
    log, (port,) = tmp_path / "log", free_ports(1)
    kubectl(LISTENS.format(log=log, port=port))
    async with forwarded(AT) as url:
        assert url == f"http://127.0.0.1:{port}"
        kubectl(LISTENS.format(log=log, port=""))  # now the port is asked for
        ((first, arguments),) = calls(log)
        assert arguments == [
            *("--context", "prod", "--namespace", "models", "port-forward"),
            *("--address", "127.0.0.1", "service/roma-gateway-page", ":8500"),
        ]
        os.kill(first, signal.SIGTERM)
        await until(lambda: len(calls(log)) == 2)
        second, arguments = calls(log)[1]
        assert arguments[-1] == f"{port}:8500"
    await until(lambda: ended(first) and ended(second))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "#!/bin/sh\necho 'error: context \"prod\" does not exist' >&2\nexit 1\n",
            "does not exist",
        ),
        ("#!/bin/sh\nexec sleep 60\n", "nothing within 0.2 s"),
    ],
)
async def test_what_kubectl_says_is_told_in_one_line(kubectl, monkeypatch, text, words):
    monkeypatch.setattr(port_forward, "START_LIMIT", 0.2 if "sleep" in text else 20.0)
    kubectl(text)
    with pytest.raises(ExchangeError, match=r"^--kube-context: kubectl port-forward \(.*" + words):
        async with forwarded(AT):
            pass


async def test_without_kubectl_the_option_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExchangeError, match=r"kubectl does not start: No such file or directory$"):
        async with forwarded(AT):
            pass


def test_a_dispatcher_of_a_cluster_that_is_away_is_one_line(kubectl, tmp_path):
    log, (port,) = tmp_path / "log", free_ports(1)
    kubectl(LISTENS.format(log=log, port=port))
    done = CliRunner().invoke(app, ["status", "--kube-context=prod", "--namespace=models"])
    assert f"http://127.0.0.1:{port}: no dispatcher answers" in str(done.exception)
    ((pid, _),) = calls(log)
    assert ended(pid)


@pytest.mark.parametrize(
    "options",
    [["--namespace=a"], ["--kube-context=a", "--url=http://b:1"], ["--kube-context=a", "--ca=b"]],
)
def test_options_that_contradict_each_other_are_refused(options):
    done = CliRunner().invoke(app, ["status", *options])
    assert isinstance(done.exception, ConfigError)


GPUS = (
    "- {name: gpus, backend: static, cores: 1, executables: [{url: 'http://gpu:8501', model: m}]}\n"
)


@pytest.mark.parametrize("first", ["", GPUS])
def test_the_file_says_service_and_namespace(kubectl, tmp_path, first):
    file, log = tmp_path / "roma.yaml", tmp_path / "log"
    file.write_text(
        "name: Shop\nmodels: {m: {sla: {response_time: 0.1}}}\ngateway: {admin_port: 9500}\n"
        f"workers:\n{first}- {{name: w, backend: kubernetes, node: n, cores: 1, "
        "kubernetes: {namespace: models}}\n"
    )
    kubectl(LISTENS.format(log=log, port=free_ports(1)[0]))
    CliRunner().invoke(app, ["explain", "m", "--kube-context=prod", f"--config={file}"])
    ((_, arguments),) = calls(log)
    assert arguments[2:4] == ["--namespace", "models"]
    assert arguments[-2:] == ["service/shop-gateway-page", ":9500"]
