"""The demo's configuration, and a load that fits this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from roma.config.control import DEFAULT_LAW
from roma.tools.profiling.machine import available_cores
from roma.workload.arrivals import Profile, RateStep

MOST_CORES = 4.0
"""Most cores to allocate: beyond this, the load generator and the gateway on the same machine would
be the bottleneck."""

RESERVED_SHARE = 0.3
"""Share of the machine's cores reserved for gateway, generator and everything else."""


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A demo model's promise and its load.

    `response_time` in seconds. `steps` are loads as shares of the allocatable cores, one after the
    other, of equal length: the shape of the paper's Table 1, with one peak each, at different
    times.
    """

    name: str
    response_time: float
    steps: tuple[float, ...]


MODELS = (
    DemoModel("digits", 0.25, (0.06, 0.06, 0.06, 0.06, 0.18, 0.18, 0.06, 0.06)),
    DemoModel("photos", 0.5, (0.15, 0.15, 0.45, 0.45, 0.15, 0.15, 0.25, 0.15)),
)


@dataclass(frozen=True, slots=True)
class DemoMachine:
    """The cores of this machine and their division among the demo's programs."""

    cores: float
    reserved: float

    @classmethod
    def here(cls) -> "DemoMachine":
        """Return the division of the cores that this process may use: by affinity and quota."""
        available = available_cores()
        allocatable = min(MOST_CORES, available * (1 - RESERVED_SHARE))
        return cls(available, available - allocatable)

    @property
    def allocatable(self) -> float:
        """AC = MC - GC, in cores."""
        return self.cores - self.reserved


def write_config(
    file: Path, machine: DemoMachine, paths: Mapping[str, Path], *, law: str, ports: tuple[int, ...]
) -> None:
    """Write the demo's roma.yaml; `ports` are for gateway, admin, supervisor and executables.

    The file leaves the control law at its default: the demo shows what a plain file does.
    """
    gateway, admin, supervisor, first, *_ = ports
    share = machine.allocatable / len(MODELS)
    config = {
        "name": f"demo-{gateway}",
        "models": {
            m.name: {
                "path": str(paths[m.name].resolve()),
                "sla": {"response_time": m.response_time},
                "cpu": {"initial": share},
            }
            for m in MODELS
        },
        "workers": [
            {
                "name": "local",
                "cores": machine.cores,
                "reserved": round(machine.reserved, 3),
                "base_port": first,
            }
        ],
        "control": {**({} if law == DEFAULT_LAW else {"law": law}), "port": supervisor},
        "gateway": {"port": gateway, "admin_port": admin},
    }
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def profile(model: DemoModel, cost: float, machine: DemoMachine, seconds: float) -> Profile:
    """Return the load of a model whose requests cost `cost` core-seconds, over `seconds`."""
    length = seconds / len(model.steps)
    return Profile(tuple(RateStep(s * machine.allocatable / cost, length) for s in model.steps))
