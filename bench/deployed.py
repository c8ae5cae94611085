"""A deployment by `roma up` with defaults, whose model servers have a core to themselves.

The other core is for gateway, supervisor and clients. The file has models and a worker of one core,
besides names and ports. Models come and go as it is rewritten.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.builds import ROOT, is_compiled
from bench.loading import until_status, up
from bench.programs import cost, descendant, move
from roma.config import file_edit
from roma.tools.demo.ports import free_ports

WORKER, REST = 0, 1
"""Cores."""

START_LIMIT = 120.0
"""Seconds until a model that loads beside others is ready."""

AVAILABLE, LOADING, GONE = 200, 503, 404
"""Statuses that the gateway answers for a model."""

_PORTS = 6
"""Gateway, its admin port, supervisor, and three model servers."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model: its directory, and its promise in seconds."""

    path: Path
    response_time: float


@dataclass(slots=True)
class Deployment:
    """A running deployment; `pid` is the launcher's."""

    file: Path
    pid: int = 0
    ports: tuple[int, ...] = field(default_factory=lambda: free_ports(_PORTS))

    @property
    def port(self) -> int:
        """The gateway's port."""
        return self.ports[0]

    def write(self, models: Mapping[str, Served]) -> None:
        """Write the file with these models."""
        gateway, admin, supervisor, first, *_ = self.ports
        document: dict[str, Any] = {
            "name": f"bench-{gateway}",
            "models": {
                name: {"path": str(m.path.resolve()), "sla": {"response_time": m.response_time}}
                for name, m in models.items()
            },
            "workers": [{"cores": 1, "base_port": first}],
            "gateway": {"port": gateway, "admin_port": admin},
            "control": {"port": supervisor},
        }
        file_edit.output(self.file, yaml.safe_dump(document, sort_keys=False))

    def until(self, model: str, *statuses: int) -> None:
        """Wait until the gateway answers one of these statuses for a model; exit if it does not."""
        url = f"http://127.0.0.1:{self.port}/v1/models/{model}"
        until_status(url, *statuses, limit=START_LIMIT)

    def used(self, model: str) -> float:
        """Return the CPU seconds that a model's server has used."""
        return cost(descendant(self.pid, "serve-model", f"--model={model}=")).total


@contextlib.contextmanager
def deployed(
    directory: Path, models: Mapping[str, Served], others: Mapping[str, Served] | None = None
) -> Iterator[Deployment]:
    """Run a deployment until the block ends; its models are available, others may never be."""
    running = Deployment(directory / "roma.yaml")
    running.write({**models, **(others or {})})
    build = "compiled" if is_compiled(ROOT) else "interpreted"
    with up(running.file, directory / "up.log", WORKER, build) as running.pid:
        for name in models:
            running.until(name, AVAILABLE)
        for program in ("dispatcher", "supervisor"):
            move(descendant(running.pid, program), REST)
        yield running
