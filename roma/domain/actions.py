"""Actions: what a dispatcher may ask of a planned device, and the outcomes it gets back.

A device that does one thing at a time is predictable as long as only one program schedules it. So
the device schedules nothing: every action carries the window in which it may begin, and one that
cannot begin in time is skipped (Clockwork, §4.4). Times are points on the device's own clock, in
seconds; a sender on another host corrects for the difference between the clocks.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

BATCHES = (1, 2, 4, 8, 16)
"""Default batch sizes that a device profiles and runs, smallest first (§5.1)."""

MOST_BATCH = 64
"""The largest batch size that a device can be configured for."""

PAGE = 16 * 2**20
"""Bytes of a page. A model's weights fill whole pages, so one count describes all of a device's
memory (§5.2)."""


def pages_of(weights: float) -> int:
    """Return the pages that weights of this many bytes fill; at least one."""
    return max(1, math.ceil(weights / PAGE))


class ActionStatus(StrEnum):
    """Status with which an action ended."""

    OK = "ok"
    MISSED = "missed"
    """It could not begin before `latest`; nothing was done."""
    NOT_LOADED = "not_loaded"
    """Its model's weights are not on the device; nothing was done."""
    NO_PAGES = "no_pages"
    """The device has too few free pages for the weights; nothing was done."""
    ENDING = "ending"
    """The device server is shutting down; nothing was done."""
    BUSY = "busy"
    """The model is in use or being loaded; nothing was done."""
    INVALID = "invalid"
    """The inputs do not fit the model."""
    ERROR = "error"
    """It began and failed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Pieces `begin` to `end` (excluded) of the `total` that a model's execution consists of.

    Its results stay on the device until the next segment runs, unless it is the last (Abacus,
    §6.1).
    """

    begin: int
    end: int
    total: int

    @property
    def share(self) -> float:
        """The share of the model's execution."""
        return (self.end - self.begin) / self.total

    @property
    def is_last(self) -> bool:
        """True if the model's outputs are known after it."""
        return self.end == self.total


@dataclass(frozen=True, slots=True)
class ExecutionPart:
    """Execution of a batch that is not of the whole model, or not alone on its device.

    `continues` is the number of the execution whose segment ended where this one begins, 0 for the
    first. `with_next`: it begins together with the one that is sent next, and so on.
    """

    segment: Segment | None = None
    continues: int = 0
    with_next: bool = False

    @property
    def is_last(self) -> bool:
        """True if the model's outputs are known after it."""
        return self.segment is None or self.segment.is_last


@dataclass(frozen=True, slots=True)
class Infer:
    """Run one batch of `batch` examples; it may begin from `earliest` until `latest`.

    `part` is None for a whole model that runs alone. Those that begin together have one window.
    """

    id: int
    model: str
    batch: int
    earliest: float
    latest: float
    part: ExecutionPart | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Copy a model's weights to the device; it may begin from `earliest` until `latest`."""

    id: int
    model: str
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Unload:
    """Free a model's pages immediately."""

    id: int
    model: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the results of a segment, the action `infer`, which nothing continues."""

    id: int
    model: str
    infer: int


Action = Infer | Load | Unload | Discard


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """Outcome of an action. `began` and `ended` are the same point if it never began."""

    id: int
    status: ActionStatus
    began: float
    ended: float
    detail: str = ""

    @property
    def duration(self) -> float:
        """Seconds on the device."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    """A model as a device measured it: `load` and `executions` (by batch size) in seconds.

    `any_batch`: it runs batches of every size up to the largest of these, not only of these sizes.
    `segments` is the number of pieces in which it can be executed.
    """

    pages: int
    load: float
    executions: Mapping[int, float]
    any_batch: bool = False
    segments: int = 1

    def seconds(self, batch: int) -> float:
        """Return the seconds of a batch; sizes that were not measured are interpolated linearly.

        Raises KeyError beyond the largest measured size.
        """
        if batch in self.executions:
            return self.executions[batch]
        sizes = sorted(self.executions)
        i = bisect_left(sizes, batch)
        if i == len(sizes):
            raise KeyError(batch)
        high = sizes[i]
        low = sizes[i - 1] if i else 0
        before = self.executions[low] if i else 0.0
        return before + (self.executions[high] - before) * (batch - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a device: its pages, its models, and the models that are loaded now.

    `together` is the number of batches that it can execute at once.
    """

    pages: int
    models: Mapping[str, ModelCapabilities]
    loaded: tuple[str, ...] = ()
    together: int = 1
