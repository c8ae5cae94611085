"""History of the last 15 minutes of every model, one sample a second, in bounded memory."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

LENGTH = 900
"""Samples per model: 15 minutes at one a second."""

TOTAL = 500_000
"""Most samples of all models together, about 25 MB: with thousands of models it spans less time."""

WORST = ("response_time", "waiting", "oldest_age", "throttled")
"""Columns whose samples are merged by their maximum; the others are merged by their mean."""

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
"""Columns in seconds, counts per second, cores and shares; NaN where nothing was measured."""

Series = dict[str, npt.NDArray[np.float32]]


class History:
    """Ring buffer of samples of all models at the same times: an array by column, model, index."""

    def __init__(self, length: int = LENGTH, total: int = TOTAL) -> None:
        self._most, self._total = length, total
        self._models: dict[str, int] = {}
        self._times = np.full(length, np.nan)
        self._data = np.full((len(COLUMNS), 0, length), np.nan, np.float32)
        self._next = 0
        self._count = 0

    def add(self, at: float, samples: Mapping[str, Sequence[float | None]]) -> None:
        """Record one sample per model, in the order of `COLUMNS`; other models are dropped."""
        if list(samples) != list(self._models):
            self._fit(list(samples))
        place, length = self._next, len(self._times)
        self._times[place] = at
        if samples:
            self._data[:, :, place] = np.array(list(samples.values()), np.float32).T
        self._next = (place + 1) % length
        self._count = min(self._count + 1, length)

    def last(self, model: str, column: str, seconds: int, skip: int = 0) -> npt.NDArray[np.float32]:
        """Return up to `seconds` samples of a column, oldest first, without the last `skip`."""
        if model not in self._models:
            return np.empty(0, np.float32)
        places = self._places(seconds + skip)[: -skip or None]
        ring: npt.NDArray[np.float32] = self._data[COLUMNS.index(column), self._models[model]]
        return ring[places]

    def totals(self, column: str, seconds: int) -> dict[str, float]:
        """Return each model's sum of a column over the last seconds; unknown counts as 0."""
        recent = self._data[COLUMNS.index(column)][:, self._places(seconds)]
        return dict(zip(self._models, np.nansum(recent, axis=1).tolist(), strict=True))

    def series(self, model: str, every: int = 1) -> Series | None:
        """Return all columns, and the times as `at`, merging `every` recorded samples into one."""
        if model not in self._models:
            return None
        places = self._places(self._count - self._count % every)
        ring = self._data[:, self._models[model], :]
        blocks = ring[:, places].reshape(len(COLUMNS), -1, every)
        at = np.ascontiguousarray(self._times[places].reshape(-1, every)[:, -1])
        found: Series = {"at": at}
        for i, name in enumerate(COLUMNS):
            found[name] = _worst(blocks[i]) if name in WORST else _mean(blocks[i])
        return found

    @property
    def samples(self) -> int:
        """Return the number of samples of each model."""
        return self._count

    @property
    def models(self) -> Sequence[str]:
        """Return the models that have samples."""
        return list(self._models)

    def _places(self, newest: int) -> npt.NDArray[np.intp]:
        """Return the indices of the newest samples, oldest first."""
        newest = min(newest, self._count)
        return np.arange(self._next - newest, self._next) % len(self._times)

    def _fit(self, models: list[str]) -> None:
        """Reallocate for another set of models, keeping the samples of those that stay."""
        length = max(1, min(self._most, self._total // max(1, len(models))))
        places = self._places(length)
        count = len(places)
        times = np.full(length, np.nan)
        times[:count] = self._times[places]
        data = np.full((len(COLUMNS), len(models), length), np.nan, np.float32)
        for i, model in enumerate(models):
            if model in self._models:
                data[:, i, :count] = self._data[:, self._models[model], :][:, places]
        self._times, self._data = times, data
        self._models = {model: i for i, model in enumerate(models)}
        self._count, self._next = count, count % length


def _worst(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = np.fmax.reduce(blocks, axis=1)
    return found


def _mean(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    known = ~np.isnan(blocks)
    counts = known.sum(axis=1)
    sums = np.where(known, blocks, 0).sum(axis=1)
    found: npt.NDArray[np.float32] = np.where(counts, sums / np.maximum(counts, 1), np.nan)
    return found.astype(np.float32)
