"""Reader of a directory of records: columns of numbers, and the position of each decision.

Lines truncated by a crash are skipped and noted; records of another kind are an error.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from roma.domain.errors import DecisionLogError, in_words
from roma.domain.model import BUDGETS, Statistic
from roma.telemetry import decision_log
from roma.ui.dashboard.moments import Moment
from roma.ui.report.columns import (
    GAP,
    ColumnBuilder,
    Numbers,
    Span,
    gaps,
    typical,
    until_next,
    without_gaps,
)
from supervisor.decision_log import Decision
from supervisor.decision_text import Limit, limit

LIMITS = tuple(Limit)
"""Limits in the order of `supervisor.decision_text.limit`; columns hold the index."""

Finite = Annotated[float, Field(allow_inf_nan=False)]

RecordTime = Annotated[float, Field(ge=0, le=2.5e11, allow_inf_nan=False)]
"""A time that a calendar has: before the year 9892."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Moment):
    """A line of models.jsonl: one model's last second and its promise."""

    at: RecordTime
    sla: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    set_point: Finite
    statistic: Statistic
    budget: Annotated[float, Field(gt=0, le=0.5)] | None = None


@dataclass(slots=True, kw_only=True)
class Told(Decision):
    """A line of decisions-WORKER.jsonl: a decision with its time, worker, law and control period.

    Records from before periods could end early have no `period`.
    """

    at: RecordTime
    worker: str
    law: str = ""
    period: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


_LOOK = TypeAdapter(Look)
_TOLD = TypeAdapter(Told)
T = TypeVar("T")

_COUNTS = (
    "arrivals",
    "answered_cpu",
    "answered_gpu",
    "invalid",
    "late",
    "failed",
    "cancelled_late",
    "rejected_by_client",
)
_LOOKS = (
    "start",
    "at",
    "sla",
    "set_point",
    "response_time",
    "mean_time",
    "oldest_age",
    "waiting",
    "in_flight",
    "refused",
    *_COUNTS,
)
_CORES = ("wanted", "allocation", "applied", "used", "total", "capacity")
_DECISIONS = ("at", "dt", "period", *_CORES, "limit", "file", "place")


class Track:
    """Records about one thing, as columns in the order of time."""

    def __init__(self, name: str, columns: Iterable[str]) -> None:
        self.name = name
        self._table = ColumnBuilder(columns)

    @cached_property
    def columns(self) -> dict[str, Numbers]:
        """The records in order; read it only after all lines are added."""
        return self._table.sorted("at")

    def __getitem__(self, name: str) -> Numbers:
        return self.columns[name]


class ModelTrack(Track):
    """Samples of one model, one a second. `refused` is by reason; times are in seconds."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _LOOKS)
        self.statistic = Statistic.MEAN
        self.budget: float | None = None
        self.refused: Counter[str] = Counter()

    def add(self, look: Look) -> None:
        """Add one line."""
        self.statistic = look.statistic
        # Records from before budgets existed have only a statistic.
        self.budget = BUDGETS.get(look.statistic) if look.budget is None else look.budget
        self.refused.update(look.rejected)
        self._table.add(
            {
                **{name: getattr(look, name) for name in _LOOKS if name != "start"},
                "start": look.at - look.seconds,
            }
        )

    @cached_property
    def broken(self) -> Numbers:
        """Requests per second that were late, refused, failed or given up when too late."""
        return np.asarray(self["late"] + self._unanswered)

    @cached_property
    def ended(self) -> Numbers:
        """Requests per second that ended in a way that counts for the promise."""
        answered = self["answered_cpu"] + self["answered_gpu"] - self["invalid"]
        return np.asarray(answered + self._unanswered)

    @property
    def counted_refusals(self) -> Numbers:
        """Refusals per second that count for the promise."""
        return np.asarray(self["refused"] - self["rejected_by_client"])

    @property
    def _unanswered(self) -> Numbers:
        """Requests per second that broke the promise without an answer."""
        return np.asarray(self.counted_refusals + self["failed"] + self["cancelled_late"])

    @cached_property
    def response(self) -> Numbers:
        """The promise's statistic, or the age of the oldest request if higher; NaN: neither."""
        inside = np.where(self["waiting"] + self["in_flight"] > 0, self["oldest_age"], np.nan)
        return np.asarray(np.fmax(self["response_time"], inside))

    @cached_property
    def gaps(self) -> list[Span]:
        """Time spans without samples."""
        return gaps(self["start"], self["at"], GAP)


class ExecutableTrack(Track):
    """Decisions about one executable; `place` is the offset of each in its `file`."""

    def __init__(self, name: str, model: str, worker: str) -> None:
        super().__init__(name, _DECISIONS)
        self.model = model
        self.worker = worker

    def add(self, told: Told, file: int, place: int) -> None:
        """Add one line."""
        numbers = {name: getattr(told, name) for name in _CORES}
        self._table.add(
            {
                **numbers,
                "at": told.at,
                "dt": told.dt,
                "period": told.period,
                "limit": LIMITS.index(limit(told)),
                "file": file,
                "place": place,
            }
        )

    @cached_property
    def end(self) -> Numbers:
        """End of each decision's validity, as far as it is known."""
        return until_next(self["at"], self.period)

    @cached_property
    def period(self) -> float:
        """The control period in seconds; a queue that outgrows its cores ends one early."""
        known = self["period"][~np.isnan(self["period"])]
        return float(known[-1]) if len(known) else typical(self["at"])

    @cached_property
    def gaps(self) -> list[Span]:
        """Time spans without decisions."""
        return gaps(self["at"], self.end, self.period)

    @property
    def allocated_seconds(self) -> float:
        """Core-seconds that were allocated."""
        return self._integral(self["allocation"])

    @property
    def applied_seconds(self) -> float:
        """Core-seconds that were applied, or used where a period exceeded that.

        The usage of the last period is not known.
        """
        known = self.end[:-1] == self["at"][1:]
        used = np.where(known, self._used[1:], math.nan)
        return self._integral(np.fmax(self["applied"], np.append(used, math.nan)))

    def _integral(self, cores: Numbers) -> float:
        """Return core-seconds over the recorded time."""
        return float(np.nansum(cores * (self.end - self["at"])))

    @property
    def used_seconds(self) -> float:
        """Core-seconds used; each decision records the usage since the previous one.

        After a gap that is a mean over the gap; only one period of it counts, as for applied cores.
        """
        return float(np.nansum(self._used * without_gaps(self["dt"], self.period)))

    @cached_property
    def _used(self) -> Numbers:
        """Average cores used before each decision; a reading covers decisions without one."""
        known = np.flatnonzero(~np.isnan(self["used"]))
        following = np.searchsorted(known, np.arange(len(self["used"])))
        return np.append(self["used"][known], math.nan)[following]


class RecordedRun:
    """A recorded run, read from a directory. `notes` describe missing records in words."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.models: dict[str, ModelTrack] = {}
        self.executables: dict[str, ExecutableTrack] = {}
        self.laws: list[str] = []
        self.notes: list[str] = []
        self.files: list[Path] = []

    @cached_property
    def whole(self) -> Span:
        """Time span from the first to the last record."""
        starts = [track["start"][0] for track in self.models.values()]
        ends = [track["at"][-1] for track in self.models.values()]
        starts += [track["at"][0] for track in self.executables.values()]
        ends += [track.end[-1] for track in self.executables.values()]
        return Span(float(min(starts)), float(max(ends)))

    @property
    def virtual(self) -> bool:
        """True if the run was simulated."""
        return self.whole.start < decision_log.EPOCH

    @property
    def workers(self) -> dict[str, list[ExecutableTrack]]:
        """The executables of each worker."""
        found: dict[str, list[ExecutableTrack]] = {}
        for track in self.executables.values():
            found.setdefault(track.worker, []).append(track)
        return found

    def serving(self, model: str) -> list[ExecutableTrack]:
        """Return the executables of a model whose cores are controlled."""
        return [track for track in self.executables.values() if track.model == model]

    def decision(self, track: ExecutableTrack, i: int) -> Decision | None:
        """Return a decision as it was written; None if its file has changed since."""
        try:
            with self.files[int(track["file"][i])].open("rb") as file:
                file.seek(int(track["place"][i]))
                told = _TOLD.validate_json(file.readline())
        except (OSError, ValidationError):
            return None
        same = told.executable == track.name and told.at == track["at"][i]
        return told if same else None


def read(directory: Path) -> RecordedRun:
    """Read the run in a directory; raise `DecisionLogError` naming the file and the line."""
    run = RecordedRun(directory)
    if not directory.is_dir():
        why = "it must be a directory" if directory.exists() else "no such directory"
        raise DecisionLogError(f"{directory}: {why}")
    try:
        _read_models(run)
        _read_decisions(run)
    except OSError as error:
        raise DecisionLogError(
            f"{error.filename or directory}: cannot be read: {in_words(error)}"
        ) from error
    if not run.models and not run.executables:
        raise DecisionLogError(
            f"{directory}: no decision log: no record in models.jsonl or decisions-WORKER.jsonl"
        )
    return run


def _read_models(run: RecordedRun) -> None:
    for file in decision_log.files(run.directory, decision_log.MODELS):
        for look, _ in _records(run, file, _LOOK, "a second of a model"):
            run.models.setdefault(look.model, ModelTrack(look.model)).add(look)
    if not run.models:
        run.notes.append("models.jsonl has no record: nothing is known of the requests.")


def _read_decisions(run: RecordedRun) -> None:
    names = f"{decision_log.decisions('*')}.jsonl"
    # NAME+1.jsonl, which is older than NAME.jsonl, also sorts before it.
    for file in sorted(run.directory.glob(names)):
        run.files.append(file)
        number = len(run.files) - 1
        for told, place in _records(run, file, _TOLD, "a decision"):
            if told.law and told.law not in run.laws:
                run.laws.append(told.law)
            key = f"{told.worker}/{told.executable}"
            track = run.executables.get(key)
            if track is None:
                track = ExecutableTrack(told.executable, told.model, told.worker)
                run.executables[key] = track
            track.add(told, number, place)
    if not run.executables:
        run.notes.append(
            "There is no decisions-WORKER.jsonl with a record: nothing is known of the cores."
        )


def _records(
    run: RecordedRun, path: Path, adapter: TypeAdapter[T], what: str
) -> Iterator[tuple[T, int]]:
    """Yield the records of a file with their offsets; note truncated lines."""
    if not path.exists():
        return
    if not path.is_file():  # a named pipe would be waited for
        raise DecisionLogError(f"{path}: must be a file")
    cut: list[int] = []
    place = good = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            begin, place = place, place + len(line)
            try:
                record = adapter.validate_json(line)
            except ValidationError as error:
                fault = error.errors(include_url=False, include_input=False)[0]
                if fault["type"] == "json_invalid" and (good or not line.endswith(b"\n")):
                    cut.append(number)
                    continue
                said = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
                raise DecisionLogError(f"{path}:{number}: not {what}: {said}") from error
            good += 1
            yield record, begin
    if cut:
        lines = (
            f"line {cut[0]} is" if len(cut) == 1 else f"{len(cut)} lines, the first {cut[0]}, are"
        )
        run.notes.append(
            f"{path.name}: {lines} cut off and left out: a program was killed while it wrote, "
            "or it is still writing."
        )
