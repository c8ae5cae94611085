"""`ablation`: the contribution of each part of the defaults, measured by removing it."""

from dataclasses import replace

from roma.config.control import LONG_PERIOD
from roma.lab.experiments.base import Cell, Column, Experiment, Output, Table, figure_columns
from roma.lab.experiments.intervals import interval_note
from roma.lab.experiments.lab import Lab, LabCase
from roma.lab.experiments.systems import SHIPPED, System
from roma.lab.experiments.workloads import ALL_APPS, IDLE_BURST, OVERLOAD, RES_VGG

WORKLOADS = (RES_VGG, ALL_APPS, IDLE_BURST, OVERLOAD)

WITHOUT: tuple[System, ...] = (
    replace(SHIPPED, name="all of it"),
    replace(SHIPPED, name="margin learnt from the late share", gains={"step": 1e-9}),
    replace(SHIPPED, name="queueing theory (law pi)", law="pi"),
    replace(SHIPPED, name="short period (1 s)", period=LONG_PERIOD),
    replace(SHIPPED, name="burst", burst=0.0),
    replace(SHIPPED, name="in-flight limit (8 in flight)", in_flight=8),
    replace(SHIPPED, name="spill (any CPU with room)", spill=0.0),
    replace(SHIPPED, name="CPU order (round robin)", cpu="round_robin"),
    replace(SHIPPED, name="GPU order (round robin)", gpu="round_robin"),
    replace(SHIPPED, name="GPU order (the paper's)", gpu="roma"),
)


def _run(lab: Lab) -> Output:
    cases = [LabCase(workload, system) for system in WITHOUT for workload in WORKLOADS]
    summaries = iter(lab.run(cases))
    rows: list[tuple[Cell, ...]] = [
        (system.name, *(x for _ in WORKLOADS for x in next(summaries).figures))
        for system in WITHOUT
    ]
    columns = (Column("without"), *(c for w in WORKLOADS for c in figure_columns(w.name)))
    note = interval_note(len(lab.seeds))
    return Output((Table("ablation", "What each part buys", columns, rows, note),))


ABLATION = Experiment(
    "ablation", "What each part of the defaults buys, by taking it away", _run, seeds=5
)
