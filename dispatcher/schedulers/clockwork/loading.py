"""What `clockwork` keeps of models and planned devices, and which model a device should load.

    d_m      demand: estimated seconds of a model's waiting requests that a LOAD can still help
    a_m,g    the part of it that falls to device g, which holds the model; 0 elsewhere
    ℓ_g      the sum of a_m,g over the models on g
    p_m      = d_m - Σ_g a_m,g · capacity / ℓ_g, the demand that is not met (Clockwork, §5.3)

`capacity` is the work that a device can do within the model's own deadline. A model's numbers are
renewed when its own requests or places change, never all of them: a change costs O(places of one
model), whatever the number of models and requests; of a cold one now and then O(devices).
"""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from dispatcher.schedulers.base import TICK
from dispatcher.state.device_state import DeviceState
from dispatcher.state.executors import Executor

NEVER: Final = float("inf")

UNBOUNDED: Final = 1 << 30
"""More requests than can wait."""

NO_REQUEST: Final = -1
"""No request has this number."""

FLOOR: Final = 1e-3
"""Seconds of load below which two devices are alike."""

COLD_MISS_PRIORITY: Final = 1e-9
"""Priority of a model whose last request came too late for any LOAD: the next one may be in time.
It takes free pages only."""

LOOKS: Final = 16
"""Most candidates that one decision looks at."""

SPARE_ENTRIES: Final = 16
"""Stale entries that are not worth a rebuild."""


class DeviceSchedule:
    """A planned device; `strategies` by batch size, by the time when they begin at latest."""

    __slots__ = ("device", "executor", "look_at", "name", "places", "strategies", "work")

    def __init__(self, executor: Executor, device: DeviceState) -> None:
        self.name = executor.spec.name
        self.executor = executor
        self.device = device
        self.places: dict[str, Replica] = {}
        self.strategies: dict[int, list[tuple[float, int, Replica]]] = {}
        self.work = 0.0
        """ℓ_g."""
        self.look_at = 0.0
        """When it is looked at next, if nothing happens before: it has enough to do until then."""


class ModelDemand:
    """One model; `due` are deadline and number of its waiting requests, the most urgent first."""

    __slots__ = (
        "capacity",
        "drop_at",
        "due",
        "head",
        "is_touched",
        "name",
        "places",
        "priority",
        "waiting",
    )

    def __init__(self, name: str, capacity: float) -> None:
        self.name = name
        self.capacity = capacity
        self.due: list[tuple[float, int]] = []
        self.places: list[Replica] = []
        self.priority = 0.0
        self.is_touched = False
        self.head = NO_REQUEST
        """The most urgent one when `drop_at` was found, if that has not to be found again."""
        self.drop_at = NEVER
        """When the most urgent request cannot be answered in time any more."""
        self.waiting = 0

    def benefit(self, end: float) -> int:
        """Return how many requests are in time if they end at `end`."""
        return len(self.due) - bisect_left(self.due, (end, 0))


class Replica:
    """A model on a device; `entered` says by batch size when its strategy must begin at latest."""

    __slots__ = (
        "entered",
        "gpu",
        "is_loaded",
        "model_demand",
        "next_size",
        "share",
        "sizes",
        "times",
    )

    def __init__(self, model_demand: ModelDemand, gpu: DeviceSchedule) -> None:
        self.model_demand = model_demand
        self.gpu = gpu
        self.share = 0.0
        """a_m,g."""
        self.entered: dict[int, float] = {}
        """An entry of the heap that says something else is a stale one."""
        self.next_size = 0
        """How many must wait before there is a size to enter."""
        self.is_loaded = False
        self.sizes = gpu.device.sizes(model_demand.name)
        self.times = gpu.device.times(model_demand.name)

    def forget(self, size: int) -> None:
        """Take that a batch size has no strategy any more."""
        del self.entered[size]
        self.next_size = 0


class Loading:
    """Which model to load next: the one with the most demand that is not met."""

    def __init__(self, gpus: Mapping[str, DeviceSchedule]) -> None:
        self._gpus = gpus
        self._candidates: list[tuple[float, int, ModelDemand]] = []
        self._sequence = 0
        self._live = 0
        self._coldest: dict[str, DeviceState] = {}
        """By model, as found last."""
        self.is_changed = False
        """Whether a model became a candidate since the last decision."""
        self.is_short = False
        """Whether one found no pages then, because all models there were in use."""
        self.paused_until = NEVER
        """When one can be tried again whose last LOAD had failed."""

    def rebuild(self, model_demand: ModelDemand, now: float) -> None:
        """Renew a model's demand, its shares and its priority."""
        places, demand = model_demand.places, self._demand(model_demand, now)
        priority = demand
        if len(places) == 1:  # as nearly always
            priority -= _allot_demand(places[0], demand)
        elif places:
            total = 0.0
            for place in places:
                total += _weight(place)
            for place in places:
                priority -= _allot_demand(place, demand * _weight(place) / total)
        elif model_demand.is_touched and demand == 0.0:
            priority = COLD_MISS_PRIORITY
        if len(model_demand.places) >= len(self._gpus):
            priority = 0.0  # it is everywhere: no candidate, that others may be looked at
        if priority != model_demand.priority:
            model_demand.priority = priority
            if priority > 0:
                self._enter(model_demand)

    def _demand(self, model_demand: ModelDemand, now: float) -> float:
        """Return d_m."""
        if not model_demand.due:
            return 0.0
        name, places = model_demand.name, model_demand.places
        device = places[0].gpu.device if places else self.fastest_cold_start(name)
        if device is None:
            return 0.0
        return device.work(name, model_demand.benefit(now + device.cold(name)))

    def fastest_cold_start(self, model: str) -> DeviceState | None:
        """Return the device that would answer a model first which none of them holds."""
        found = self._coldest.get(model)
        if found is None:
            least = NEVER
            for gpu in self._gpus.values():
                cold = gpu.device.cold(model)
                if cold < least:
                    found, least = gpu.device, cold
            if found is not None:
                self._coldest[model] = found
        return found

    def begins(self, model: str, device: DeviceState) -> None:
        """Take that a device will hold a model: it may load it slower afterwards."""
        if self._coldest.get(model) is device:
            del self._coldest[model]

    def ends(self, model: str, device: DeviceState) -> None:
        """Take that a device holds a model no longer: it may load it faster than before.

        Who was found has not held it meanwhile, and is as fast as it was.
        """
        found = self._coldest.get(model)
        if found is not None and device.cold(model) < found.cold(model):
            self._coldest[model] = device

    def forget(self, model: str | None = None) -> None:
        """Take that any device may load a model faster or slower than before, or all models."""
        if model is None:
            self._coldest.clear()
        else:
            self._coldest.pop(model, None)

    def _enter(self, model_demand: ModelDemand) -> None:
        self._sequence += 1
        self.is_changed = True
        heappush(self._candidates, (-model_demand.priority, self._sequence, model_demand))
        if len(self._candidates) > 2 * self._live + SPARE_ENTRIES:
            # Within a heap twice as large as what lives in it, a rebuild is paid for by what came.
            entries = {id(b): (key, n, b) for key, n, b in self._candidates if -key == b.priority}
            self._candidates = list(entries.values())
            heapify(self._candidates)
            self._live = len(self._candidates)

    def best(self) -> ModelDemand | None:
        """Return the model with the highest priority, if that is positive."""
        candidates = self._candidates
        while candidates:
            key, _, model_demand = candidates[0]
            if -key == model_demand.priority:
                return model_demand
            heappop(candidates)
        return None

    def pick(
        self, gpus: list[DeviceSchedule], now: float, latency: float
    ) -> tuple[DeviceSchedule, ModelDemand] | None:
        """Return where to load what; `gpus` can begin one, and the first of them does if it can."""
        skipped = []
        found = None
        self.is_short, self.paused_until = False, NEVER
        for _ in range(LOOKS):
            model_demand = self.best()
            if model_demand is None:
                break
            gpu = self._place_for(model_demand, gpus, now, latency)
            if gpu is not None:
                found = gpu, model_demand
                break
            skipped.append(heappop(self._candidates))
        for entry in skipped:
            heappush(self._candidates, entry)
            # Time alone may have taken its reason to be loaded from it (§5.3, iv).
            self.rebuild(entry[2], now)
        return found

    def _place_for(
        self, model_demand: ModelDemand, gpus: list[DeviceSchedule], now: float, latency: float
    ) -> DeviceSchedule | None:
        name = model_demand.name
        for gpu in gpus:
            device = gpu.device
            if name in gpu.places or device.offer.models[name].pages > device.offer.pages:
                continue
            pause = device.load_pause(name)
            if pause > now:
                self.paused_until = min(self.paused_until, pause)
                continue
            if model_demand.priority == COLD_MISS_PRIORITY:
                if device.room_for(name) >= 0:
                    return gpu
                continue
            ends = device.loads.free_at(now) + device.cold(name)
            if not model_demand.benefit(ends + 2 * latency + TICK):
                continue
            if device.room_for(name) >= 0 or device.victim() is not None:
                return gpu
            self.is_short = True
        return None


def _weight(place: Replica) -> float:
    """Return how much of its model's demand a place draws: the inverse of others' there."""
    others = place.gpu.work - place.share
    return 1 / others if others > FLOOR else 1 / FLOOR


def _allot_demand(place: Replica, share: float) -> float:
    """Give a place its share of its model's demand; return how much of that its device can meet."""
    gpu = place.gpu
    work = max(share, gpu.work + share - place.share)  # rounding takes a little now and then
    place.share, gpu.work = share, work
    return share * place.model_demand.capacity / work if share else 0.0
