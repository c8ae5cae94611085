"""A learned policy as a file: the setup it was trained for, its weights and their origin.

JSON, written by `roma qos train`, read by the GPU policy `qos-rl`. A policy is useless with
variants or devices other than those of its training, so the file records them and the reader
refuses any difference. Times are seconds.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from roma.config import file_edit, yaml_file
from roma.config.yaml_file import Fault, Section
from roma.domain.actions import ModelCapabilities
from roma.domain.errors import ConfigError
from roma.domain.variants import Variant

FORMAT: Final = 1
"""Version of the format; it changes whenever an older reader would misread a file."""

TOLERANCE: Final = 0.2
"""A device is of a trained type if each of its batch times is within this share of that type's.
Machines of one type measure a few percent apart, and types that differ by less behave alike."""

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=4096)]
Row = tuple[Number, ...]


class PolicyVariant(Section):
    """A variant of the model."""

    name: str
    accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class PolicyDevice(Section):
    """A type of device."""

    name: str
    count: Count
    """Number of devices of this type in training."""
    seconds: dict[str, Annotated[dict[Count, Positive], Field(min_length=1)]]
    """Seconds of a batch, by variant and batch size."""

    def differs(self, models: Mapping[str, ModelCapabilities]) -> str | None:
        """Return how a device differs from this type: the first field, its value and its bound."""
        for name, seconds in self.seconds.items():
            if name not in models:
                return f"models = {', '.join(sorted(models))}: must have {name}"
            offered = models[name].executions
            if offered.keys() != seconds.keys():
                sizes = [", ".join(map(str, sorted(found))) for found in (offered, seconds)]
                return f"models.{name}: batch sizes = {sizes[0]}: must be {sizes[1]}"
            for batch, took in seconds.items():
                if abs(offered[batch] - took) > TOLERANCE * took:
                    least, most = took * (1 - TOLERANCE), took * (1 + TOLERANCE)
                    return (
                        f"models.{name}: batch {batch} = {offered[batch]:.4g} s: "
                        f"must be {least:.4g} to {most:.4g}"
                    )
        return None


class PolicyAction(Section):
    """An action: run `batch` requests with a variant. A `batch` of 0 without a variant waits."""

    batch: Annotated[int, Field(ge=0, le=4096)]
    variant: str | None = None


class PolicyLayer(Section):
    """A fully connected layer: a row of `weights` for each input, a `bias` for each output."""

    weights: Annotated[tuple[Row, ...], Field(min_length=1)]
    bias: Annotated[Row, Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> "PolicyLayer":
        for i, row in enumerate(self.weights):
            if len(row) != len(self.bias):
                raise Fault(f"weights.{i}", f"{len(row)} numbers", f"{len(self.bias)}, as bias")
        return self


class PolicyTraining(Section):
    """Origin of the weights; for people to read."""

    command: str
    seed: int
    hours: str
    rounds: int
    score: Number
    """Mean quality of answers on the validation stretches, which select among training rounds."""
    teacher: Number
    """Mean quality of the heuristic that it first imitated, on the same stretches."""


class Policy(Section):
    """The whole file."""

    format: int
    variants: Annotated[tuple[PolicyVariant, ...], Field(min_length=1)]
    """The most accurate first."""
    devices: Annotated[tuple[PolicyDevice, ...], Field(min_length=1)]
    utility: str
    """Shape by which the value of late answers falls."""
    bin: Positive
    """Δt: width of a bin."""
    before: Count
    """N_pre: bins of deadlines that have passed."""
    after: Count
    """N_post: bins from the current one on."""
    wait: Positive
    """Time that batch size 0 waits before the policy is evaluated again."""
    actions: Annotated[tuple[PolicyAction, ...], Field(min_length=1)]
    mean: Row
    scale: Row
    """Scale of each feature: a feature x enters the network as (x - mean) / scale."""
    hidden: PolicyLayer
    output: PolicyLayer
    training: PolicyTraining

    @property
    def inputs(self) -> int:
        """Number of features: bins, number waiting, rate, type, remaining time per device."""
        devices = sum([d.count for d in self.devices])
        return self.before + self.after + 2 + len(self.devices) + devices

    @model_validator(mode="after")
    def _check(self) -> "Policy":
        names = [v.name for v in self.variants]
        for i, device in enumerate(self.devices):
            if sorted(device.seconds) != sorted(names):
                key, found = f"devices.{i}.seconds", ", ".join(device.seconds)
                raise Fault(key, found, "of the variants " + ", ".join(names))
        for i, action in enumerate(self.actions):
            if (action.variant is None) != (action.batch == 0) or (
                action.variant is not None and action.variant not in names
            ):
                bound = "one of " + ", ".join(names) + ", or none with batch 0"
                raise Fault(f"actions.{i}.variant", action.variant, bound)
        sizes = {
            "mean": (len(self.mean), self.inputs),
            "scale": (len(self.scale), self.inputs),
            "hidden.weights": (len(self.hidden.weights), self.inputs),
            "output.weights": (len(self.output.weights), len(self.hidden.bias)),
            "output.bias": (len(self.output.bias), len(self.actions)),
        }
        for key, (count, wanted) in sizes.items():
            if count != wanted:
                raise Fault(key, f"{count} numbers", str(wanted))
        if min(self.scale) <= 0:
            raise Fault("scale", min(self.scale), "> 0")
        return self

    def check(self, variants: Sequence[Variant], *, width: float, utility: str) -> None:
        """Raise ConfigError unless it was trained for these variants, bin width and utility."""
        found = [(v.name, v.accuracy) for v in self.variants]
        wanted = [(v.name, v.accuracy) for v in variants]
        if found != wanted:
            raise ConfigError(f"variants = {_listed(found)}: must be {_listed(wanted)}")
        if self.bin != width:
            raise ConfigError(f"bin = {self.bin:g}: must be scheduling.quality.bin ({width:g})")
        if self.utility != utility:
            raise ConfigError(
                f"utility = {self.utility}: must be scheduling.quality.utility ({utility})"
            )

    def type_of(self, models: Mapping[str, ModelCapabilities]) -> int | None:
        """Return the index of the first device type that matches these models, or None."""
        for i, device in enumerate(self.devices):
            if device.differs(models) is None:
                return i
        return None


def load(path: Path) -> Policy:
    """Read and validate a policy; raise `ConfigError` with one line per fault."""
    try:
        data: Any = json.loads(yaml_file.text_of(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        raise ConfigError(f"{path}: format = {version}: must be {FORMAT}")
    return yaml_file.validated(Policy, data, str(path))


def save(policy: Policy, path: Path) -> None:
    """Write a policy; raise `ConfigError` if that cannot be done."""
    data = policy.model_dump(mode="json")
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    with file_edit.writing(str(path)):
        file_edit.output(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _listed(variants: Sequence[tuple[str, float]]) -> str:
    return ", ".join([f"{name} ({accuracy:g})" for name, accuracy in variants])
