"""The secrets of a rendered deployment: created once, then kept, each mounted only where needed.

    secrets/admin/token      dispatcher         the dashboard's password
    secrets/exchange/token   dispatcher and supervisor authenticate each other with it
    secrets/metrics/token    dispatcher, supervisor and Prometheus
    secrets/keys/keys.yaml   dispatcher         API keys of the callers
    secrets/client.token     no container       the first key's token, for the host's user

The directory is accessible to its owner alone (0700). What is below it is readable by every user,
since the users inside containers differ from the host's. Directories are mounted, not files: a file
that is replaced would stay the old one in its container.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roma.config import file_edit
from roma.config.gateway import GatewayConfig
from roma.config.schema import Config
from roma.config.security import TlsConfig, TokensConfig
from roma.deploy.compose_text import bind
from roma.domain.errors import ConfigError
from roma.security import api_keys, tokens

FOLDER = "secrets"
INSIDE = Path("/etc/roma/secrets")
PROMETHEUS = "/etc/prometheus/secrets"
TOKENS = ("admin", "exchange", "metrics")

_KEYS = """\
# Who may call; `roma keys add FILE NAME --model MODEL` adds a key. Hashes of tokens, no tokens.
keys:
  {id}:
    name: client
    hash: {hash}
    models: "*"
"""


def refuse(config: Config, source: Path) -> None:
    """Raise ConfigError where the user's own secrets cannot be mounted."""
    for name in TOKENS:
        if (path := getattr(config.tokens, name)) is not None:
            raise ConfigError(f"tokens.{name} = {path}: must be absent: rendering makes its own")
    for key, path in _own(config.gateway):
        if _real(path).parent == _real(source).parent:
            bound = "in a directory of its own: the dispatcher sees all that is beside it"
            raise ConfigError(f"gateway.{key} = {path}: must be {bound}")


def token_files() -> TokensConfig:
    """Return where the containers find the tokens."""
    return TokensConfig(**{name: INSIDE / name / "token" for name in TOKENS})


def named(config: Config) -> dict[str, str]:
    """Return the secrets of a cluster by name, and the file that each of them holds."""
    keys = {} if config.gateway.keys is None else {"keys": "keys.yaml"}
    return dict.fromkeys(TOKENS, "token") | keys


def gateway(config: Config) -> dict[str, Any]:
    """Return the keys of the gateway's section that differ inside the containers."""
    g = config.gateway
    found: dict[str, Any] = {}
    if g.keys is not None or _makes_keys(g):
        found["keys"] = _inside("keys", g.keys) if g.keys else INSIDE / "keys" / "keys.yaml"
    if g.tls is not None:
        inside = {name: _inside(name, path) for name, path in _tls(g.tls)}
        found["tls"] = TlsConfig(**inside)
    return found


def of_dispatcher(config: Config) -> list[str | dict[str, Any]]:
    """Return the mounts of the dispatcher's container."""
    g = config.gateway
    mounts: list[str | dict[str, Any]] = [_mount(name, INSIDE) for name in TOKENS]
    if _makes_keys(g):
        mounts.append(_mount("keys", INSIDE))
    return mounts + [
        bind(str(_real(path).parent), str(_inside(name, path).parent)) for name, path in _own(g)
    ]


def of_supervisor() -> list[str]:
    """Return the mounts of the supervisor's container."""
    return [_mount(name, INSIDE) for name in ("exchange", "metrics")]


def of_prometheus() -> list[str]:
    """Return the mounts of Prometheus' container."""
    return [f"./{FOLDER}/metrics:{PROMETHEUS}:ro"]


def write(config: Config, out: Path) -> Iterator[Path]:
    """Create the missing secrets; yield the files created."""
    base = out / FOLDER
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    base.chmod(0o700)
    for name in TOKENS:
        if not (base / name / "token").exists():
            yield _written(base / name / "token", tokens.new() + "\n")
    file = base / "keys" / "keys.yaml"
    if _makes_keys(config.gateway) and not file.exists():
        id_ = api_keys.new_id()
        token = api_keys.new_token(id_)
        yield _written(base / "client.token", token + "\n")
        yield _written(file, _KEYS.format(id=id_, hash=api_keys.hashed(token)))


def _makes_keys(g: GatewayConfig) -> bool:
    """Return True unless the configuration already says who may call, or that anyone may."""
    return not (g.keys or g.oidc or g.insecure or (g.tls and g.tls.client_ca))


def _own(g: GatewayConfig) -> list[tuple[str, Path]]:
    """Return the user's own files that the dispatcher reads, by key."""
    found = [("keys", g.keys)] if g.keys else []
    return found + ([] if g.tls is None else [(f"tls.{n}", p) for n, p in _tls(g.tls)])


def _tls(tls: TlsConfig) -> list[tuple[str, Path]]:
    # `ca` is for callers: nothing inside calls the clients' port.
    named = (("certificate", tls.certificate), ("key", tls.key), ("client_ca", tls.client_ca))
    return [(name, path) for name, path in named if path is not None]


def _inside(key: str, path: Path) -> Path:
    return INSIDE / key.removeprefix("tls.") / _real(path).name


def _real(path: Path) -> Path:
    """Return where links lead, as far as they lead: `resolve` raises for a circle."""
    return Path(os.path.realpath(path))


def _mount(name: str, inside: Path) -> str:
    return f"./{FOLDER}/{name}:{inside / name}:ro"


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    mounted = path.parent.name != FOLDER
    path.parent.chmod(0o755 if mounted else 0o700)  # independent of the umask
    file_edit.write(path, text)  # whole or not at all: what is there is kept
    path.chmod(0o644 if mounted else 0o600)
    return path
