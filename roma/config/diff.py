"""What of a changed roma.yaml can be taken over while everything runs.

Models that come and go, and the gateway's limits; keys, tokens and certificates have files of
their own, which are followed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from roma.config.placement import executables
from roma.config.schema import Config
from roma.domain.errors import ConfigError
from roma.domain.model import Device

LIMITS = ("limits", "max_body_bytes")
"""Keys of the gateway that hold for what comes next, whatever they were before."""


@dataclass(frozen=True, slots=True)
class Change:
    """Names of models, in the order of the file; `limits`: the gateway's are other ones."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    limits: bool


def compare(old: Config, new: Config, started: Config | None = None) -> Change:
    """Return which models come and go; raise ConfigError naming each key that takes a restart.

    `started` is what the program was started with, if that is not `old`.
    """
    faults = [*_sections(old, new), *_grpc(started or old, new), *_models(old, new)]
    if faults:
        raise ConfigError("\n".join(f"{fault}: takes a restart" for fault in faults))
    return Change(
        tuple(name for name in new.models if name not in old.models),
        tuple(name for name in old.models if name not in new.models),
        any(getattr(old.gateway, key) != getattr(new.gateway, key) for key in LIMITS),
    )


def _sections(old: Config, new: Config) -> Iterator[str]:
    for key in Config.model_fields:
        # A profile's entries are part of the models; a plant is nothing that runs.
        if key in ("models", "profile", "plant"):
            continue
        before, after = getattr(old, key), getattr(new, key)
        if key == "gateway":
            before = before.model_copy(update={name: getattr(after, name) for name in LIMITS})
        if before != after:
            yield f"{key} changed"


def _grpc(started: Config, new: Config) -> Iterator[str]:
    """Yield what the gRPC port would need to take more than it was opened for."""
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
    now, then = _places(old), _places(new)
    for name in [name for name in old.models if name in new.models]:
        # What a slot says is where the executables are.
        before, after = (c.models[name].model_copy(update={"slot": None}) for c in (old, new))
        if before != after:
            yield f"models.{name} changed"
        elif now[name] != then[name]:
            yield f"models.{name} would move from {now[name]} to {then[name]}"


def _places(config: Config) -> dict[str, str]:
    """Return by model its CPU executables and where they are called."""
    found: dict[str, list[str]] = {name: [] for name in config.models}
    for e in executables(config):
        if e.spec.device is Device.CPU:
            found[e.spec.models[0]].append(f"{e.name} at {e.url}")
    return {name: ", ".join(places) for name, places in found.items()}
