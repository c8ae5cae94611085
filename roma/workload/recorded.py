"""Recorded loads by name: a directory of public traces, a window of one of them, a mean rate.

The files are not part of the project. Their sources:

    diurnal, bursty   github.com/microsoft/autothrottle, traces/diurnal.txt and traces/bursty.txt
                      (MIT): one count per second; kept here as autothrottle_….txt
    llm               github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_code.csv
                      (CC-BY-4.0): one time per request; kept here as azure_llm_2023_code.csv
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roma.workload.arrivals import poisson_rates
from roma.workload.errors import WorkloadError
from roma.workload.trace import TraceKind, read_counts

VARIABLE = "ROMA_TRACES"
"""Environment variable that names the directory."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace file and the kind of its lines; `column` of a CSV file."""

    file: str
    kind: TraceKind
    column: str | None = None


RECORDED: Mapping[str, TraceFile] = {
    "diurnal": TraceFile("autothrottle_diurnal.txt", TraceKind.COUNTS),
    "bursty": TraceFile("autothrottle_bursty.txt", TraceKind.COUNTS),
    "llm": TraceFile("azure_llm_2023_code.csv", TraceKind.TIMESTAMPS, "TIMESTAMP"),
}


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Window of a trace: `seconds` of a run, beginning at second `offset` of the trace.

    Each second of the run represents `speed` recorded seconds, at their mean rate: a speed of 12
    compresses an hour to five minutes. The bursty trace has its burst between 1500 and 2250 s.
    """

    seconds: int
    offset: int = 0
    speed: int = 1

    def __post_init__(self) -> None:
        for name, value, bound in (
            ("seconds", self.seconds, 1),
            ("offset", self.offset, 0),
            ("speed", self.speed, 1),
        ):
            if value < bound:
                raise WorkloadError(f"window {name} = {value}: must be >= {bound}")


def directory(option: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the directory of the traces: the option if given, else from the environment.

    Raises WorkloadError if neither names a directory that exists.
    """
    named = option or (Path(found) if (found := environment.get(VARIABLE)) else None)
    if named is None:
        raise WorkloadError(f"no directory of traces: give one, or set {VARIABLE}")
    if not named.is_dir():
        raise WorkloadError(f"traces {named}: must be a directory")
    return named


def rates(
    name: str, traces: Path, window: TraceWindow, *, rate: float | None = None
) -> Sequence[float]:
    """Return the recorded load of a window in requests per second, one value per second.

    With `rate` it is scaled to that mean over the window, in req/s; otherwise it is as recorded.
    Raises WorkloadError for an unknown name, for a file that cannot be read, and for a window
    outside the trace or without requests.
    """
    if name not in RECORDED:
        raise WorkloadError(f"trace {name}: must be one of {', '.join(RECORDED)}")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise WorkloadError(f"rate = {rate:g}: must be finite and > 0")
    source = RECORDED[name]
    counts = read_counts(traces / source.file, source.kind, column=source.column)
    end = window.offset + window.seconds * window.speed
    if end > len(counts):
        raise WorkloadError(f"trace {name}: window ends at {end} s; must be <= {len(counts)}")
    chosen = counts[window.offset : end]
    total = sum(chosen)
    if not total:
        raise WorkloadError(f"trace {name}: 0 requests from {window.offset} to {end} s")
    factor = 1 / window.speed if rate is None else rate * window.seconds / total
    return [factor * sum(chosen[i : i + window.speed]) for i in range(0, len(chosen), window.speed)]


def arrivals(
    name: str, traces: Path, window: TraceWindow, *, seed: int, rate: float | None = None
) -> Iterator[float]:
    """Yield send times: a Poisson process with the rates of the window (see `rates`).

    Within a second, random times replace the recorded ones, which makes the rate adjustable; bursts
    shorter than a second are lost.
    """
    return poisson_rates(rates(name, traces, window, rate=rate), seed=seed)
