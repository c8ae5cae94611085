"""`roma.yaml`, validated once, at load; every fault becomes one line with key, value and bound.

Times are seconds, CPU is cores, sizes are bytes. Unknown and duplicate keys are refused, because
a misspelt key would silently mean its default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from roma.config import checks, policy_file, presets, renamed, yaml_file
from roma.config import profile as profiles
from roma.config.scheduling import QualityConfig
from roma.config.topology import Topology
from roma.config.watched_file import home
from roma.domain.errors import ConfigError, naming
from roma.domain.model import ModelSpec
from roma.domain.variants import Variant


class Config(Topology):
    """The whole file."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return presets.filled(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check(self) -> "Config":
        checks.check(self)
        return self


def load(path: Path) -> Config:
    """Read and validate a file; raise `ConfigError` with one line per fault."""
    config = parse(yaml_file.text_of(path), source=str(path)).relative_to(home(path))
    with naming("profile"):
        measured = profiles.load(config.profile).models if config.profile else {}
    models = {
        name: m.model_copy(update={"profile": m.profile or measured.get(name)})
        for name, m in config.models.items()
    }
    control = config.control
    if control.gains_file is not None:
        with naming("control.gains_file"):
            gains = _read_gains(control.gains_file, control.law)
        control = control.model_copy(update={"gains": {**gains, **control.gains}})
    learned_policy(config.scheduling.quality, config.model_specs)
    return config.model_copy(update={"models": models, "control": control})


_POLICY = "scheduling.quality.policy"


def learned_policy(
    quality: QualityConfig, models: Sequence[ModelSpec]
) -> policy_file.Policy | None:
    """Read the policy of `qos-rl`; raise `ConfigError` if it was trained for other variants."""
    if quality.policy is None:
        return None
    with naming(_POLICY):
        found = policy_file.load(quality.policy)
    (model,) = models
    variants = model.variants or (Variant(model.name, 1.0),)
    with naming(f"{_POLICY}: {quality.policy}"):
        found.check(variants, width=quality.bin, utility=quality.utility)
    return found


class _GainsFile(yaml_file.Section):
    """A file written by `roma design tune`; the origin of the gains is for people to read."""

    law: str
    gains: dict[str, float | str]
    provenance: dict[str, Any] = Field(default_factory=dict)


def _read_gains(path: Path, law: str) -> dict[str, float | str]:
    data = yaml_file.read(yaml_file.text_of(path), source=str(path))
    found = yaml_file.validated(_GainsFile, data, str(path))
    if found.law != law:
        raise ConfigError(f"{path}: law = {found.law}: must be control.law ({law})")
    return found.gains


def parse(text: str, *, source: str = "roma.yaml") -> Config:
    """Validate YAML text; `source` names it in error messages."""
    data = yaml_file.read(text, source=source)
    if data is None:
        raise ConfigError(f"{source}: the file is empty")
    if isinstance(data, Mapping) and (old := list(renamed.faults(data))):
        raise ConfigError("\n".join(f"{source}: {line}" for line in old))
    return yaml_file.validated(Config, data, source)
