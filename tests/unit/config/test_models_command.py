"""`roma models add | remove | scale` on files; with a running deployment: tests/system/integration/test_models_live.py."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from roma.cli import models_command
from roma.cli.app import app
from roma.config import schema
from roma.config.diff import compare
from roma.deploy import config_edit
from roma.deploy.replicas import scaler
from roma.domain.errors import ConfigError, LaunchError
from roma.domain.replicas import StartReplica, StopReplica
from tests.support import http_server

FILE = """\
# The models of this host.
models:
  a:  # the small one
    path: models/a
    sla: {response_time: 0.5}
  b: {path: models/b, sla: {response_time: 0.5}}
  c: {path: models/c, sla: {response_time: 0.5}}
workers:
  - {name: w, cores: 2}  # two of four
gateway: {port: PORT, admin_port: 8500}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "roma.yaml"
    path.write_text(FILE.replace("PORT", "1"))  # where nobody answers
    path.chmod(0o640)
    return path


def models(command, file, *arguments):
    done = CliRunner().invoke(app, ["models", command, str(file), *arguments])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_model_is_written_with_what_was_said_and_comments_stay(file, tmp_path):
    (tmp_path / "models" / "d" / "1").mkdir(parents=True)
    said = ["--path", str(tmp_path / "models" / "d"), "--response-time", "0.2"]
    output = models("add", file, "d", *said, "--statistic", "p95", "--max", "1.5")
    assert "in force when `roma up` starts" in output
    text = file.read_text()
    for comment in ("# The models of this host.", "# the small one", "# two of four"):
        assert comment in text
    added = schema.load(file).models["d"]
    assert added.path == tmp_path / "models" / "d"
    assert "path: models/d" in text  # relative to the file, as its neighbours
    assert (added.sla.response_time, added.sla.statistic, added.cpu.max) == (0.2, "p95", 1.5)
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_and_what_it_leads_to_is_edited(file, tmp_path):
    link = tmp_path / "elsewhere" / "roma.yaml"
    link.parent.mkdir()
    link.symlink_to(file)
    models("remove", link, "c")
    assert list(schema.load(file).models) == ["a", "b"]
    (tmp_path / "models" / "d" / "1").mkdir(parents=True)
    models("add", link, "d", "--path", str(tmp_path / "models/d"), "--response-time", "0.5")
    assert "path: models/d" in file.read_text()
    assert link.is_symlink()
    assert [p.name for p in link.parent.iterdir()] == ["roma.yaml"]


def test_a_file_in_a_directory_behind_a_link_is_edited(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    models("remove", link / file.name, "c")
    assert list(schema.load(file).models) == ["a", "b"]
    (tmp_path / "models" / "d" / "1").mkdir(parents=True)
    path = str(link / "models/d")
    models("add", link / file.name, "d", "--path", path, "--response-time", "0.5")
    assert (schema.load(file).models["d"].path / "1").samefile(tmp_path / "models/d/1")


def test_links_in_a_circle_are_named(tmp_path):
    link = tmp_path / "roma.yaml"
    link.symlink_to(link)
    with pytest.raises(ConfigError, match="cannot be written: its links form a circle"):
        models("add", link, "d", "--path", tmp_path, "--response-time", "0.5")


def test_edits_wait_for_each_other(file):
    def edit(name):
        with config_edit.file_edit.alone(file):
            order.append(f"{name} begins")
            started.set()
            waited.wait(0.1)
            order.append(f"{name} ends")

    order, started, waited = [], threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(edit, "first")
        started.wait(10)
        pool.submit(config_edit.edit, file, lambda _: order.append("second")).result(10)
        first.result(10)
    assert order == ["first begins", "first ends", "second"]


def test_a_gateway_that_is_slow_to_answer_is_asked_again(file, monkeypatch):
    monkeypatch.setattr(models_command, "ANSWER", 0.2)
    asked, answered = [], threading.Event()

    def answer(path):
        asked.append(path)
        if len(asked) == 1:  # the model server that the gateway asks is busy
            answered.wait(10)
        answered.set()
        return 404, b""

    with http_server.answering(answer) as url:
        file.write_text(FILE.replace("PORT", url.rpartition(":")[2]))
        assert "b is gone" in models("remove", file, "b")
    assert asked == ["/v1/models/b"] * 2


@pytest.mark.parametrize(("made", "said"), [("", "No such file"), ("latest", "holds no version")])
def test_a_path_without_a_version_is_not_written(file, tmp_path, made, said):
    before = file.read_text()
    if made:
        (tmp_path / "models" / "d" / made).mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"models\.d\.path = .*models/d: {said}"):
        models("add", file, "d", "--path", tmp_path / "models/d", "--response-time", "0.2")
    assert file.read_text() == before


def test_the_others_keep_their_ports_when_one_goes(file, tmp_path):
    before = schema.load(file).slots
    models("remove", file, "b")
    loaded = schema.load(file)
    assert loaded.slots == {name: before[name] for name in "ac"}
    assert file.read_text().count("slot:") == 1  # only where the default would be another
    (tmp_path / "models" / "b" / "1").mkdir(parents=True)
    models("add", file, "b", "--path", str(tmp_path / "models/b"), "--response-time", "0.5")
    assert schema.load(file).slots == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a", "--path", "x", "--response-time", "1"), r"models\.a: is there already"),
        (("add", "d", "--path", "x", "--response-time", "0"), r"models\.d\.sla\.response_time = 0"),
        (("add", "d", "--response-time", "1"), r"models\.d\.path = None: must be set"),
        (
            ("add", "d", "--volume", "v", "--response-time", "1"),
            r"models\.d\.volume = v: .* absent",
        ),
        (("add", "d/e", "--path", "x", "--response-time", "1"), r"models\.d/e"),
        (("remove", "z"), r"models\.z: must be one of a, b, c"),
    ],
)
def test_what_would_be_wrong_is_named_and_not_written(file, arguments, message):
    command, model, *rest = arguments
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=message) as error:
        models(command, file, model, *rest)
    assert str(error.value).startswith(str(file))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["roma.yaml"]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("<<: {a: {path: models/a, sla: {response_time: 0.5}}}\n  b:", "models"),
        ("a: {<<: {path: models/a}, sla: {response_time: 0.5}}\n  b:", "models.a"),
        ("a: &a {path: models/a, sla: {response_time: 0.5}}\n  b: *a\n  d:", "models.b"),
    ],
)
def test_lines_that_several_models_share_are_not_edited(file, written, key):
    """A model that is merged in cannot be taken out: it said that it was, and stayed."""
    head, rest = file.read_text().split("  a:")
    before = f"{head}  {written}{rest.partition('  b:')[2]}"
    file.write_text(before)
    assert "a" in schema.load(file).models
    with pytest.raises(ConfigError, match=rf"roma\.yaml: {key}: must be written out"):
        models("remove", file, "a")
    assert file.read_text() == before


def test_the_last_model_stays(file):
    for model in "ab":
        models("remove", file, model)
    with pytest.raises(ConfigError, match="models"):
        models("remove", file, "c")
    assert list(schema.load(file).models) == ["c"]


SEVERAL = """\
models:
  a: {path: models/a, sla: {response_time: 0.5}, replicas: 1}  # the first
  b: {path: models/b, sla: {response_time: 0.5}, replicas: 1}
  c: {path: models/c, sla: {response_time: 0.5}, replicas: 1}
workers:
  - {name: u, cores: 2}
  - {name: v, cores: 2, base_port: 8700}
  - {name: w, cores: 2, base_port: 8800}
gateway: {port: 1, admin_port: 8500}
"""


def test_the_others_stay_where_they_are_when_replicas_come_and_go(file):
    file.write_text(SEVERAL)
    assert schema.load(file).placed == {"u": ["a"], "v": ["b"], "w": ["c"]}
    for count, placed in (
        (2, {"u": ["a"], "v": ["a", "b"], "w": ["c"]}),
        (3, {"u": ["a"], "v": ["a", "b"], "w": ["a", "c"]}),
        (1, {"u": ["a"], "v": ["b"], "w": ["c"]}),
    ):
        before = schema.load(file)
        output = models("scale", file, "a", str(count))
        assert "nothing answers at" in output
        assert schema.load(file).placed == placed
        compare(before, schema.load(file))  # a deployment that runs can follow
    assert "a has 1 already" in models("scale", file, "a", "1")
    assert "# the first" in file.read_text()


def test_comments_stay_where_they_are(file):
    block = SEVERAL.replace(
        "  a: {path: models/a, sla: {response_time: 0.5}, replicas: 1}  # the first\n",
        "  # ---- a\n  a:\n    path: models/a\n    sla: {response_time: 0.5}\n"
        "    replicas: 1  # one will do\n\n  # ---- b\n",
    )
    file.write_text(block)
    models("scale", file, "a", "2")
    after = block.replace("replicas: 1  # one", "workers: [u, v] # one").splitlines()
    assert file.read_text().splitlines()[:8] == after[:8]
    models("scale", file, "a", "3")
    assert "    workers: [u, v, w] # one will do\n\n  # ---- b\n" in file.read_text()


def test_workers_that_a_person_listed_one_a_line_keep_what_follows(file):
    listed = "    workers:\n    - u\n    - v  # both\n\n  # ---- b\n"
    file.write_text(
        SEVERAL.replace(
            "  a: {path: models/a, sla: {response_time: 0.5}, replicas: 1}  # the first\n",
            f"  a:\n    path: models/a\n    sla: {{response_time: 0.5}}\n{listed}",
        )
    )
    models("scale", file, "a", "3")
    assert "    workers: [u, v, w] # both\n\n  # ---- b\n" in file.read_text()


def test_a_model_that_goes_moves_no_other(file):
    file.write_text(SEVERAL)
    models("remove", file, "a")
    assert schema.load(file).placed == {"u": [], "v": ["b"], "w": ["c"]}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            SEVERAL.replace("  a: {", "  a: &x {").replace(
                "b: {path: models/b, sla: {response_time: 0.5}, replicas: 1}", "b: *x"
            ),
            ("a", "2"),
            r"models\.b: must be written out to be edited",
        ),
        (SEVERAL, ("a", "4"), r"models\.a: replicas = 4: must be from 1 to 3, the workers where"),
        (SEVERAL, ("z", "1"), r"model = z: must be one of a, b, c"),
        (
            "models: {a: {sla: {response_time: 1}}}\n"
            "workers:\n- {backend: static, cores: 1,"
            " executables: [{url: 'http://h:1', model: a}]}\n",
            ("a", "2"),
            r"workers: model servers of backend static are started outside ROMA",
        ),
    ],
)
def test_replicas_that_cannot_be_are_refused(file, text, arguments, message):
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        models("scale", file, *arguments)
    assert file.read_text() == text


async def carried_out(file, *commands):
    return await scaler(file, schema.load(file)).carry_out(commands)


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ([StartReplica("a")], r"models\.a\.workers: must be named"),
        ([StartReplica("gone", "u")], r"models\.gone: must be one of a, b, c$"),
        ([StartReplica("a", "u")], r"models\.a\.workers = u: has a replica already"),
        (
            [StartReplica("a", "x")],
            r"models\.a\.workers = x: must be one of the workers where ROMA",
        ),
        ([StopReplica("a", "v")], r"models\.a\.workers = v: must be one of u"),
        ([StopReplica("a", "u")], r"models\.a\.workers = u: is the last"),
        ([StartReplica("a", "v"), StopReplica("a", "u")], r"models\.a would move from a@u"),
        ([StartReplica("b", "u"), StartReplica("a", "x")], r"models\.a\.workers = x"),
    ],
)
async def test_of_commands_that_cannot_be_carried_out_none_is(file, commands, message):
    file.write_text(SEVERAL)
    with pytest.raises(ConfigError, match=message):
        await carried_out(file, *commands)
    assert file.read_text() == SEVERAL


async def test_commands_for_several_models_are_one_edit(file):
    file.write_text(SEVERAL)
    done = await carried_out(file, StartReplica("a", "w"), StartReplica("b", "u"))
    assert done == ["models.a.workers = u, w", "models.b.workers = v, u"]
    assert schema.load(file).placed == {"u": ["a", "b"], "v": ["b"], "w": ["a", "c"]}


@contextmanager
def answering(answer):
    """Yield the port of a server that gives one answer, and what it was sent."""
    heard = []

    def serve():
        client, _ = server.accept()
        with client:
            heard.append(client.recv(4096))
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], heard
        finally:
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n<html></html",
        b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"model_version_status": ["a"]}',
    ],
)
def test_another_program_at_the_gateways_port_is_told_in_one_line(file, answer):
    with answering(answer) as (port, _):
        file.write_text(FILE.replace("PORT", str(port)))
        done = CliRunner().invoke(app, ["models", "remove", str(file), "b"])
    assert isinstance(done.exception, LaunchError)
    url = f"http://127.0.0.1:{port}/v1/models/b"
    assert str(done.exception).startswith(f"{url}: what answers is no gateway")
    assert "\n" not in str(done.exception)


def test_a_proxy_of_the_environment_never_sees_the_key(file, tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text("roma_abcdefgh_" + 43 * "x")
    gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with answering(gone) as (port, heard):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("urllib.request._opener", None)  # made in another environment
        file.write_text(FILE.replace("PORT", str(port)))
        assert "b is gone" in models("remove", file, "b", "--token-file", str(key))
    assert heard[0].startswith(b"GET /v1/models/b ")
