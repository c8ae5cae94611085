"""`roma-table2`: the paper's evaluation (§5, Tables 1 and 2), with our defaults beside it.

It runs on two plants. The second one was fitted to two rows of the paper's table alone, RR+max and
RR+min, whose cores are constant, before any other of its rows was looked at. With the service times
of the first, all systems of the paper are faster when idle and slower when short of cores than the
table says. Each test has a time that neither cores nor GPUs shorten, so that RR+max has the paper's
mean. One factor on all service times minimises the squares of the logarithms of simulated over
printed means of RR+min (0.82 to 0.88 in steps of 0.02; seeds 1 to 3). Its residuals are a table of
their own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from roma.lab.experiments import systems, workloads
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Table
from roma.lab.experiments.lab import CaseSummary, Lab, LabCase
from roma.lab.experiments.workloads import Workload

SYSTEMS = (
    systems.ROMA,
    systems.ROMA_CODE,
    systems.RR_CT,
    systems.RR_RULES,
    systems.RR_MAX,
    systems.RR_MIN,
    systems.SHIPPED,
    systems.SHIPPED_ENGINE,
)

SERVICE_FACTOR = 0.86
"""Factor on every service time of the second plant."""

FRONT_END = {"sky+gnet": 0.128, "res+vgg": 0.275, "all-apps": 0.153}
"""Seconds that every request takes, on the second plant, beside its service, by test."""

PAPER: dict[tuple[str, str], tuple[float, float, float, int, int]] = {
    ("sky+gnet", "ROMA"): (0.168, 0.245, 0.031, 0, 748),
    ("sky+gnet", "RR+CT"): (0.193, 0.358, 0.053, 0, 793),
    ("sky+gnet", "RR+rules"): (0.185, 0.638, 0.075, 10, 1165),
    ("sky+gnet", "RR+max"): (0.152, 0.191, 0.014, 0, 3600),
    ("sky+gnet", "RR+min"): (0.278, 1.053, 0.182, 40, 600),
    ("res+vgg", "ROMA"): (0.266, 0.553, 0.068, 10, 1633),
    ("res+vgg", "RR+CT"): (0.446, 0.949, 0.117, 70, 1750),
    ("res+vgg", "RR+rules"): (0.701, 3.829, 0.528, 120, 1691),
    ("res+vgg", "RR+max"): (0.337, 0.711, 0.092, 40, 3600),
    ("res+vgg", "RR+min"): (1.537, 4.423, 0.464, 180, 600),
    ("all-apps", "ROMA"): (0.167, 0.427, 0.022, 0, 1767),
    ("all-apps", "RR+CT"): (0.325, 1.372, 0.130, 90, 2018),
    ("all-apps", "RR+rules"): (0.409, 1.913, 0.158, 140, 1973),
    ("all-apps", "RR+max"): (0.208, 0.453, 0.052, 0, 3600),
    ("all-apps", "RR+min"): (1.032, 6.828, 0.414, 170, 600),
}
"""Table 2: mean, maximum and deviation of the response time (s), V, core-seconds."""

COLUMNS = (
    Column("test"),
    Column("system"),
    Column("τ s", ".3f"),
    Column("paper", ".3f"),
    Column("τ max s", ".2f"),
    Column("paper", ".2f"),
    Column("σ s", ".3f"),
    Column("paper", ".3f"),
    Column("V", ".0f"),
    Column("paper", "d"),
    Column("late", ".2%"),
    Column("late ±", ".2%"),
    Column("core-s", ".0f"),
    Column("core-s ±", ".0f"),
    Column("paper", "d"),
)

NOTE = (
    "τ, its maximum and σ are over the means of each second; V counts model-seconds whose mean is "
    "above the SLA; late is the share of all requests answered after their SLA, refused or failed. "
    "A refused or failed request enters its second as twice its SLA, or its age. The "
    "defaults alone refuse requests that cannot be answered in time. ± is an interval of 95 % over "
    "the seeds. Service times are not in the paper: "
    "see roma/lab/experiments/workloads.py. ROMA has the paper's gains (K = 0.15, a = 0.11, "
    "α = 0.8), ROMA (code) those of the authors' public code (K = 0.38, a = 0.553, α = 1)."
)


def _run(lab: Lab) -> Output:
    first = compare(lab, workloads.TABLE1, "roma-table2", "Table 2, simulated")
    fitted = [
        replace(test.scaled(SERVICE_FACTOR), front_end=FRONT_END[test.name])
        for test in workloads.TABLE1
    ]
    second = compare(
        lab, fitted, "roma-table2-front-end", "Table 2, with a time that nothing shortens"
    )
    aims = (Check(f"with a front end: {c.claim}", c.holds, is_aim=True) for c in second.checks)
    return Output((*first.tables, *second.tables, _fit(second)), checks=(*first.checks, *aims))


def _fit(second: Output) -> Table:
    """Return the residuals of the fitted plant on the rows that it was fitted to."""
    (table,) = second.tables
    rows = [
        (row[0], row[1], row[2], row[3], float(row[2] or 0) / float(row[3] or 1))
        for row in table.rows
        if row[1] in ("RR+max", "RR+min")
    ]
    columns = (*COLUMNS[:4], Column("ratio", ".2f"))
    return Table("roma-table2-fit", "What the front end was fitted to", columns, rows)


def compare(lab: Lab, tests: Sequence[Workload], name: str, title: str) -> Output:
    """Return the table of all systems on these tests, and the paper's claims about them."""
    cases = [LabCase(test, system) for test in tests for system in SYSTEMS]
    summaries = lab.run(cases)
    found = {
        (case.workload.title, case.system.name): summary
        for case, summary in zip(cases, summaries, strict=True)
    }
    rows = [
        _row(case.workload, case.system.name, summary)
        for case, summary in zip(cases, summaries, strict=True)
    ]
    checks = (*_checks(found), *_orders(found, [test.title for test in tests]))
    return Output((Table(name, title, COLUMNS, rows, NOTE),), checks=checks)


ORDER = ("ROMA", "RR+CT", "RR+rules")
"""From the fewest violations to the most, in every test of the paper."""


def _orders(found: Mapping[tuple[str, str], CaseSummary], tests: Iterable[str]) -> list[Check]:
    """Return a check that the paper's systems are in the paper's order."""
    checks = []
    for test in tests:
        over = [found[test, system].windows_over for system in ORDER]
        shown = ", ".join(f"{name} {v:.0f}" for name, v in zip(ORDER, over, strict=True))
        claim = f"{test}: violations in the paper's order: {shown}"
        checks.append(Check(claim, over == sorted(over), is_aim=True))
    return checks


def _row(test: Workload, system: str, s: CaseSummary) -> tuple[Cell, ...]:
    paper: Sequence[Cell] = PAPER.get((test.name, system), (None,) * 5)
    return (
        test.title,
        system,
        s.mean,
        paper[0],
        s.worst,
        paper[1],
        s.deviation,
        paper[2],
        s.windows_over,
        paper[3],
        *s.figures,
        paper[4],
    )


def _checks(found: dict[tuple[str, str], CaseSummary]) -> tuple[Check, ...]:
    def total(system: str, what: str) -> float:
        return math.fsum(getattr(s, what) for (_, name), s in found.items() if name == system)

    late, cores = "late_share", "core_seconds"
    tests = len({test for test, _ in found})
    rules = {what: max(total("RR+rules", what), 1e-9) for what in (late, cores)}
    checks = []
    for shipped in (systems.SHIPPED.name, systems.SHIPPED_ENGINE.name):
        ours = {what: total(shipped, what) for what in (late, cores)}
        saved = {what: 1 - ours[what] / rules[what] for what in (late, cores)}
        checks += [
            Check(
                f"{shipped}: against RR+rules {saved[late]:.0%} fewer violations "
                "(the paper claims 75 %)",
                saved[late] >= 0.75,
            ),
            Check(
                f"{shipped}: against RR+rules {saved[cores]:.0%} fewer core-seconds "
                "(the paper claims 24 %)",
                saved[cores] >= 0.24,
            ),
        ]
        for system in ("ROMA", "ROMA (code)"):
            its = {what: total(system, what) for what in (late, cores)}
            checks.append(
                Check(
                    f"{shipped}: better than {system} on both at once: late "
                    f"{ours[late] / tests:.2%} against {its[late] / tests:.2%}, core-seconds "
                    f"{ours[cores]:.0f} against {its[cores]:.0f}",
                    ours[late] < its[late] and ours[cores] < its[cores],
                    # A tick a second costs more cores than the paper's law takes while it breaks
                    # a third of the promises.
                    is_aim=(shipped, system) == (systems.SHIPPED_ENGINE.name, "ROMA"),
                )
            )
    return tuple(checks)


TABLE2 = Experiment(
    "roma-table2",
    "The paper's systems and ours on its Table 1: response times, violations, core-seconds",
    _run,
    seeds=5,
)
