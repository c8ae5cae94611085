"""Exposure check: a listener beyond loopback must have authentication.

The clients' port needs keys, an identity provider or client certificates; the other listeners need
the tokens of the routes they serve, or client certificates. `insecure` in the section, or
`--insecure` on the command line, turns the error into a warning.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from roma.config.schema import Config
from roma.config.security import TlsConfig, is_loopback
from roma.domain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener's address and its missing protection, as keys of roma.yaml."""

    key: str
    host: str
    lacks: tuple[str, ...]
    """Required keys that are missing."""
    instead: str
    """Keys of which any one would replace them."""
    insecure: bool
    permit: str

    @property
    def exposed(self) -> bool:
        """True if anyone on the network may use it."""
        return bool(self.lacks) and not is_loopback(self.host)


def check(listeners: Iterable[Listener], *, insecure: bool = False) -> list[str]:
    """Return warnings; raise ConfigError with a line per listener that must not be exposed."""
    exposed = [listener for listener in listeners if listener.exposed]
    refused = [e for e in exposed if not (e.insecure or insecure)]
    if refused:
        raise ConfigError("\n".join(map(_fault, refused)))
    return [f"{e.key} = {e.host}: whoever reaches it may use it: {_without(e)}" for e in exposed]


def of_dispatcher(config: Config) -> Iterator[Listener]:
    """Yield the listeners of a dispatcher."""
    g = config.gateway
    open_ = not (g.keys or g.oidc or _mutual(g.tls))
    lacks = ("gateway.keys",) if open_ else ()
    instead = "gateway.keys, gateway.oidc or gateway.tls.client_ca"
    yield Listener("gateway.host", g.host, lacks, instead, g.insecure, "gateway.insecure")
    parts = {"admin": (g.admin_host, g.admin_port)}
    parts |= {"exchange": g.exchange_address, "metrics": g.metrics_address}
    for address in dict.fromkeys(parts.values()):
        here = [part for part, where in parts.items() if where == address]
        missing = () if _mutual(g.admin_tls) else _missing(config, here)
        instead = f"{', '.join(f'tokens.{p}' for p in here)}; or gateway.admin_tls.client_ca"
        key = "gateway.admin_host" if "admin" in here else f"gateway.{here[0]}_host"
        permit = "gateway.admin_insecure"
        yield Listener(key, address[0], missing, instead, g.admin_insecure, permit)


def of_supervisor(config: Config) -> Iterator[Listener]:
    """Yield the listener of a supervisor."""
    c = config.control
    missing = () if _mutual(c.tls) else _missing(config, ["exchange", "metrics"])
    instead = "tokens.exchange, tokens.metrics; or control.tls.client_ca"
    yield Listener("control.host", c.host, missing, instead, c.insecure, "control.insecure")


def of_all(config: Config) -> Iterator[Listener]:
    """Yield the listeners of every program."""
    yield from of_dispatcher(config)
    yield from of_supervisor(config)


def _missing(config: Config, parts: list[str]) -> tuple[str, ...]:
    return tuple(f"tokens.{p}" for p in parts if getattr(config.tokens, p) is None)


def _mutual(tls: TlsConfig | None) -> bool:
    return tls is not None and tls.client_ca is not None


def _fault(listener: Listener) -> str:
    return (
        f"{listener.key} = {listener.host}: must be an address of this machine alone, 127.0.0.1 "
        f"say, where {_without(listener)}: set {listener.instead}; or, if whoever reaches it shall "
        f"be let in, {listener.permit}: true or --insecure"
    )


def _without(listener: Listener) -> str:
    return f"{', '.join(listener.lacks)} {'is' if len(listener.lacks) == 1 else 'are'} not set"
