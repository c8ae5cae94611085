"""GPU policy `clockwork`: predicted windows, memory as a cache, late work never begun (§5.3).

For planned devices only. A device is given a batch when it has less than `ahead` seconds of work
left, and not before: a later choice can choose from more requests.

    strategy   (model, batch size b, latest): b requests of a loaded model, of which the first must
               begin at `latest` = deadline - predicted seconds of the batch
    valid      at the time when the device will be free, b requests still make their deadlines in a
               batch of b; then the batch grows while all in it still do
    prefer     a larger batch that would otherwise be lost goes first if it does more in its time:
               our addition: strict order by `latest` answers few requests in an overload
    drop       a request that no device can answer in time any more is refused at that moment

The paper keeps a queue per model and batch size. Here a model has one list, ordered by deadline.
"The queue of size b" is the part of it that ends in time if a batch of b begins now, found by
bisection. A strategy's `latest` only grows while requests leave, so an entry may stay in the heap
with its original time, and is corrected when it surfaces. No decision examines all models, and none
costs more when more requests wait.

An action's window opens at once and closes when the action could no longer end in time. A device
that is early continues, a device that is late skips, and both are back on schedule.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush, heapreplace
from typing import ClassVar

from mypy_extensions import mypyc_attr

from dispatcher.schedulers.base import (
    TICK,
    Batch,
    Choice,
    DropChoice,
    LoadChoice,
    PolicyView,
    Scheduler,
    UnloadChoice,
    WaitUntil,
)
from dispatcher.schedulers.clockwork.loading import (
    COLD_MISS_PRIORITY,
    NEVER,
    NO_REQUEST,
    UNBOUNDED,
    DeviceSchedule,
    Loading,
    ModelDemand,
    Replica,
)
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import Reason
from roma.domain.model import Request


class _Strategy:
    """A batch that can begin now: `size` requests of the model's list, from index `first` on."""

    __slots__ = ("first", "latest", "replica", "run", "size")

    def __init__(self, replica: Replica, size: int, run: float, first: int, latest: float) -> None:
        self.replica = replica
        self.size = size
        self.run = run
        self.first = first
        self.latest = latest


@mypyc_attr(allow_interpreted_subclasses=True)
class Clockwork(Scheduler):
    """Batches in windows, models loaded by unmet demand, requests refused once they are late."""

    request_aware: ClassVar[bool] = True
    prefers_large: ClassVar[bool] = True
    """True if a larger batch may go first that would otherwise be lost; False for the paper's
    policy."""
    spread: ClassVar[float] = 0.5
    """Share of what a model's devices can do within its deadline: if more than that waits, it is
    loaded on another with less to do and free pages. 1 for the paper's policy: only if it must be.
    """

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._ahead, self._latency = options.ahead, options.latency
        self._demands = {
            name: ModelDemand(name, q.spec.deadline) for name, q in state.queues.items()
        }
        self._gpus: dict[str, DeviceSchedule] = {}
        self._ready: dict[str, DeviceSchedule] = {}
        """Devices that may have room for a batch: something changed since they were last
        checked."""
        self._looks: list[tuple[float, int, DeviceSchedule]] = []
        self._drops: list[tuple[float, int, ModelDemand]] = []
        self._stale: dict[str, ModelDemand] = {}
        """Models that changed since their demand was computed."""
        self._loading = Loading(self._gpus, self.spread)
        self._load_at = NEVER
        """Time at which the next device can take another LOAD, among those that cannot now."""
        self._is_loading = False
        """True if no device can take a LOAD now."""
        self._sequence = 0

    # Observations

    def on_request(self, request: Request, now: float) -> None:
        """Enter a request in its model's list, and the strategies that it makes possible."""
        model_demand, entry = self._demands[request.model], (request.deadline, request.id)
        due = model_demand.due
        if not due or entry > due[-1]:
            due.append(entry)
        else:
            insort(due, entry)
        is_first, waiting = due[0] == entry, len(due)
        for replica in model_demand.replicas:
            # Most replicas have all possible entries: a request that is not the first changes
            # nothing there.
            if replica.is_loaded and (is_first or waiting >= replica.next_size):
                self._enqueue_strategies(replica, now, is_first=is_first)
        self._stale[model_demand.name] = model_demand

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Note the requests that left; `on_request` observes those that come."""
        model_demand, waiting = self._demands[queue.spec.name], len(queue.waiting)
        if waiting < model_demand.waiting:
            self._stale[model_demand.name] = model_demand
        model_demand.waiting = waiting

    def on_executor(self, executor: Executor, now: float) -> None:
        """Check a device again; rebuild its replicas if it came or went.

        One that is ejected, or shutting down, is gone: what it holds is loaded elsewhere.
        """
        if not executor.spec.is_planned:
            return
        name = executor.spec.name
        device = None if executor.ejected or executor.suspected else executor.planned
        gpu = self._gpus.get(name)
        if gpu is not None and gpu.device is not device:
            for replica in list(gpu.replicas.values()):
                self._leave(replica, now)
            self._gpus.pop(name)
            self._loading.forget()
            self._ready.pop(name, None)
            gpu = None
        if gpu is None and device is not None:
            gpu = self._gpus[name] = DeviceSchedule(executor, device)
            self._loading.forget()
            for model in device.held:
                if model in self._demands:
                    self._enter(gpu, model, now)
            self._loading.is_changed, self._is_loading = True, False
        if self._loading.is_short:  # what has ended may have been the last use of a model
            self._loading.is_changed = True
        if gpu is not None:
            self._ready[name] = gpu

    def on_memory(self, executor: Executor, model: str, now: float) -> None:
        """Follow the contents of a device's memory."""
        gpu = self._gpus.get(executor.spec.name)
        self._loading.is_changed, self._is_loading = True, False
        if gpu is None or model not in self._demands:
            return  # the device takes nothing now, or the model was removed
        replica = gpu.replicas.get(model)
        if model in gpu.device.held:
            self._enter(gpu, model, now)
        elif replica is not None:
            self._leave(replica, now)

    def _enter(self, gpu: DeviceSchedule, model: str, now: float) -> None:
        model_demand = self._demands[model]
        replica = gpu.replicas.get(model)
        if replica is None:
            replica = gpu.replicas[model] = Replica(model_demand, gpu)
            model_demand.replicas.append(replica)
            model_demand.is_touched = False
            self._loading.begins(model, gpu.device)
        replica.is_loaded = gpu.device.has(model)
        if replica.is_loaded and model_demand.due:
            self._enqueue_strategies(replica, now, is_first=True)
        self._move(model_demand)

    def _leave(self, replica: Replica, now: float) -> None:
        model_demand, gpu = replica.model_demand, replica.gpu
        replica.is_loaded = False
        replica.entered.clear()
        gpu.work = max(0.0, gpu.work - replica.share)
        del gpu.replicas[model_demand.name]
        model_demand.replicas.remove(replica)
        self._loading.ends(model_demand.name, gpu.device)
        self._move(model_demand)

    def _move(self, model_demand: ModelDemand) -> None:
        """Record that a model's replicas changed, or that its times on one of them did."""
        model_demand.head = NO_REQUEST
        self._stale[model_demand.name] = model_demand

    def _enqueue_strategies(self, replica: Replica, now: float, *, is_first: bool) -> None:
        """Enter a strategy for each batch size that can be filled and has none, or a later one.

        Only a request that is the first of its model's can bring a strategy forward.
        """
        model_demand, gpu, entered = replica.model_demand, replica.gpu, replica.entered
        deadline, waiting = model_demand.due[0][0], len(model_demand.due)
        replica.next_size = UNBOUNDED
        for size in replica.sizes:
            if size > waiting:
                replica.next_size = size
                break
            known = entered.get(size)
            if known is not None and not is_first:
                continue
            latest = deadline - replica.times[size]
            if known is None or latest < known:
                entered[size] = latest
                self._sequence += 1
                heappush(gpu.strategies.setdefault(size, []), (latest, self._sequence, replica))
                if gpu.look_at <= now:
                    self._ready[gpu.name] = gpu

    # Decisions

    def choose(self, now: float) -> Choice:
        """Give devices batches, refuse late requests, load models; return when to check again."""
        while self._looks and self._looks[0][0] <= now + TICK:
            time, _, gpu = heappop(self._looks)
            if time == gpu.look_at and self._gpus.get(gpu.name) is gpu:
                gpu.look_at = 0.0
                self._ready[gpu.name] = gpu
        while self._ready:
            gpu = next(iter(self._ready.values()))
            batch = self._next_batch(gpu, now)
            if batch is not None:
                return batch
            del self._ready[gpu.name]
        if self._stale:
            self._recompute_demand(now)
        return self._next_drop(now) or self._next_load(now) or self._next_look()

    def _recompute_demand(self, now: float) -> None:
        """Recompute the demand from the requests that wait once devices have their batches.

        Most requests find a free device and leave no demand.
        """
        for model_demand in self._stale.values():
            if not model_demand.due or model_demand.due[0][1] != model_demand.head:
                self._await_drop(model_demand, now)
            self._loading.rebuild(model_demand, now)
        self._stale.clear()

    def _next_batch(self, gpu: DeviceSchedule, now: float) -> Batch | None:
        device = gpu.device
        if self._gpus.get(gpu.name) is not gpu or not gpu.executor.has_room:
            return None
        free = device.infers.free_at(now)
        if free - now >= self._ahead + TICK:
            self._schedule_check(gpu, free - self._ahead)
            return None
        gpu.look_at = 0.0
        start = max(free, now + self._latency)
        while True:
            strategy = self._choose_strategy(gpu, start)
            if strategy is None:
                return None
            batch = self._fill(strategy, now)
            if batch is not None:
                return batch

    def _choose_strategy(self, gpu: DeviceSchedule, start: float) -> "_Strategy | None":
        """Return the strategy that cannot wait any longer, with the largest possible batch.

        Except if it takes so long that a larger batch, which does more in its time, would be lost.
        """
        valid, chosen = [], None
        for size, heap in gpu.strategies.items():
            found = self._first(heap, size, start) if heap else None
            if found is not None:
                valid.append(found)
                if chosen is None or found.latest < chosen.latest:
                    chosen = found
        if chosen is None:
            return None
        chosen = self._largest_batch(chosen, start)
        if self.prefers_large:
            for other in valid:
                is_lost = other.latest < start + chosen.run
                if is_lost and other.size * chosen.run > chosen.size * other.run:
                    chosen = other
        return chosen

    def _first(
        self, heap: list[tuple[float, int, Replica]], size: int, start: float
    ) -> "_Strategy | None":
        """Return the valid strategy of a batch size that must begin first."""
        ends = start + self._latency + TICK
        while heap:
            key, _, replica = heap[0]
            due = replica.model_demand.due
            if replica.entered.get(size, NEVER) != key:
                heappop(heap)
                continue
            run = replica.times[size]
            is_in_time = due and due[0][0] >= ends + run
            first = 0 if is_in_time else bisect_left(due, (ends + run, 0))
            if len(due) - first < size:
                heappop(heap)
                replica.forget(size)
                continue
            latest = due[first][0] - run
            if latest <= key:
                return _Strategy(replica, size, run, first, latest)
            self._sequence += 1
            replica.entered[size] = latest
            heapreplace(heap, (latest, self._sequence, replica))
        return None

    def _largest_batch(self, strategy: "_Strategy", start: float) -> "_Strategy":
        """Return the largest batch that begins with the same request and keeps its deadline."""
        replica, first = strategy.replica, strategy.first
        model_demand = replica.model_demand
        deadline, available = model_demand.due[first][0], len(model_demand.due) - first
        for size in replica.sizes:
            if size <= strategy.size:
                continue
            run = replica.times[size]
            if size > available or start + run + self._latency + TICK > deadline:
                break
            strategy = _Strategy(replica, size, run, first, deadline - run)
        return strategy

    def _fill(self, strategy: "_Strategy", now: float) -> Batch | None:
        """Take the requests of a batch; None if some of them have left the queue."""
        replica, first = strategy.replica, strategy.first
        model_demand, gpu = replica.model_demand, replica.gpu
        taken = model_demand.due[first : first + strategy.size]
        left = [entry for entry in taken if not self.state.waits(model_demand.name, entry[1])]
        if left:  # cancelled, or run elsewhere
            for entry in left:
                model_demand.due.remove(entry)
            self._stale[model_demand.name] = model_demand
            return None
        del model_demand.due[first : first + len(taken)]
        self._stale[model_demand.name] = model_demand
        requests = tuple([request for _, request in taken])
        return Batch(gpu.name, model_demand.name, requests, now, strategy.latest - self._latency)

    def _next_drop(self, now: float) -> DropChoice | None:
        while self._drops and self._drops[0][0] <= now + TICK:
            time, _, model_demand = heappop(self._drops)
            if time != model_demand.drop_at:
                continue
            model_demand.drop_at = NEVER
            ready, run = self._soonest(model_demand, now)
            # Two TICKs: with one, rounding may find the head on neither side, again and again.
            end = max(now, ready) + run + 2 * TICK
            late = bisect_left(model_demand.due, (end, 0))
            found = [
                n for _, n in model_demand.due[:late] if self.state.waits(model_demand.name, n)
            ]
            del model_demand.due[:late]
            self._await_drop(model_demand, now)
            if not found:  # they have left
                self._loading.rebuild(model_demand, now)
                continue
            model_demand.is_touched = not model_demand.replicas
            self._stale[model_demand.name] = model_demand
            for gpu in self._gpus.values():
                if gpu.device.doubt(model_demand.name, now):
                    self._loading.forget(model_demand.name)
            detail = f"an answer takes {end - now:.4f} s from now, the deadline is before that"
            return DropChoice(model_demand.name, tuple(found), Reason.DEADLINE, detail)
        return None

    def _await_drop(self, model_demand: ModelDemand, now: float) -> None:
        """Ask to be woken when the most urgent request can no longer be answered in time."""
        if not model_demand.due:
            model_demand.head, model_demand.drop_at = NO_REQUEST, NEVER
            return
        model_demand.head = model_demand.due[0][1]
        ready, run = self._soonest(model_demand, now)
        deadline = model_demand.due[0][0]
        time = deadline - run if ready + run <= deadline else now
        if time != model_demand.drop_at:
            model_demand.drop_at = time
            self._sequence += 1
            heappush(self._drops, (time, self._sequence, model_demand))

    def _soonest(self, model_demand: ModelDemand, now: float) -> tuple[float, float]:
        """Return when the model is ready somewhere, and the seconds from there to an answer."""
        ready, run = NEVER, NEVER
        for replica in model_demand.replicas:
            run = min(run, replica.times[1])
            ready = min(ready, replica.gpu.device.ready_at(model_demand.name, now))
        if model_demand.replicas:
            return ready, run + 2 * self._latency
        first = self._loading.fastest_cold_start(model_demand.name)
        cold = 0.0 if first is None else first.cold(model_demand.name)
        return now, cold + 4 * self._latency

    def _next_load(self, now: float) -> LoadChoice | UnloadChoice | None:
        """Load the model with the most unmet demand on the device with the least work."""
        loading = self._loading
        if now + TICK < self._load_at and (self._is_loading or not loading.is_changed):
            return None  # every device loads, or nothing changed since no model could be placed
        loading.is_changed, self._load_at = False, NEVER
        if loading.best() is None:
            return None
        idle = self._idle_lanes(now)
        if not idle:
            return None
        picked = loading.pick(idle, now, self._latency)
        if picked is None:
            self._load_at = min(self._load_at, loading.paused_until)
            return None
        loading.is_changed = True  # there may be another
        gpu, model_demand = picked
        device, name = gpu.device, model_demand.name
        if device.room_for(name) < 0:
            victim = device.victim()
            assert victim is not None, f"{device!r} was picked for {name}"
            return UnloadChoice(gpu.name, victim)
        latest = NEVER
        if model_demand.priority != COLD_MISS_PRIORITY:
            needs = device.loading(name) + device.execution(name, 1) + 2 * self._latency
            latest = model_demand.due[-1][0] - needs
        return LoadChoice(gpu.name, name, latest)

    def _idle_lanes(self, now: float) -> list[DeviceSchedule]:
        """Return the devices that can take a LOAD, the one with the least work first."""
        idle = []
        for gpu in self._gpus.values():
            look_at = gpu.device.loads.free_at(now) - self._ahead
            if look_at < now + TICK:
                idle.append(gpu)
            else:
                self._load_at = min(self._load_at, look_at)
        self._is_loading = not idle
        idle.sort(key=_by_work)
        return idle

    def _schedule_check(self, gpu: DeviceSchedule, time: float) -> None:
        if gpu.look_at != time and self._has_strategy(gpu):
            gpu.look_at = time
            self._sequence += 1
            heappush(self._looks, (time, self._sequence, gpu))

    def _has_strategy(self, gpu: DeviceSchedule) -> bool:
        """Return True if a device can run a batch; drop strategies whose requests have left."""
        for size, heap in gpu.strategies.items():
            while heap:
                key, _, replica = heap[0]
                if replica.entered.get(size, NEVER) == key:
                    if len(replica.model_demand.due) >= size:
                        return True
                    replica.forget(size)
                heappop(heap)
        return False

    def _next_look(self) -> WaitUntil | None:
        looks, drops, first = self._looks, self._drops, self._load_at
        while drops:
            time, _, model_demand = drops[0]
            if time == model_demand.drop_at:
                first = min(first, time)
                break
            heappop(drops)
        while looks:
            time, _, gpu = looks[0]
            if time == gpu.look_at:
                first = min(first, time)
                break
            heappop(looks)
        return None if first == NEVER else WaitUntil(first)


def _by_work(gpu: DeviceSchedule) -> tuple[float, int]:
    # When few requests wait, no device has any work by these demands. Free memory then breaks the
    # tie: without it the first device would be given all models.
    return gpu.work, -gpu.device.free


class ClockworkPaper(Clockwork):
    """The paper's order: strictly by the latest time at which a strategy must begin."""

    prefers_large: ClassVar[bool] = False
    spread: ClassVar[float] = 1.0
