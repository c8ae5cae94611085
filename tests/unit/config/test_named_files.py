"""A file that roma.yaml names and that cannot be read: the fault begins with its key."""

import re

import pytest
import trustme

from dispatcher.live import app as dispatcher
from roma.cli.config_command import check
from roma.config import schema
from roma.domain.errors import ConfigError
from roma.security import peers
from roma.security.tls import server_context
from roma.security.tokens import watched
from roma.tools.demo.ports import free_ports

YAML = """
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{backend: static, cores: 1, executables: [{{url: 'http://127.0.0.1:{ports[0]}', model: m}}]}}]
gateway: {{port: {ports[1]}, admin_port: {ports[2]}, grpc_port: {ports[3]}, {gateway}}}
control: {{port: {ports[4]}, {control}}}
tokens: {{{tokens}}}
"""
TLS = "{{certificate: {certificate}, key: {key}, client_ca: {client_ca}, ca: {ca}}}"
FIELDS = {"certificate": "good.pem", "key": "good.key", "client_ca": "ca.pem", "ca": "ca.pem"}


@pytest.fixture
def good(tmp_path):
    """A directory with a certificate and its authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "good.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "good.key"))
    return tmp_path


def written(folder, **sections):
    text = YAML.format(
        ports=free_ports(5), **{"gateway": "", "control": "", "tokens": ""} | sections
    )
    (folder / "roma.yaml").write_text(text)
    return folder / "roma.yaml"


def tls(**fields):
    return TLS.format(**FIELDS | fields)


MISSING = [
    ("gateway.keys", {"gateway": "keys: none"}),
    ("tokens.admin", {"tokens": "admin: none"}),
    ("tokens.exchange", {"tokens": "exchange: none"}),
    ("tokens.metrics", {"tokens": "metrics: none"}),
    *(
        (f"gateway.{section}.{field}", {"gateway": f"{section}: {tls(**{field: 'none'})}"})
        for section in ("tls", "admin_tls")
        for field in ("certificate", "key", "client_ca")
    ),
]


@pytest.mark.parametrize(("key", "sections"), MISSING, ids=[key for key, _ in MISSING])
async def test_a_dispatcher_and_a_check_name_the_key(good, key, sections):
    file = written(good, **sections)
    line = rf"\A{re.escape(f'{key}: {good}/none: ')}.*No such file or directory\Z"
    with pytest.raises(ConfigError, match=line):
        check(file)
    with pytest.raises(ConfigError, match=line):
        async with dispatcher.running(schema.load(file)):
            pass


@pytest.mark.parametrize("field", ["certificate", "key", "client_ca"])
def test_a_supervisor_names_the_key(good, field):
    loaded = schema.load(written(good, control=f"tls: {tls(**{field: 'none'})}"))
    with pytest.raises(ConfigError, match=rf"\Acontrol\.tls\.{field}: {good}/none: .*No such file"):
        server_context(loaded.control.tls, "control.tls")
    with pytest.raises(ConfigError, match=rf"\Acontrol\.tls\.{field}: "):
        check(good / "roma.yaml")


def test_the_authority_of_a_peer_is_named(good):
    loaded = schema.load(written(good, gateway=f"admin_tls: {tls(ca='none')}"))
    with pytest.raises(
        ConfigError, match=rf"\Agateway\.admin_tls\.ca: {good}/none: .*No such file"
    ):
        peers.to_dispatchers(loaded)


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("gateway.admin_tls.ca", {"gateway": f"admin_tls: {tls(ca='none')}"}),
        ("control.tls.ca", {"control": f"tls: {tls(ca='none')}"}),
    ],
)
def test_a_check_reads_the_authority_of_a_peer_too(good, key, sections):
    with pytest.raises(ConfigError, match=rf"\A{re.escape(key)}: {good}/none: .*No such file"):
        check(written(good, **sections))


def test_a_check_reads_the_certificates_for_an_engine(good):
    docker = "{host: 'tcp://h:1', address: h, tls: none}"
    text = written(good).read_text()
    text = re.sub("workers:.*", f"workers: [{{backend: docker, cores: 1, docker: {docker}}}]", text)
    file = good / "roma.yaml"
    file.write_text(text.replace("m: {", "m: {path: /m, "))
    named = rf"\Aworkers\.local: docker\.tls = {good}/none: must have a file ca\.pem\Z"
    with pytest.raises(ConfigError, match=named):
        check(file)


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("profile", "profile: none"),
        ("control.gains_file", "control: {gains_file: none}"),
        ("scheduling.quality.policy", "scheduling: {gpu: qos-rl, quality: {policy: none}}"),
    ],
)
def test_a_file_that_is_read_with_roma_yaml_is_named(tmp_path, key, section):
    text = "models: {m: {sla: {response_time: 1}}}\n"
    url = "actions: 'h:1', device: gpu" if "qos-rl" in section else "url: 'http://h:1', model: m"
    text += f"workers: [{{backend: static, cores: 1, executables: [{{{url}}}]}}]\n"
    (tmp_path / "roma.yaml").write_text(text + section)
    with pytest.raises(ConfigError, match=rf"\A{re.escape(key)}: {tmp_path}/none: .*No such file"):
        schema.load(tmp_path / "roma.yaml")


def test_every_fault_of_a_file_begins_with_its_key(tmp_path):
    (tmp_path / "keys.yaml").write_text("keys: {abcdefgh: {models: 7, rate: -1}}\n")
    with pytest.raises(ConfigError) as caught:
        check(written(tmp_path, gateway="keys: keys.yaml"))
    lines = str(caught.value).splitlines()
    assert len(lines) > 1
    assert all(line.startswith(f"gateway.keys: {tmp_path}/keys.yaml: ") for line in lines)


def test_a_file_that_goes_bad_later_is_named_too(tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text("x" * 40)
    token = watched(file, "tokens.admin")
    file.write_text("short")
    assert not token.look()
    assert caplog.records[-1].getMessage().startswith(f"tokens.admin: {file}: must be one line")
    assert token.value.matches("x" * 40)
