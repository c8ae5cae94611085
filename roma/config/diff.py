"""Differences between two versions of roma.yaml, and the ones that apply without a restart.

Models can be added and removed, their replicas and the gateway's limits changed. Keys, tokens and
certificates have their own files, which are watched separately.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.sources import fixed
from roma.config.workers import ServerKind
from roma.config.yaml_file import Section
from roma.domain.errors import ConfigError
from roma.domain.model import Device

LIMITS = ("limits", "max_body_bytes")
"""Keys of the gateway that can change at run time; they apply to new requests."""


@dataclass(frozen=True, slots=True)
class Change:
    """Names of models, in the order of the file; `limits`: the gateway's limits changed.

    `scaled` are the models whose replicas changed.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    limits: bool
    scaled: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """True if there is something to follow."""
        return bool(self.added or self.removed or self.scaled or self.limits)


def compare(
    old: Config, new: Config, started: Config | None = None, servers: Config | None = None
) -> Change:
    """Return the models added and removed; raise ConfigError naming each key that needs a restart.

    `started` is the configuration that the program was started with, if it is not `old`. `servers`
    is the one that it started model servers with, if it did.
    """
    faults = [*_sections(old, new), *_grpc(started or old, new), *_models(old, new)]
    if servers is not None:
        faults += _servers(servers, new)
    if faults:
        raise ConfigError("\n".join(f"{fault}: takes a restart" for fault in faults))
    return Change(
        tuple(name for name in new.models if name not in old.models),
        tuple(name for name in old.models if name not in new.models),
        any(getattr(old.gateway, key) != getattr(new.gateway, key) for key in LIMITS),
        tuple(name for name in new.models if name in old.models and _is_scaled(old, new, name)),
    )


def _sections(old: Config, new: Config) -> Iterator[str]:
    for key in Config.model_fields:
        # A profile's entries are part of the models; a plant is only simulated.
        if key in ("models", "profile", "plant"):
            continue
        before, after = getattr(old, key), getattr(new, key)
        if key == "gateway":
            before = before.model_copy(update={name: getattr(after, name) for name in LIMITS})
        if key == "workers":
            before, after = tuple(fixed(old)), tuple(fixed(new))
        yield from _changed(key, before, after)


def _changed(key: str, before: object, after: object) -> Iterator[str]:
    """Yield a fault for each key within a section that differs."""
    if before == after:
        return
    if isinstance(before, Section) and type(before) is type(after):
        for name in type(before).model_fields:
            yield from _changed(f"{key}.{name}", getattr(before, name), getattr(after, name))
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for i, parts in enumerate(zip(before, after, strict=True)):
            yield from _changed(f"{key}.{i}", *parts)
    else:
        yield f"{key} changed"


def _servers(started: Config, new: Config) -> Iterator[str]:
    """Yield a fault if the limit grew beyond the one that our model servers were started with."""
    most, value = started.gateway.max_body_bytes, new.gateway.max_body_bytes
    is_theirs = any(w.is_local or w.containers.server is ServerKind.ROMA for w in new.workers)
    if value > most and is_theirs:
        bound = f"the model servers were started for at most {most}"
        yield f"gateway.max_body_bytes = {value}: {bound}"


def _grpc(started: Config, new: Config) -> Iterator[str]:
    """Yield a fault for each limit that grew beyond the one the gRPC port was opened with."""
    then, now = started.gateway, new.gateway
    if not now.has_grpc:
        return
    for key, most, value in (
        ("max_body_bytes", then.max_body_bytes, now.max_body_bytes),
        ("limits.head_bytes", then.limits.head_bytes, now.limits.head_bytes),
    ):
        if value > most:
            yield f"gateway.{key} = {value}: the gRPC port was opened for at most {most}"


def _models(old: Config, new: Config) -> Iterator[str]:
    then, now = _places(old), _places(new)
    for name in [name for name in old.models if name in new.models]:
        # These keys determine the executables, which are compared separately.
        free = {"slot": None, "replicas": None, "workers": None}
        before, after = (c.models[name].model_copy(update=free) for c in (old, new))
        here, there = now[name], then[name]
        stay = here.keys() & there.keys()
        if stay and _is_scaled(old, new, name):  # the others come or go
            here, there = ({e: urls[e] for e in urls if e in stay} for urls in (here, there))
        faults = list(_changed(f"models.{name}", before, after))
        yield from faults
        if not faults and here != there:
            yield f"models.{name} would move from {_shown(there)} to {_shown(here)}"


def _is_scaled(old: Config, new: Config, name: str) -> bool:
    then, now = old.models[name], new.models[name]
    return (then.replicas, then.workers) != (now.replicas, now.workers)


def _shown(places: Mapping[str, str]) -> str:
    return ", ".join(f"{executable} at {url}" for executable, url in places.items())


def _places(config: Config) -> dict[str, dict[str, str]]:
    """Return the addresses of each model's CPU executables that the file determines, by name."""
    found: dict[str, dict[str, str]] = {name: {} for name in config.models}
    known = config.model_copy(update={"workers": tuple(fixed(config))})
    for e in executables(known):
        if e.spec.device is Device.CPU:
            found[e.spec.models[0]][e.name] = e.url
    return found
