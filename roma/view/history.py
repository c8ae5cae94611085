"""The last 15 minutes of every model, one sample a second, in memory that does not grow."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

LENGTH = 900
"""Samples per model: 15 minutes at one a second."""

TOTAL = 500_000
"""Samples of all models together, about 25 MB: a fleet of thousands keeps minutes, not hours."""

WORST = ("response_time", "waiting", "oldest_age", "throttled")
"""Where several samples become one, their worst stands for them; of the others, the mean."""

COLUMNS = (
    *WORST,
    "arrivals",
    "on_gpu",
    "ended",
    "broken",
    "demanded",
    "allocated",
    "applied",
    "used",
)
"""Seconds, counts per second, cores, shares; NaN where there was nothing to measure."""

Series = dict[str, npt.NDArray[np.float32]]


class History:
    """A ring of samples per model, all with the same times."""

    def __init__(self, length: int = LENGTH, total: int = TOTAL) -> None:
        self._most, self._total = length, total
        self._length = length
        self._times = np.full(length, np.nan)
        self._models: dict[str, npt.NDArray[np.float32]] = {}
        self._next = 0
        self._count = 0

    def add(self, at: float, samples: Mapping[str, Sequence[float]]) -> None:
        """Record one sample per model, in the order of `COLUMNS`; others are forgotten."""
        self._fit(samples)
        place = self._next
        self._times[place] = at
        for model, sample in samples.items():
            self._models[model][:, place] = sample
        self._next = (place + 1) % self._length
        self._count = min(self._count + 1, self._length)

    def last(self, model: str, column: str, seconds: int, skip: int = 0) -> npt.NDArray[np.float32]:
        """Return up to `seconds` samples of one column, oldest first, but for the last `skip`."""
        ring = self._models.get(model)
        if ring is None:
            return np.empty(0, np.float32)
        places = self._places(seconds + skip)
        found: npt.NDArray[np.float32] = ring[COLUMNS.index(column), places[: -skip or None]]
        return found

    def series(self, model: str, every: int = 1) -> Series | None:
        """Return all columns, and the times as `at`, one sample for `every` recorded ones."""
        ring = self._models.get(model)
        if ring is None:
            return None
        places = self._places(self._count - self._count % every)
        blocks = ring[:, places].reshape(len(COLUMNS), -1, every)
        at = np.ascontiguousarray(self._times[places].reshape(-1, every)[:, -1])
        found: Series = {"at": at}
        for i, name in enumerate(COLUMNS):
            found[name] = _worst(blocks[i]) if name in WORST else _mean(blocks[i])
        return found

    @property
    def samples(self) -> int:
        """Return how many samples there are of each model."""
        return self._count

    @property
    def models(self) -> Iterable[str]:
        """Return the models that have samples."""
        return self._models

    def _places(self, newest: int) -> npt.NDArray[np.intp]:
        """Return where the newest samples are, oldest first."""
        newest = min(newest, self._count)
        return np.arange(self._next - newest, self._next) % self._length

    def _fit(self, samples: Mapping[str, Sequence[float]]) -> None:
        if samples.keys() == self._models.keys():
            return
        length = max(1, min(self._most, self._total // max(1, len(samples))))
        places = self._places(min(self._count, length))
        kept = {model: self._models.get(model) for model in samples}
        times = np.full(length, np.nan)
        times[: len(places)] = self._times[places]
        self._models = {}
        for model, ring in kept.items():
            fresh = np.full((len(COLUMNS), length), np.nan, np.float32)
            if ring is not None:
                fresh[:, : len(places)] = ring[:, places]
            self._models[model] = fresh
        self._times, self._length = times, length
        self._count, self._next = len(places), len(places) % length


def _worst(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = np.fmax.reduce(blocks, axis=1)
    return found


def _mean(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    known = ~np.isnan(blocks)
    counts = known.sum(axis=1)
    sums = np.where(known, blocks, 0).sum(axis=1)
    found: npt.NDArray[np.float32] = np.where(counts, sums / np.maximum(counts, 1), np.nan)
    return found.astype(np.float32)
