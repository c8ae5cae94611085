"""The systems that experiments compare: settings of roma.yaml, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from roma.config.control import DEFAULT_LAW, LONG_PERIOD, SHORT_PERIOD

NO_DEADLINE = 1000.0
"""A deadline as a multiple of the SLA: the paper's systems never refuse a request."""


@dataclass(frozen=True, slots=True)
class System:
    """A name for settings.

    `deadline` is in SLAs, `period` in seconds. Without a `statistic` the promise is the default
    budget; without a `deadline` it has the default one. `static` fixes the cores of each worker,
    divided fairly among its models. `hide_age` and `burst` are the lab's own.
    """

    name: str
    law: str
    gains: Mapping[str, float | str] = field(default_factory=dict)
    gpu: str = "roma"
    cpu: str = "round_robin"
    spill: float = 0.0
    statistic: str | None = "mean"
    alpha: float = 0.8
    deadline: float | None = NO_DEADLINE
    in_flight: int | None = None
    sharing: str = "proportional"
    static: float | None = None
    period: float = 1.0
    burst: float = 0.0
    hide_age: bool = False


PAPER = {"K": 0.15, "a": 0.11}

ROMA = System("ROMA", "paper", PAPER)
ROMA_CODE = System("ROMA (code)", "paper", {"K": 0.38, "a": 0.553}, alpha=1.0)
RR_CT = System("RR+CT", "paper", PAPER, gpu="round_robin")
RR_RULES = System("RR+rules", "rules", gpu="round_robin", hide_age=True)
RR_MAX = System("RR+max", "static", gpu="round_robin", static=6.0)
RR_MIN = System("RR+min", "static", gpu="round_robin", static=1.0)
SHIPPED = System(
    "defaults, 0.2 s",
    DEFAULT_LAW,
    gpu="gpu_savings_first",
    cpu="balance",
    spill=0.2,
    statistic=None,
    deadline=None,
    sharing="max_min",
    period=SHORT_PERIOD,
    burst=1.0,
)
"""Default settings of a file with models and workers where quotas are cgroup files, except the
lab's own `cpu.min` and `cpu.initial`, which are the same for all systems."""

SHIPPED_ENGINE = replace(SHIPPED, name="defaults, 1 s", period=LONG_PERIOD)
"""The same through an engine."""
