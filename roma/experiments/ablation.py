"""`ablation`: what each part of ours buys, by taking it away."""

from dataclasses import replace

from roma.experiments.base import Cell, Column, Experiment, Output, Table
from roma.experiments.lab import Case, Lab
from roma.experiments.systems import NO_DEADLINE, OURS, System
from roma.experiments.workloads import ALL_APPS, IDLE_BURST, OVERLOAD, RES_VGG

WORKLOADS = (RES_VGG, ALL_APPS, IDLE_BURST, OVERLOAD)

WITHOUT: tuple[System, ...] = (
    replace(OURS, name="all of it"),
    replace(OURS, name="age term", hide_age=True),
    replace(OURS, name="in-flight limit (8 in flight)", in_flight=8),
    replace(OURS, name="spill (any CPU with room)", spill=0.0),
    replace(OURS, name="feed-forward (law pi, error log)", law="pi"),
    replace(OURS, name="shedding", deadline=NO_DEADLINE),
    replace(OURS, name="GPU order (round robin)", gpu="round_robin"),
    replace(OURS, name="GPU order (the paper's)", gpu="roma"),
)


def _run(lab: Lab) -> Output:
    cases = [Case(workload, system) for system in WITHOUT for workload in WORKLOADS]
    summaries = iter(lab.run(cases))
    rows: list[tuple[Cell, ...]] = []
    for system in WITHOUT:
        row: list[Cell] = [system.name]
        for _ in WORKLOADS:
            found = next(summaries)
            row += [found.late_share, found.core_seconds]
        rows.append(tuple(row))
    columns = [Column("without")]
    for workload in WORKLOADS:
        columns += [Column(f"{workload.name}: late", ".2%"), Column("core-s", ".0f")]
    return Output((Table("ablation", "What each part buys", tuple(columns), rows),))


ABLATION = Experiment("ablation", "What each part of ours buys, by taking it away", _run, seeds=2)
