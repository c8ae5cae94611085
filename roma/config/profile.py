"""Profile: the cost of a request of each model, as `roma profile` measures it.

One YAML file serves three purposes: the law's prior, the simulator's plant, and a record for
people. Times are seconds, CPU is cores, cost is core-seconds per request.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from roma.config import yaml_file
from roma.config.yaml_file import Section

Positive = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]


class Point(Section):
    """A measurement: requests of `batch` inputs, one at a time, under a quota of `cores`."""

    cores: Positive
    batch: Annotated[int, Field(ge=1)] = 1
    cost: Positive
    """Core-seconds per request (not per input), from the kernel's accounting."""
    response_time: Positive
    """Median seconds of one request alone."""
    requests: Annotated[int, Field(ge=1)]
    """Number of requests over which the medians are taken."""


class ModelProfile(Section):
    """A model: the numbers that laws and simulator use, and the points they come from."""

    cost: Positive
    """Core-seconds per request of one input: the median over the points of batch 1."""
    noise: Share = 0.0
    """Coefficient of variation of the cost from request to request."""
    parallelism: Annotated[float, Field(ge=0.1, le=256)] = 1.0
    """Cores that one request can keep busy."""
    overhead: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0.0
    """Seconds of a request on a CPU that more cores do not shorten: transport and gateway."""
    gpu_time: Positive | None = None
    """P_G: seconds of one request on a GPU; None without a GPU."""
    gpu_noise: Share = 0.0
    points: tuple[Point, ...] = ()


class MachineProfile(Section):
    """Machine of the measurement: a cost is a property of a model *on a machine*."""

    cpu: str
    cores: Positive
    measured: str
    """Date and time, ISO 8601."""


class Profiles(Section):
    """The whole file."""

    machine: MachineProfile
    models: Annotated[dict[str, ModelProfile], Field(min_length=1)]


def load(path: Path) -> Profiles:
    """Read and validate a profile; raise `ConfigError` with one line per fault."""
    data = yaml_file.read(yaml_file.text_of(path), source=str(path))
    return yaml_file.validated(Profiles, data, str(path))
