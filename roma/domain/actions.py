"""Actions: what a dispatcher may ask of a planned device, and what it is told of them.

A device that works alone on one thing at a time is predictable as long as nobody else chooses for
it. So its worker chooses nothing: every action says when it may begin, and one that cannot begin
in time is not begun at all (Clockwork, §4.4). Times are points on the worker's own clock, in
seconds; whoever sends actions from another host knows how the clocks differ.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BATCHES = (1, 2, 4, 8, 16)
"""Batch sizes that are profiled and run unless a worker is told others, smallest first (§5.1)."""

MOST_BATCH = 64
"""The largest batch size that a worker can be told."""

PAGE = 16 * 2**20
"""Bytes of a page. A model's weights fill whole pages, so that a count says all there is to know
of a device's memory (§5.2)."""


def pages_of(weights: float) -> int:
    """Return the pages that weights of this many bytes fill; a model has one at least."""
    return max(1, math.ceil(weights / PAGE))


class ActionStatus(StrEnum):
    """How an action ended."""

    OK = "ok"
    MISSED = "missed"
    """It could not begin before `latest`; nothing was done."""
    NOT_LOADED = "not_loaded"
    """Its model's weights are not on the device; nothing was done."""
    NO_PAGES = "no_pages"
    """The device has too few free pages for the weights; nothing was done."""
    ENDING = "ending"
    """The worker is about to end; nothing was done."""
    BUSY = "busy"
    """The model is being used, or loaded; nothing was done."""
    INVALID = "invalid"
    """The inputs do not fit the model."""
    ERROR = "error"
    """It began and failed."""


@dataclass(frozen=True, slots=True)
class Infer:
    """Run one batch of `batch` examples; it may begin from `earliest` until `latest`."""

    id: int
    model: str
    batch: int
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Load:
    """Copy a model's weights to the device; it may begin from `earliest` until `latest`."""

    id: int
    model: str
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Unload:
    """Free a model's pages, at once."""

    id: int
    model: str


Action = Infer | Load | Unload


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What became of an action: when it began and ended; both are its end if it never began."""

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
    """A model as a worker measured it: `load` and `executions` (by batch size) in seconds.

    `any_batch`: it runs batches of every size up to the largest of these, not of these alone.
    """

    pages: int
    load: float
    executions: Mapping[int, float]
    any_batch: bool = False

    def seconds(self, batch: int) -> float:
        """Return the seconds of a batch: on the line between the sizes around it, if not of them.

        Raises KeyError beyond the largest one.
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
    """What a device can do: its pages, its models, and which of them are loaded now."""

    pages: int
    models: Mapping[str, ModelCapabilities]
    loaded: tuple[str, ...] = field(default=())
