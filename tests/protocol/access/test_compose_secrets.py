"""The secrets of a Compose deployment: made once, each seen by who needs it, none of them shown."""

import errno
import os
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema
from roma.deploy.compose import render
from roma.domain.errors import ConfigError
from roma.security import api_keys, exposure, tokens

FILE = """
models:
  a: {path: models/a, sla: {response_time: 1}}
workers:
  - {name: host, backend: docker, cores: 2}
"""


def rendered(tmp_path, more=""):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE + more)
    done = CliRunner().invoke(app, ["render", "compose", str(file), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    return done.output, found["services"], tmp_path / "secrets"


def test_what_is_deployed_needs_nobody_s_leave(tmp_path):
    """It listens on every address of its containers, and everything on them is protected."""
    rendered(tmp_path)
    deployed = schema.load(tmp_path / "deployed.yaml")
    assert deployed.gateway.host == deployed.control.host == "0.0.0.0"
    assert exposure.check(exposure.of_all(deployed)) == []


def test_each_container_sees_its_own_secrets(tmp_path):
    _, services, _ = rendered(tmp_path)
    seen = {
        name: sorted(re.findall(r"\./secrets/([a-z.]+):", str(service["volumes"])))
        for name, service in services.items()
    }
    assert seen == {
        "a": [],
        "dispatcher": ["admin", "exchange", "keys", "metrics"],
        "supervisor": ["exchange", "metrics"],
        "broker": [],
        "prometheus": ["metrics"],
        "grafana": [],
    }
    mounts = [v for s in services.values() for v in s["volumes"] if "secrets" in str(v)]
    assert all(mount.endswith(":ro") for mount in mounts)


@pytest.mark.parametrize("name", ["deployed.yaml", "compose.yaml"])
def test_the_file_to_render_is_not_written_over(tmp_path, name):
    file = tmp_path / name
    file.write_text(FILE)
    done = CliRunner().invoke(app, ["render", "compose", str(file), "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    bound = f"another directory: {name} there is the file to render"
    assert str(done.exception) == f"--out = {tmp_path}: must be {bound}"
    assert file.read_text() == FILE
    assert list(tmp_path.iterdir()) == [file]


def test_they_are_their_owner_s_alone_and_the_containers(tmp_path):
    output, _, folder = rendered(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700  # nobody else of this host gets past it
    for name in ("admin", "exchange", "metrics"):
        assert (folder / name).stat().st_mode & 0o777 == 0o755
        assert (folder / name / "token").stat().st_mode & 0o777 == 0o644
        text = (folder / name / "token").read_text().strip()
        assert tokens.read(folder / name / "token").matches(text)
        assert text not in output
    client = folder / "client.token"
    assert client.stat().st_mode & 0o777 == 0o600
    (key,) = api_keys.load(folder / "keys" / "keys.yaml").keys.values()
    assert key.hash == api_keys.hashed(client.read_text().strip())
    for file in tmp_path.iterdir():
        if file.is_file():  # nothing that is mounted whole, or committed, has one in it
            assert client.read_text().strip() not in file.read_text()


def test_the_users_of_containers_read_what_they_mount_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        rendered(tmp_path)
    finally:
        os.umask(before)
    modes = {
        str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777
        for p in tmp_path.rglob("*")
        if "secrets" not in p.parts
    }
    assert modes.pop(".env") == 0o600  # no container's
    assert modes.pop("roma.yaml") == 0o600
    assert {modes["deployed.yaml"], modes["prometheus.yaml"], modes["alerts.yaml"]} == {0o644}
    assert {modes["grafana"], modes["grafana/dashboards"]} == {0o755}
    assert {mode & 0o555 for mode in modes.values()} == {0o444, 0o555}


def test_a_path_with_a_colon_or_a_dollar_sign_is_mounted(tmp_path):
    (tmp_path / "roma.yaml").write_text(FILE.replace("models/a", "'C:/$a'"))
    config = schema.load(tmp_path / "roma.yaml")
    services = yaml.safe_load(render(config, tmp_path / "roma.yaml", tmp_path)["compose.yaml"])
    assert services["services"]["a"]["volumes"] == [
        {"type": "bind", "source": "./C:/$$a", "target": "/models/a", "read_only": True}
    ]


def test_rendering_again_keeps_them(tmp_path):
    _, _, folder = rendered(tmp_path)
    before = {f: f.read_text() for f in folder.rglob("*") if f.is_file()}
    (folder / "metrics" / "token").unlink()
    output, _, _ = rendered(tmp_path)
    assert output.count(f"{folder}/") == 1
    after = {f: f.read_text() for f in folder.rglob("*") if f.is_file()}
    changed = [f for f in before if before[f] != after[f]]
    assert changed == [folder / "metrics" / "token"]


def test_what_could_not_be_written_is_made_by_the_next_rendering(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "roma.yaml").write_text(FILE)
    command = ["render", "compose", str(tmp_path / "roma.yaml"), "--out", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        failed = CliRunner().invoke(app, command)
    assert isinstance(failed.exception, ConfigError)
    assert "admin/token: cannot be written: No space left" in str(failed.exception)
    assert not [f for f in (tmp_path / "secrets").rglob("*") if f.is_file()]
    _, _, folder = rendered(tmp_path)
    (folder / "keys" / "keys.yaml").unlink()  # it ended before this one was written
    rendered(tmp_path)
    (key,) = api_keys.load(folder / "keys" / "keys.yaml").keys.values()
    assert key.hash == api_keys.hashed((folder / "client.token").read_text().strip())


@pytest.mark.parametrize(
    "gateway",
    [
        "gateway: {insecure: true}",
        "gateway: {keys: 'c:$x/keys.yaml'}",
        "gateway: {tls: {certificate: 'c:$x/c.pem', key: 'c:$x/k.pem', client_ca: 'c:$x/ca.pem'}}",
        "gateway: {oidc: {issuer: 'https://i', audience: a, models: '*'}}",
    ],
)
def test_who_says_himself_who_may_call_gets_no_keys(tmp_path, gateway):
    _, services, folder = rendered(tmp_path, gateway)
    assert not (folder / "keys").exists()
    deployed = schema.load(tmp_path / "deployed.yaml")
    assert len(exposure.check(exposure.of_all(deployed))) == ("insecure" in gateway)
    volumes = services["dispatcher"]["volumes"]
    mounts = [(v["source"], v["target"], v["read_only"]) for v in volumes if isinstance(v, dict)]
    g = deployed.gateway
    own = [g.keys] if g.keys else []
    own += [g.tls.certificate, g.tls.key, g.tls.client_ca] if g.tls else []
    for file in own:
        assert (f"{tmp_path}/c:$$x", str(file.parent), True) in mounts


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("tokens: {admin: t}", r"tokens\.admin = .*t: must be absent: rendering makes its own"),
        ("gateway: {keys: keys.yaml}", r"gateway\.keys = .*: must be in a directory of its own"),
        ("gateway: {admin_tls: {certificate: c, key: k}}", r"gateway\.admin_tls = .*: must be abs"),
        (
            "gateway: {grpc_socket: /run/g.sock}",
            r"gateway\.grpc_socket = /run/g\.sock: must be absent",
        ),
        ("control: {tls: {certificate: c, key: k}}", r"control\.tls = .*: must be absent"),
        ("gateway: {exchange_port: 8510}", r"gateway\.exchange_port = 8510: must be absent"),
        (
            f"name: {'n' * 60}",
            r"deployed\.yaml: name = n{60}: must be another, or a model's: host n{60}-host-a",
        ),
        ("gateway: {metrics_port: 8511}", r"gateway\.metrics_port = 8511: must be absent"),
    ],
)
def test_what_the_containers_could_not_use_is_named(tmp_path, more, message):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE + more)
    with pytest.raises(ConfigError, match=message):
        render(schema.load(file), file, tmp_path)


def test_a_link_s_file_is_found_inside(tmp_path):
    """As certbot has them: the folder of the file is mounted, which has another name there."""
    real = tmp_path / "archive" / "keys1.yaml"
    real.parent.mkdir()
    real.write_text("keys: {}\n")
    (tmp_path / "keys.yaml").symlink_to(real)
    _, services, _ = rendered(tmp_path, "gateway: {keys: keys.yaml}")
    inside = schema.load(tmp_path / "deployed.yaml").gateway.keys
    mounts = [v for v in services["dispatcher"]["volumes"] if isinstance(v, dict)]
    (mounted,) = (m for m in mounts if m["target"] == str(inside.parent))
    assert (Path(mounted["source"]) / inside.name).samefile(real)


def test_links_in_a_circle_are_mounted_as_they_are(tmp_path):
    (tmp_path / "own").mkdir()
    link = tmp_path / "own" / "keys.yaml"
    link.symlink_to(link)
    _, services, _ = rendered(tmp_path, "gateway: {keys: own/keys.yaml}")
    assert str(link.parent) in str(services["dispatcher"]["volumes"])
