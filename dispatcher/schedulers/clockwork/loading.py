"""Demand of models, load of planned devices, and the choice of the next model to load.

    d_m      demand: estimated seconds of a model's waiting requests that a LOAD can still help
    a_m,g    the part of it allotted to device g, which holds the model; 0 elsewhere
    ℓ_g      the sum of a_m,g over the models on g
    p_m      = d_m - Σ_g a_m,g · capacity / ℓ_g, the unmet demand (Clockwork, §5.3); where it is
               not positive, a tiny part of what exceeds `spread` of the sum

`capacity` is the work that a device can do within the model's own deadline. A model's numbers are
recomputed when its own requests or replicas change, never those of all models. A change costs
O(replicas of one model), whatever the number of models and requests; for a cold model occasionally
O(devices).
"""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from dispatcher.schedulers.base import TICK
from dispatcher.state.device_state import DeviceState
from dispatcher.state.executor import Executor

NEVER: Final = float("inf")

UNBOUNDED: Final = 1 << 30
"""A number of requests greater than any that can wait."""

NO_REQUEST: Final = -1
"""A number that no request has."""

FLOOR: Final = 1e-3
"""Seconds of load below which two devices count as equally loaded."""

FREE_PAGES_ONLY: Final = 1e-6
"""Priority below which a model takes no pages of others."""

COLD_MISS_PRIORITY: Final = 1e-7
"""Priority of a model whose last request came too late for a LOAD: the next may be in time."""

SPREAD_PRIORITY: Final = 1e-9
"""Priority, per second beyond `spread`, of a model that its devices can still serve in time: a LOAD
that begins when they no longer can ends too late for what waits. Below that of a cold miss."""

MOST_SECONDS: Final = 99.0
"""Most seconds that count for it."""

LOOKS: Final = 16
"""Most candidates that one decision examines."""

SPARE_ENTRIES: Final = 16
"""Number of stale entries that are not worth a rebuild."""


class DeviceSchedule:
    """A planned device; `strategies` by batch size, ordered by their latest start."""

    __slots__ = ("device", "executor", "look_at", "name", "replicas", "strategies", "work")

    def __init__(self, executor: Executor, device: DeviceState) -> None:
        self.name = executor.spec.name
        self.executor = executor
        self.device = device
        self.replicas: dict[str, Replica] = {}
        self.strategies: dict[int, list[tuple[float, int, Replica]]] = {}
        self.work = 0.0
        """ℓ_g."""
        self.look_at = 0.0
        """Time of the next check, if nothing happens before: until then the device has enough to
        do."""


class ModelDemand:
    """A model; `due` has deadline and number of its waiting requests, the most urgent first."""

    __slots__ = (
        "capacity",
        "drop_at",
        "due",
        "head",
        "is_touched",
        "name",
        "priority",
        "replicas",
        "waiting",
    )

    def __init__(self, name: str, capacity: float) -> None:
        self.name = name
        self.capacity = capacity
        self.due: list[tuple[float, int]] = []
        self.replicas: list[Replica] = []
        self.priority = 0.0
        self.is_touched = False
        self.head = NO_REQUEST
        """The most urgent request for which `drop_at` was computed; NO_REQUEST if it must be
        recomputed."""
        self.drop_at = NEVER
        """Time from which the most urgent request can no longer be answered in time."""
        self.waiting = 0

    def benefit(self, end: float) -> int:
        """Return how many requests are in time if they end at `end`."""
        return len(self.due) - bisect_left(self.due, (end, 0))


class Replica:
    """A model on a device; `entered` has the latest begin of the strategy for each batch size."""

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
        """An entry of the heap with a different time is stale."""
        self.next_size = 0
        """The number of waiting requests from which there is another size to enter."""
        self.is_loaded = False
        self.sizes = gpu.device.sizes(model_demand.name)
        self.times = gpu.device.times(model_demand.name)

    def forget(self, size: int) -> None:
        """Record that a batch size no longer has a strategy."""
        del self.entered[size]
        self.next_size = 0


class Loading:
    """The choice of the next model to load: the one with the most unmet demand.

    Beyond the share `spread` of what its devices can do, a model is loaded on one more that has
    less to do, and free pages.
    """

    def __init__(self, gpus: Mapping[str, DeviceSchedule], spread: float) -> None:
        self._gpus = gpus
        self._spread = spread
        self._candidates: list[tuple[float, int, ModelDemand]] = []
        self._sequence = 0
        self._live = 0
        self._coldest: dict[str, DeviceState] = {}
        """The last result of `fastest_cold_start` by model."""
        self.is_changed = False
        """True if a model became a candidate since the last decision."""
        self.is_short = False
        """True if a candidate found no pages then because all models on the device were in use."""
        self.paused_until = NEVER
        """Time at which a model whose last LOAD failed can be tried again."""

    def rebuild(self, model_demand: ModelDemand, now: float) -> None:
        """Recompute a model's demand, its shares and its priority."""
        replicas, demand = model_demand.replicas, self._demand(model_demand, now)
        met = 0.0
        if len(replicas) == 1:  # the usual case
            met = _allot_demand(replicas[0], demand)
        elif replicas:
            total = 0.0
            for replica in replicas:
                total += _weight(replica)
            for replica in replicas:
                met += _allot_demand(replica, demand * _weight(replica) / total)
        priority = demand - met
        if priority <= 0.0:
            beyond = demand - self._spread * met
            priority = SPREAD_PRIORITY * min(MOST_SECONDS, beyond)
        if not replicas and model_demand.is_touched and demand == 0.0:
            priority = COLD_MISS_PRIORITY
        if len(replicas) >= len(self._gpus):
            priority = 0.0  # it is on every device: no candidate, so that others may be examined
        if priority != model_demand.priority:
            model_demand.priority = priority
            if priority > 0:
                self._enter(model_demand)

    def _demand(self, model_demand: ModelDemand, now: float) -> float:
        """Return d_m."""
        if not model_demand.due:
            return 0.0
        name, replicas = model_demand.name, model_demand.replicas
        device = replicas[0].gpu.device if replicas else self.fastest_cold_start(name)
        if device is None:
            return 0.0
        return device.work(name, model_demand.benefit(now + device.cold(name)))

    def fastest_cold_start(self, model: str) -> DeviceState | None:
        """Return the device that would answer soonest among those that do not hold the model."""
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
        """Record that a device will hold a model: loading it may take longer afterwards."""
        if self._coldest.get(model) is device:
            del self._coldest[model]

    def ends(self, model: str, device: DeviceState) -> None:
        """Record that a device no longer holds a model: loading it may be faster than before.

        A cached device has not held the model meanwhile, so its time is unchanged.
        """
        found = self._coldest.get(model)
        if found is not None and device.cold(model) < found.cold(model):
            self._coldest[model] = device

    def forget(self, model: str | None = None) -> None:
        """Drop the cached device of a model, or of all: loading times may have changed."""
        if model is None:
            self._coldest.clear()
        else:
            self._coldest.pop(model, None)

    def _enter(self, model_demand: ModelDemand) -> None:
        self._sequence += 1
        self.is_changed = True
        heappush(self._candidates, (-model_demand.priority, self._sequence, model_demand))
        if len(self._candidates) > 2 * self._live + SPARE_ENTRIES:
            # The heap has at most twice as many entries as are valid, so new entries pay for a
            # rebuild.
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
        """Return the device and the model to load: the first of `gpus` that can begin a LOAD."""
        skipped = []
        found = None
        self.is_short, self.paused_until = False, NEVER
        for _ in range(LOOKS):
            model_demand = self.best()
            if model_demand is None or self._has_spread_enough(model_demand, gpus[0]):
                break
            gpu = self._device_for(model_demand, gpus, now, latency)
            if gpu is not None:
                found = gpu, model_demand
                break
            skipped.append(heappop(self._candidates))
        for entry in skipped:
            heappush(self._candidates, entry)
            # Time alone may have removed the reason to load it (§5.3, iv).
            self.rebuild(entry[2], now)
        return found

    def _has_spread_enough(self, model_demand: ModelDemand, gpu: DeviceSchedule) -> bool:
        """Return True if nothing makes it load a model on a device that has much to do, too.

        Batches would only shrink.
        """
        is_early = model_demand.priority < COLD_MISS_PRIORITY
        return is_early and gpu.work > self._spread * model_demand.capacity

    def _device_for(
        self, model_demand: ModelDemand, gpus: list[DeviceSchedule], now: float, latency: float
    ) -> DeviceSchedule | None:
        name = model_demand.name
        for gpu in gpus:
            device = gpu.device
            if name in gpu.replicas or device.offer.models[name].pages > device.offer.pages:
                continue
            pause = device.load_pause(name)
            if pause > now:
                self.paused_until = min(self.paused_until, pause)
                continue
            is_needed = model_demand.priority >= FREE_PAGES_ONLY
            if not is_needed and device.room_for(name) < 0:
                continue
            if model_demand.priority == COLD_MISS_PRIORITY:
                return gpu
            if self._has_spread_enough(model_demand, gpu):
                break  # the others have more to do
            ends = device.loads.free_at(now) + device.cold(name)
            if not model_demand.benefit(ends + 2 * latency + TICK):
                continue
            if device.can_hold(name):
                return gpu
            self.is_short = True
        return None


def _weight(replica: Replica) -> float:
    """Return a replica's weight in its model's demand: the inverse of other models' load there."""
    others = replica.gpu.work - replica.share
    return 1 / others if others > FLOOR else 1 / FLOOR


def _allot_demand(replica: Replica, share: float) -> float:
    """Allot a replica a share of its model's demand; return how much of it the device can meet."""
    gpu = replica.gpu
    work = max(share, gpu.work + share - replica.share)  # rounding can make it slightly too small
    replica.share, gpu.work = share, work
    return share * replica.model_demand.capacity / work if share else 0.0
