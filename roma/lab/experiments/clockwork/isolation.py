"""`clockwork-isolation`: tight SLOs beside work without any (Clockwork, §6.4, Fig. 8).

Six devices and six latency-sensitive copies of ResNet50 at 200 r/s each, alone or beside batch
clients, whose closed loops would fill every device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.schedulers.clockwork.policy import Clockwork
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.clockwork.low import STEPS
from roma.lab.experiments.clockwork.runs import PAGES, Clients, FleetTrial, over_seeds, resnets
from roma.lab.experiments.intervals import interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet_plan import FleetPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVICES = 6
SENSITIVE = 6
RATE = 200.0
PATIENCE = 10.0
"""SLO, in seconds, of clients without one."""

WARM_UP = 1.0
SECONDS = 5.0

TIGHT = 0.015
"""Seconds; below this SLO, many latency-sensitive requests were refused in the paper."""

TOLERATED = 0.01
"""Share of satisfaction that batch clients may cost and still count as having no effect."""


@dataclass(frozen=True, slots=True)
class IsolationScenario:
    """Batch clients: `clients` models with `concurrency` requests each; `ahead` as in a plan."""

    name: str
    clients: int = 0
    concurrency: int = 0
    ahead: float = 0.005


SCENARIOS = (
    IsolationScenario("alone"),
    IsolationScenario("12 batch clients of 16", 12, 16),
    IsolationScenario("48 batch clients of 4", 48, 4),
    IsolationScenario("the same, work given 1 ms ahead", 48, 4, ahead=0.001),
)

NOTE = (
    f"{DEVICES} devices; {SENSITIVE} latency-sensitive models, {RATE:.0f} r/s each, Poisson. "
    "Satisfied: the share of their requests answered within the SLO. Batch: goodput of all "
    f"batch clients, closed loops with an SLO of {PATIENCE:g} s. {SECONDS:g} s a step."
)


def trial(scenario: IsolationScenario, slo: float, seconds: float = SECONDS) -> FleetTrial:
    """Return one step of a scenario."""
    sensitive, batch = resnets(SENSITIVE, "sensitive"), resnets(scenario.clients, "batch")
    plan = FleetPlan(
        models={**sensitive, **batch},
        devices=DEVICES,
        pages=PAGES,
        deadline=slo,
        policy=Clockwork,
        ahead=scenario.ahead,
    )
    clients = [Clients("sensitive", tuple(sensitive), rate=RATE)]
    if batch:
        several = scenario.concurrency
        clients.append(Clients("batch", tuple(batch), concurrency=several, slo=PATIENCE))
    return FleetTrial(plan, tuple(clients), WARM_UP, WARM_UP + seconds)


def compare(
    lab: Lab,
    steps: Sequence[float] = STEPS,
    scenarios: Sequence[IsolationScenario] = SCENARIOS,
    seconds: float = SECONDS,
) -> Output:
    """Return satisfaction and batch goodput by SLO; the first scenario is the baseline."""
    trials = {(slo, s.name): trial(s, slo, seconds) for slo in steps for s in scenarios}
    found = over_seeds(lab, trials)
    rows: list[tuple[Cell, ...]] = []
    for slo in steps:
        row: list[Cell] = [slo * 1e3]
        for scenario in scenarios:
            counts = found[slo, scenario.name]
            sensitive, batch = counts["sensitive"], counts.get("batch")
            row += [sensitive.satisfaction, sensitive.half("satisfaction")]
            if batch is not None:
                row += [batch.goodput, batch.half("goodput")]
        rows.append(tuple(row))
    columns = [Column("SLO ms", ".1f")]
    for scenario in scenarios:
        columns += [Column(f"{scenario.name}: satisfied", ".1%"), Column("±", ".1%")]
        if scenario.clients:
            columns += [Column("batch r/s", ".0f"), Column("±", ".0f")]
    table = Table(
        "clockwork-isolation",
        "Latency-sensitive clients beside batch clients (Fig. 8)",
        tuple(columns),
        rows,
        f"{NOTE} {interval_note(len(lab.seeds))}",
    )
    picture = Picture("clockwork-isolation", lambda figure: _draw(figure, found), (8.0, 5.5))
    return Output((table,), (picture,), _checks(found, steps, scenarios))


def _checks(
    found: Mapping[tuple[float, str], Mapping[str, Counts]],
    steps: Sequence[float],
    scenarios: Sequence[IsolationScenario],
) -> tuple[Check, ...]:
    alone, *shared = scenarios
    checks = []
    for scenario in shared:
        costs = {
            slo: found[slo, alone.name]["sensitive"].satisfaction
            - found[slo, scenario.name]["sensitive"].satisfaction
            for slo in steps
        }
        worst = max((slo for slo in steps if slo > TIGHT), key=lambda slo: costs[slo])
        checks.append(
            Check(
                f"{scenario.name}: at SLOs above {TIGHT * 1e3:.0f} ms they cost at most "
                f"{costs[worst]:.1%} of the satisfaction (at {worst * 1e3:.1f} ms; "
                f"unaffected: ≤ {TOLERATED:.0%})",
                costs[worst] <= TOLERATED,
            )
        )
        tightest, widest = (found[slo, scenario.name] for slo in (steps[0], steps[-1]))
        passed, throttled = tightest["batch"].goodput, widest["batch"].goodput
        checks.append(
            Check(
                f"{scenario.name}: not throttled entirely ({throttled:.0f} r/s at "
                f"{steps[-1] * 1e3:.0f} ms), and more goes through at {steps[0] * 1e3:.1f} ms "
                f"({passed:.0f} r/s)",
                passed > throttled > 0,
            )
        )
    late = sum(c["sensitive"].late for c in found.values())
    total = sum(c["sensitive"].total for c in found.values())
    checks.append(
        Check(
            f"{late} of {total} sensitive requests answered late (at most 1 in 10,000)",
            late <= total / 1e4,
        )
    )
    return tuple(checks)


def _draw(figure: "Figure", found: Mapping[tuple[float, str], Mapping[str, Counts]]) -> None:
    above, below = figure.subplots(2, 1, sharex=True)
    slos = list(dict.fromkeys(slo for slo, _ in found))
    for name in dict.fromkeys(name for _, name in found):
        shares = [found[slo, name]["sensitive"].satisfaction for slo in slos]
        above.plot([s * 1e3 for s in slos], shares, marker="o", markersize=4, label=name)
        batch = [
            found[slo, name]["batch"].goodput if "batch" in found[slo, name] else 0.0
            for slo in slos
        ]
        below.plot([s * 1e3 for s in slos], batch, marker="o", markersize=4)
    above.set_ylabel("satisfaction, sensitive clients")
    above.set_ylim(0, 1.02)
    above.legend(fontsize=8, loc="lower right")
    below.set_xscale("log")
    below.set_xlabel("SLO of the sensitive clients (ms)")
    below.set_ylabel("goodput, batch clients (r/s)")
    below.set_ylim(bottom=0)


ISOLATION = Experiment(
    "clockwork-isolation",
    "Clockwork's Fig. 8: tight SLOs beside batch clients that would fill every device",
    compare,
    seeds=5,
)
