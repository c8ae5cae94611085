"""`parity`: one real run of the demo against its own simulation.

The demo serves two TensorFlow models on this machine, behind the real gateway, under real quotas.
Then the very same requests, at their average cost in that run by the kernel's accounting, go
through the simulator. (Alone and at a low rate a request costs more: caches are cold.) A test
checks that the *decisions* are the same (`tests/virtual_time/parity`); this checks the *plant*.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from roma.config.control import DEFAULT_LAW
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.domain.errors import RomaError
from roma.domain.units import milliseconds
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Table
from roma.lab.experiments.lab import Lab
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.scenario import Scenario
from roma.lab.sim.simulation import Simulation
from roma.tools.demo import run as demo
from roma.tools.demo.verdict import Evidence
from supervisor.cgroups import find_hierarchy

SECONDS = 90.0
LATE_POINTS = 0.03
CORE_SHARE = 0.15
TIME_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    form: str
    real: Callable[[Evidence], float]
    simulated: Callable[[SimulationResult], float]


def _real_late(evidence: Evidence) -> float:
    """Return the real late share by the simulator's rule: late, refused and failed, of all sent."""
    total = evidence.report.total
    broken = (total.late or 0) + total.rejected + total.failed + total.invalid + total.lost
    return broken / max(1, total.sent)


ROWS = (
    _Row("requests", ",.0f", lambda e: e.report.total.sent, lambda r: r.arrivals),
    _Row("late share", ".2%", _real_late, lambda r: r.late_share),
    _Row("core-seconds allocated", ".1f", lambda e: e.core_seconds, lambda r: r.core_seconds),
    _Row("core-seconds used", ".1f", lambda e: e.used_seconds, lambda r: r.used_seconds),
)


def _times(evidence: Evidence, result: SimulationResult) -> dict[str, tuple[float, float]]:
    """Return mean, median and p95 of each model's response times in s: real, simulated."""
    found = {}
    simulated = {m.model: m for m in result.models}
    for model in evidence.report.models:
        real, sim = model.response_time, simulated[model.model]
        if real is None or sim.p50 is None or sim.p95 is None:
            raise RomaError(f"{model.model}: nothing was answered")
        found[f"{model.model}: mean"] = real.mean, sim.mean
        found[f"{model.model}: p50"] = real.percentiles["p50"], sim.p50
        found[f"{model.model}: p95"] = real.percentiles["p95"], sim.p95
    return found


def _run(lab: Lab) -> Output:
    seed = lab.seeds[0]
    find_hierarchy()  # without the right to set quotas the demo would measure no cores
    with tempfile.TemporaryDirectory(prefix="roma-parity-") as cache:
        options = demo.DemoOptions(_cache() or Path(cache), SECONDS, DEFAULT_LAW, False, seed)
        evidence = demo.run_once(options, Console(stderr=True))
    profiles = observed(evidence)
    result = Simulation(again(evidence, profiles, seed)).run()
    rows: list[tuple[Cell, ...]] = [
        (row.name, format(row.real(evidence), row.form), format(row.simulated(result), row.form))
        for row in ROWS
    ]
    times = _times(evidence, result)
    for name, pair in times.items():
        rows.append((f"{name}, ms", *(f"{milliseconds(seconds):.1f}" for seconds in pair)))
    late = abs(_real_late(evidence) - result.late_share)
    cores = abs(result.core_seconds / evidence.core_seconds - 1)
    costs = ", ".join(
        f"{name} {1000 * p.cost:.1f} core-ms + {1000 * p.overhead:.1f} ms"
        for name, p in profiles.items()
    )
    table = Table(
        "parity",
        "The demo, and its simulation",
        (Column(""), Column("real"), Column("simulated")),
        rows,
        f"A request costs: {costs}. Noise of this machine during the "
        f"run: CPU steal {evidence.steal:.1%}.",
    )
    return Output(
        (table,),
        checks=(
            Check(f"late shares differ by {100 * late:.1f} points (≤ 3)", late <= LATE_POINTS),
            Check(f"core-seconds differ by {cores:.0%} (≤ 15 %)", cores <= CORE_SHARE),
            *(_alike(name, real, simulated) for name, (real, simulated) in times.items()),
        ),
    )


def _alike(name: str, real: float, simulated: float) -> Check:
    apart = abs(simulated / real - 1)
    return Check(f"{name} differs by {apart:.0%} (≤ 15 %)", apart <= TIME_SHARE, is_aim=True)


def observed(evidence: Evidence) -> dict[str, ModelProfile]:
    """Return the costs of requests in the run; their overhead was measured before it.

    Raises RomaError for a model of which nothing was answered.
    """
    answered = {m.model: m.answered for m in evidence.report.models}
    for name in (name for name, count in answered.items() if not count):
        raise RomaError(f"{name}: nothing was answered")
    return {
        name: p.model_copy(update={"cost": evidence.used[name] / answered[name]})
        for name, p in evidence.profiles.items()
    }


def again(evidence: Evidence, profiles: Mapping[str, ModelProfile], seed: int) -> Scenario:
    """Return the simulation of a run, with its configuration, its requests and their costs."""
    config = evidence.config
    # When the load begins, the models have been idle since they were measured.
    models = {
        name: m.model_copy(
            update={
                "profile": profiles[name],
                "cpu": m.cpu.model_copy(update={"initial": config.minimum(name)}),
            }
        )
        for name, m in config.models.items()
    }
    config = Config.model_validate(config.model_copy(update={"models": models}).model_dump())
    arrivals = {name: iter(times) for name, times in evidence.arrivals.items()}
    burst = config.control.cfs_burst
    return Scenario(config, profiles, arrivals, evidence.seconds, seed, burst=burst)


def _cache() -> Path | None:
    """Return the demo's cache of prepared models, if it is here."""
    cache = Path(".cache")
    return cache if cache.is_dir() else None


PARITY = Experiment(
    "parity",
    "One real run of the demo against its own simulation (needs root; two minutes)",
    _run,
    seeds=1,
)
