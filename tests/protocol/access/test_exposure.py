"""Nothing listens beyond this machine unless something says who may connect, or that anybody may."""

import re
from pathlib import Path

import pytest
import yaml

from roma.config import schema
from roma.config.security import is_loopback
from roma.domain.errors import ConfigError
from roma.security import exposure
from roma.tools.demo.ports import free_ports

ROOT = Path(__file__).parents[3]

BASE = {
    "models": {"m": {"sla": {"response_time": 1}}},
    "workers": [
        {
            "backend": "static",
            "cores": 2,
            "executables": [{"url": "http://127.0.0.1:1", "model": "m"}],
        }
    ],
}
TLS = {"certificate": "c.pem", "key": "k.pem"}
MUTUAL = TLS | {"client_ca": "ca.pem"}
TOKENS = {"admin": "a", "exchange": "e", "metrics": "m"}


def loaded(**sections):
    return schema.parse(yaml.safe_dump(BASE | sections))


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost.", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("host.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.example", False),
        ("1270.0.0.1", False),
        ("0", False),  # to the resolver, every address
    ],
)
def test_what_is_of_this_machine_alone(host, only_here):
    assert is_loopback(host) is only_here


ANYWHERE = {"host": "0.0.0.0"}

GATEWAY = [
    ({}, True),
    ({"host": "192.0.2.1"}, False),
    (ANYWHERE, False),
    (ANYWHERE | {"tls": TLS}, False),  # says who we are, not who they are
    (ANYWHERE | {"keys": "keys.yaml"}, True),
    (ANYWHERE | {"tls": MUTUAL}, True),
    (ANYWHERE | {"oidc": {"issuer": "https://i", "audience": "a", "models": "*"}}, True),
    (ANYWHERE | {"insecure": True}, True),
    (ANYWHERE | {"admin_insecure": True}, False),
]


@pytest.mark.parametrize(("gateway", "fine"), GATEWAY)
def test_the_clients_port(gateway, fine):
    c = loaded(gateway=gateway)
    if fine:
        exposure.check(exposure.of_all(c))
        return
    with pytest.raises(ConfigError) as caught:
        exposure.check(exposure.of_all(c))
    assert re.fullmatch(
        rf"gateway\.host = {gateway['host']}: must be an address of this machine alone, 127\.0\.0\.1 "
        r"say, where gateway\.keys is not set: set gateway\.keys, gateway\.oidc or "
        r"gateway\.tls\.client_ca; or, .* gateway\.insecure: true or --insecure",
        str(caught.value),
    )
    (warning,) = exposure.check(exposure.of_all(c), insecure=True)
    assert warning.startswith(f"gateway.host = {gateway['host']}: whoever reaches it may use it")


@pytest.mark.parametrize(
    ("sections", "lacking"),
    [
        ({"gateway": {"admin_host": "::"}}, "tokens.admin, tokens.exchange, tokens.metrics are"),
        (
            {"gateway": {"admin_host": "::"}, "tokens": TOKENS | {"metrics": None}},
            "tokens.metrics is",
        ),
        ({"gateway": {"admin_host": "::"}, "tokens": TOKENS}, None),
        ({"gateway": {"admin_host": "::", "admin_tls": MUTUAL}}, None),
        ({"gateway": {"admin_host": "::", "admin_insecure": True}}, None),
        ({"gateway": {"exchange_host": "::", "exchange_port": 9}}, "tokens.exchange is"),
        (
            {"gateway": {"exchange_host": "::", "exchange_port": 9}, "tokens": {"exchange": "e"}},
            None,
        ),
        ({"gateway": {"metrics_host": "::", "metrics_port": 9}}, "tokens.metrics is"),
        (
            {"gateway": {"admin_host": "::", "exchange_host": "127.0.0.1", "exchange_port": 9}},
            "tokens.admin, tokens.metrics are",
        ),
        ({"control": {"host": "::"}}, "tokens.exchange, tokens.metrics are"),
        ({"control": {"host": "::"}, "tokens": TOKENS}, None),
        ({"control": {"host": "::", "tls": MUTUAL}}, None),
        ({"control": {"host": "::", "insecure": True}}, None),
    ],
)
def test_the_other_ports(sections, lacking):
    c = loaded(**sections)
    if lacking is None:
        exposure.check(exposure.of_all(c))
        return
    with pytest.raises(ConfigError, match=f"where {re.escape(lacking)} not set"):
        exposure.check(exposure.of_all(c))


@pytest.mark.parametrize("program", ["dispatcher", "supervisor", "up"])
def test_a_program_refuses_before_it_listens(roma, tmp_path, program):
    port, admin, control = free_ports(3)
    file = tmp_path / "roma.yaml"
    sections = {
        "gateway": {"host": "0.0.0.0", "port": port, "admin_host": "0.0.0.0", "admin_port": admin},
        "control": {"host": "0.0.0.0", "port": control},
    }
    file.write_text(yaml.safe_dump(BASE | sections))

    done = roma(program, file)
    assert done.returncode == 2
    assert "must be an address of this machine alone" in done.stderr
    assert "Traceback" not in done.stderr
    checked = roma("config", "check", file)
    assert checked.returncode == 2
    assert len(checked.stderr.splitlines()) == 3
    assert all(line.startswith(f"{file}: ") for line in checked.stderr.splitlines())


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"gateway": {"tls": {"certificate": "c"}}}, "gateway.tls.key: missing"),
        (
            {"gateway": {"exchange_host": "::"}},
            "gateway.exchange_host = ::: must be absent without",
        ),
        ({"gateway": {"exchange_port": 8500}}, "gateway.exchange_port = 8500: must be different"),
        ({"gateway": {"metrics_port": 8502}}, "control.port = 8502: must be different"),
        ({"tokens": {"page": "x"}}, "tokens.page = 'x': unknown key"),
        (
            {"gateway": {"oidc": {"issuer": "http://idp.example", "audience": "a", "models": "*"}}},
            "gateway.oidc.issuer = http://idp.example: must be https, or on this machine",
        ),
        (
            {"gateway": {"oidc": {"issuer": "https://i", "audience": "a"}}},
            "gateway.oidc.models = []: must be set where models_claim is not",
        ),
    ],
)
def test_the_sections_are_checked(section, fault):
    with pytest.raises(ConfigError) as caught:
        loaded(**section)
    assert fault in str(caught.value)


def test_files_are_relative_to_roma_yaml_and_written_down_whole(tmp_path):
    from roma.deploy import config_snapshot

    file = tmp_path / "roma.yaml"
    sections = {
        "gateway": {"keys": "k/keys.yaml", "tls": MUTUAL, "admin_tls": TLS},
        "control": {"tls": TLS},
        "tokens": TOKENS,
    }
    file.write_text(yaml.safe_dump(BASE | sections))
    c = schema.load(file)
    assert c.gateway.keys == tmp_path / "k" / "keys.yaml"
    assert c.gateway.tls.client_ca == tmp_path / "ca.pem"
    assert c.control.tls.key == tmp_path / "k.pem"
    assert c.tokens.exchange == tmp_path / "e"
    assert c.dispatcher_urls == ("https://127.0.0.1:8500",)
    assert c.supervisor_urls == {"local": "https://127.0.0.1:8502"}
    elsewhere = tmp_path / "elsewhere" / "roma.yaml"
    config_snapshot.write(c, elsewhere)
    assert schema.load(elsewhere) == c


def test_roma_yaml_never_holds_or_shows_a_secret(roma, tmp_path):
    """What `config check` prints are names of files."""
    token = tmp_path / "t"
    token.write_text("s3cret" * 3)  # too short
    file = tmp_path / "roma.yaml"
    file.write_text(yaml.safe_dump(BASE | {"tokens": {"admin": "t"}}))
    done = roma("config", "check", file)
    assert done.returncode == 2
    assert f"{token}: must be one line" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout
