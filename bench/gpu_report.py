"""Report of `bench.gpu`: its table, and the faults of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.table import Table

from roma.domain.units import milliseconds
from roma.tools.load import ModelOutcomes
from roma.tools.load.outcomes import REJECTIONS
from supervisor.live.gpus import GpuReading


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy's run; `dispatched` is the dispatcher's own report, by model."""

    policy: str
    mode: str
    models: Sequence[ModelOutcomes]
    dispatched: Mapping[str, Mapping[str, int]]
    readings: Sequence[GpuReading]

    def faults(self) -> list[str]:
        """Return the faults that this run shows; empty if there are none."""
        found = []
        for r in self.models:
            if bad := r.failed + r.invalid + r.lost:
                ends = {s: n for s, n in r.statuses.items() if s >= 400 and s not in REJECTIONS}
                why = {**ends, **r.reasons}
                found.append(f"{bad} requests of {r.model} were lost or failed: {why}")
        for device in ("gpu", "cpu"):
            if not any(model[f"completed_{device}"] for model in self.dispatched.values()):
                found += [f"nothing ran on the {device.upper()}"]
        return [f"{self.policy}: {fault}" for fault in found]

    def notes(self) -> str:
        """Return what limited the quotas, and how busy NVML saw each GPU."""
        notes = [f"{self.policy}: supervisor: {self.mode}"]
        for index, name in sorted({(r.index, r.name) for r in self.readings}):
            shares = [r.utilization for r in self.readings if r.index == index]
            known = [share for share in shares if share is not None]
            busy = f"{fmean(known):.0%} busy" if known else "tells no utilization"
            notes.append(f"NVML: GPU {index} {name} {busy}")
        return "; ".join(notes)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return a row per policy and model; times in ms."""
    rows = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    columns = ("policy", "model", "sent", "GPU", "CPU", "mean", "p95", "SLA", "late", "refused")
    for column in (*columns, "failed"):
        rows.add_column(column, justify="left" if column in columns[:2] else "right")
    for outcome in outcomes:
        for r in outcome.models:
            told, times = outcome.dispatched[r.model], r.response_time
            done = [told["completed_gpu"], told["completed_cpu"]]
            seconds = [times.mean, times.percentiles["p95"]] if times else [None, None]
            rows.add_row(
                outcome.policy,
                r.model,
                str(r.sent),
                *(f"{n / max(1, sum(done)):.0%}" for n in done),
                *("-" if t is None else f"{milliseconds(t):.0f}" for t in (*seconds, r.sla)),
                "-" if r.late_share is None else f"{r.late_share:.1%}",
                str(r.rejected),
                str(r.failed + r.invalid + r.lost),
            )
    return rows
