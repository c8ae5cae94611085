"""The dispatcher's view of a planned device (Clockwork, §5.3): memory, profiles, running actions.

The device chooses nothing, so this state is exact: which models its memory holds, how long an
action takes, and when the device will have finished its actions. Times are seconds on the core's
clock, memory is counted in pages.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from typing import Final

from roma.domain.actions import Capabilities
from roma.domain.events import LoadEnded

SAMPLES: Final = 10
"""Number of measurements that predict the next one, as in the paper."""

OUTLIER: Final = 2.0
"""Multiple of the median from which a measurement is an outlier, not the model's speed. The
prediction is the largest of ten, so a single outlier could keep a batch size from ever running, and
thus from being measured, again."""

STALE_PREDICTION_AGE: Final = 10.0
"""Seconds after which an unconfirmed prediction no longer counts against a model."""

IDLE_PREDICTION_AGE: Final = 2.0
"""Seconds after which an idle model is assumed to be as slow as the one that runs. A try costs one
batch; until then a variant that was measured on a busy machine is not chosen at all."""


RETRY: Final = 0.1
MAX_LOAD_RETRY: Final = 60.0
"""Longest pause in seconds before a failed LOAD is retried; the pause doubles each time. A device
that is out of memory reports it within a millisecond: without a pause it would do nothing else."""


class ActionTimes:
    """The duration of an action: `expected` is the p99 of its last measurements without outliers.

    Of ten measurements the p99 is the largest: an action that ends early costs less than one that
    ends late. The first ten are copies of a guess; five measurements far above it are believed.
    `at` is the time of the last measurement.
    """

    __slots__ = ("_oldest", "_order", "_recent", "at")

    def __init__(self, guess: float, now: float) -> None:
        self._recent = [guess] * SAMPLES
        self._order: list[float] | None = None
        """The same measurements, sorted; None until they are read after a new measurement."""
        self._oldest = 0
        self.at = now

    @property
    def typical(self) -> float:
        """The median of the last measurements."""
        return self._sorted()[SAMPLES // 2]

    @property
    def expected(self) -> float:
        """Conservative prediction of the next duration."""
        order = self._sorted()
        largest, limit = order[-1], OUTLIER * order[SAMPLES // 2]
        return largest if largest <= limit else order[bisect_right(order, limit) - 1]

    def record(self, duration: float, now: float) -> None:
        """Record a measurement."""
        self._recent[self._oldest] = duration
        self._order = None
        self._oldest = self._oldest + 1 if self._oldest + 1 < SAMPLES else 0
        self.at = now

    def _sorted(self) -> list[float]:
        order = self._order
        if order is None:
            order = self._order = sorted(self._recent)
        return order


class ActionQueue:
    """Actions of one kind on a device, which runs one at a time, in order."""

    __slots__ = ("_began", "_expected", "_pending")

    def __init__(self) -> None:
        self._pending: deque[tuple[int, float]] = deque()
        """Number and expected seconds of each action."""
        self._expected = 0.0
        self._began = 0.0
        """The time when the first of them began, as far as is known."""

    def __len__(self) -> int:
        return len(self._pending)

    def free_at(self, now: float) -> float:
        """Return when all actions in the queue are predicted to have ended.

        An action that takes longer than predicted is assumed to need as long again as it is late: a
        device that hangs gets nothing more.
        """
        pending = self._pending
        if not pending:
            return now
        first = pending[0][1]
        ends = self._began + first
        return (ends if ends > now else 2 * now - ends) + self._expected - first

    def end_of(self, action: int, now: float) -> float:
        """Return when an action is predicted to have ended."""
        ends = now
        for i, (number, expected) in enumerate(self._pending):
            ends = max(self._began + expected, now) if i == 0 else ends + expected
            if number == action:
                break
        return ends

    def add(self, action: int, expected: float, now: float) -> None:
        """Record that an action was sent to the device."""
        if not self._pending:
            self._began, self._expected = now, 0.0
        self._pending.append((action, expected))
        self._expected += expected

    def end(self, action: int, now: float) -> None:
        """Record that an action ended or was skipped."""
        pending = self._pending
        for i, (number, expected) in enumerate(pending):  # the first, unless results overtook
            if number == action:
                del pending[i]
                if expected and i < len(pending) and not pending[i][1]:
                    # One that began with it: their time was counted with the first of them.
                    pending[i] = pending[i][0], expected
                    return
                self._expected -= expected
                if i == 0:
                    self._began = now
                return


class Held:
    """A model in a device's memory: `uses` counts its actions that have not ended.

    `load` is the number of the LOAD in progress, 0 once it has ended.
    """

    __slots__ = ("load", "pages", "uses")

    def __init__(self, pages: int, load: int) -> None:
        self.pages = pages
        self.load = load
        self.uses = 0


class DeviceState:
    """A device: `held` are the models in its memory, the least recently used first."""

    __slots__ = (
        "_executions",
        "_failed",
        "_first_executions",
        "_first_loads",
        "_latest",
        "_loads",
        "_paces",
        "_sizes",
        "_times",
        "free",
        "held",
        "infers",
        "loads",
        "offer",
    )

    def __init__(self, offer: Capabilities) -> None:
        self.offer = offer
        self.infers, self.loads = ActionQueue(), ActionQueue()
        self.held: OrderedDict[str, Held] = OrderedDict()
        self.free = offer.pages
        # Cached values of the offer: they are read several times per request.
        self._first_executions = {name: m.executions for name, m in offer.models.items()}
        self._first_loads = {name: m.load for name, m in offer.models.items()}
        self._sizes = {name: tuple(sorted(m.executions)) for name, m in offer.models.items()}
        # Created on demand: of 4,000 models on 24 devices most run on few of them.
        self._times: dict[str, dict[int, float]] = {}
        self._executions: dict[str, dict[int, ActionTimes]] = {}
        self._paces: dict[str, ActionTimes] = {}
        """Ratio of recent batch times to the offered ones, by model that ran."""
        self._latest: ActionTimes | None = None
        """The pace of the model that ran last."""
        self._loads: dict[str, ActionTimes] = {}
        self._failed: dict[str, tuple[float, float]] = {}
        """End and length of the pause, by model whose last LOAD failed."""
        for model in offer.loaded:
            self._hold(model, 0)

    def __repr__(self) -> str:
        return (
            f"<DeviceState: {len(self.held)} models, {self.free} of {self.offer.pages} pages free, "
            f"{len(self.infers)} INFER and {len(self.loads)} LOAD pending>"
        )

    # Predictions

    def execution(self, model: str, batch: int) -> float:
        """Return the predicted seconds of a batch."""
        times = self._times.get(model)
        seconds = None if times is None else times.get(batch)
        return self._guess(model, batch) if seconds is None else seconds

    def times(self, model: str) -> dict[int, float]:
        """Return the predicted seconds by batch size, in a table that measurements change."""
        times = self._times.get(model)
        if times is None:
            times = self._times[model] = dict(self._first_executions[model])
        return times

    def typical(self, model: str, batch: int) -> float:
        """Return the usual seconds of a batch; `execution` is the conservative prediction."""
        return self._guess(model, batch) * self.factor(model)

    def factor(self, model: str) -> float:
        """Return the usual ratio of a model's batch times to the offered ones.

        One number holds for all sizes: where any size runs, most of them run rarely, and the
        prediction for one must not contradict what is known of its neighbours. A model that has not
        run lately is assumed to be as slow as the one that has. Otherwise a model that was slow
        once, and is therefore not chosen, would never be measured again.
        """
        pace, latest = self._paces.get(model), self._latest
        if pace is None or latest is None:
            return 1.0
        return latest.typical if latest.at - pace.at > IDLE_PREDICTION_AGE else pace.typical

    def size_for(self, model: str, count: int) -> int:
        """Return the batch size for so many requests; at most the largest there is."""
        sizes = self._sizes[model]
        if count >= sizes[-1]:
            return sizes[-1]
        if self.offer.models[model].any_batch:
            return count
        return sizes[bisect_left(sizes, count)]

    def sizes(self, model: str) -> tuple[int, ...]:
        """Return the batch sizes of a model, the smallest first."""
        return self._sizes[model]

    def work(self, model: str, requests: int) -> float:
        """Return the predicted seconds of so many requests, in batches as large as they fill."""
        if requests <= 1:
            return requests * self.execution(model, 1)
        sizes = self._sizes[model]
        batch = sizes[bisect_right(sizes, requests) - 1]
        return requests * self.execution(model, batch) / batch

    def loading(self, model: str) -> float:
        """Return the predicted seconds of a LOAD."""
        profile = self._loads.get(model)
        return self._first_loads[model] if profile is None else profile.expected

    def cold(self, model: str) -> float:
        """Return the predicted seconds of a LOAD and one request."""
        return self.loading(model) + self.execution(model, 1)

    def ready_at(self, model: str, now: float) -> float:
        """Return when a model in this device's memory can run."""
        load = self.held[model].load
        return self.loads.end_of(load, now) if load else now

    # Memory

    def load_pause(self, model: str) -> float:
        """Return until when a LOAD is not retried because the last one failed."""
        failed = self._failed.get(model)
        return 0.0 if failed is None else failed[0]

    def has(self, model: str) -> bool:
        """Return True if a model is loaded and can run now."""
        held = self.held.get(model)
        return held is not None and not held.load

    def room_for(self, model: str) -> int:
        """Return the pages that are free once a model is loaded; negative if it does not fit."""
        return self.free - self.offer.models[model].pages

    def victim(self) -> str | None:
        """Return the least recently used model among those that nothing uses."""
        for model, held in self.held.items():
            if not held.uses and not held.load:
                return model
        return None

    def can_hold(self, model: str) -> bool:
        """Return True if a model fits, or would without some of those that nothing uses."""
        room = self.room_for(model)
        for held in self.held.values():
            if room >= 0:
                break
            if not held.uses and not held.load:
                room += held.pages
        return room >= 0

    def unload(self, model: str) -> None:
        """Record that the unload of a model was requested."""
        self.free += self.held.pop(model).pages

    def _guess(self, model: str, batch: int) -> float:
        """Return the offered time of a batch."""
        seconds = self._first_executions[model].get(batch)
        return self.offer.models[model].seconds(batch) if seconds is None else seconds

    def _hold(self, model: str, load: int) -> None:
        held = self.held[model] = Held(self.offer.models[model].pages, load)
        self.free -= held.pages
        assert self.free >= 0, f"{model} does not fit: {self!r}"

    # Actions

    def begin_load(self, load: int, model: str, now: float) -> None:
        """Record that a LOAD was sent to the device."""
        self._hold(model, load)
        self.loads.add(load, self.loading(model), now)

    def end_load(self, load: int, model: str, ended: LoadEnded, now: float) -> None:
        """Record that a LOAD ended."""
        self.loads.end(load, now)
        if not ended.is_loaded:
            self.free += self.held.pop(model).pages
            if not ended.is_missed:
                _, last = self._failed.get(model, (0.0, RETRY / 2))
                wait = min(2 * last, MAX_LOAD_RETRY)
                self._failed[model] = now + wait, wait
            return
        self._failed.pop(model, None)
        self.held[model].load = 0
        self.held.move_to_end(model)
        if ended.duration is not None:
            profile = self._loads.get(model)
            if profile is None:
                profile = self._loads[model] = ActionTimes(self._first_loads[model], now)
            profile.record(ended.duration, now)

    def hold(self, model: str) -> None:
        """Keep a model in memory until `release`: what a segment left needs it."""
        self.held[model].uses += 1

    def release(self, model: str) -> None:
        """Undo a `hold`."""
        self.held[model].uses -= 1

    def begin(
        self, execution: int, model: str, batch: int, now: float, expected: float | None = None
    ) -> None:
        """Record that an INFER was sent to the device; `expected` seconds if it runs otherwise."""
        self.held[model].uses += 1
        self.held.move_to_end(model)
        seconds = self.execution(model, batch) if expected is None else expected
        self.infers.add(execution, seconds, now)

    def end(
        self, execution: int, model: str, batch: int, now: float, duration: float | None
    ) -> None:
        """Record that an INFER ended; `duration` is None if it does not measure the model."""
        self.infers.end(execution, now)
        self.held[model].uses -= 1
        if duration is None:
            return
        measured = self._executions.get(model)
        if measured is None:
            measured = self._executions[model] = {}
        profile = measured.get(batch)
        if profile is None:
            guess = self._first_executions[model].get(batch) or self.typical(model, batch)
            profile = measured[batch] = ActionTimes(guess, now)
        profile.record(duration, now)
        times, guess = self.times(model), self._guess(model, batch)
        expected = times[batch] = profile.expected
        self._keep_pace(model, duration / guess, now)
        if len(measured) > 1:
            # Sizes whose prediction is too long for them to be tried share what this size shows.
            for size, other in measured.items():
                if now - other.at > STALE_PREDICTION_AGE:
                    times[size] = self._guess(model, size) * expected / guess
                    measured[size] = ActionTimes(times[size], now)

    def _keep_pace(self, model: str, ratio: float, now: float) -> None:
        pace = self._paces.get(model)
        if pace is None:
            pace = self._paces[model] = ActionTimes(1.0, now)
        elif now - pace.at > IDLE_PREDICTION_AGE:
            pace = self._paces[model] = ActionTimes(ratio, now)
        pace.record(ratio, now)
        self._latest = pace

    def doubt(self, model: str, now: float) -> bool:
        """Forget a prediction that refuses a model's requests, if nothing confirmed it for long.

        Return True if there was one.
        """
        measured, load = self._executions.get(model), self._loads.get(model)
        is_old = load is not None and now - load.at > STALE_PREDICTION_AGE
        if is_old:
            del self._loads[model]
        if measured and all(
            now - profile.at > STALE_PREDICTION_AGE for profile in measured.values()
        ):
            del self._executions[model]
            self._paces.pop(model, None)
            self.times(model).update(self._first_executions[model])
            return True
        return is_old
