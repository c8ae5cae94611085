"""Common parts of the policies that choose batch size and variant for the best answers in time.

A free device is given the most urgent requests of the model whose first request is most urgent;
`decide` chooses the variant and the number of requests. It is called when a device is free, never
in between (Fang et al., CIKM 2017, Fig. 4). Devices hold every variant that fits; missing ones are
loaded. No variant is unloaded for another, only a model that is not served here.

A request whose hard deadline has passed leaves the queue unanswered, as under every policy. Where a
device runs only the measured batch sizes, a number of requests between two of them runs in the
larger one.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

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
from dispatcher.schedulers.qos.deadline_bins import DeadlineBins, Entry
from dispatcher.state.device_state import DeviceState
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from dispatcher.state.utility import UTILITIES, soft_deadline, value
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Request
from roma.domain.variants import Variant

RATE_WINDOW: Final = 5.0
"""Seconds over which arrivals are counted, unless a policy sets another window (§4.2)."""

REFERENCE: Final = 8
"""Batch size whose throughput is used to compare devices (§3.1)."""


class ArrivalRate:
    """Arrivals per second within the last `window` seconds."""

    __slots__ = ("_since", "_times", "_window")

    def __init__(self, window: float = RATE_WINDOW) -> None:
        self._window = window
        self._times: deque[float] = deque()
        self._since = inf

    def add(self, now: float) -> None:
        """Count an arrival."""
        self._since = min(self._since, now)
        self._times.append(now)
        self._expire(now)

    def at(self, now: float) -> float:
        """Return requests per second; a period of less than a second counts as a whole second."""
        self._expire(now)
        return len(self._times) / min(self._window, max(1.0, now - self._since))

    def _expire(self, now: float) -> None:
        times = self._times
        while times and times[0] <= now - self._window:
            times.popleft()


class VariantQueue:
    """A model's waiting requests, in bins for each set of variants that clients allow."""

    __slots__ = ("_queue", "_state", "_width", "lines", "name", "rate", "variants")

    def __init__(self, queue: ModelQueue, state: PolicyView, width: float, window: float) -> None:
        self.name = queue.spec.name
        self.variants = queue.spec.variants or (Variant(self.name, 1.0),)
        self.lines: dict[tuple[Variant, ...], DeadlineBins] = {}
        self.rate = ArrivalRate(window)
        self._queue = queue
        self._state = state
        self._width = width

    @property
    def waiting(self) -> int:
        """N: the number of waiting requests, whichever variants may serve them."""
        low = self._state.low_priority.get(self.name)
        return len(self._queue) + (0 if low is None else len(low))

    def add(self, request: Request) -> None:
        """Enter a request."""
        terms, allowed = request.terms, self.variants
        if terms is not None:
            allowed = tuple([v for v in allowed if terms.allows(v)])
        line = self.lines.get(allowed)
        if line is None:
            line = self.lines[allowed] = DeadlineBins(self._width)
        # Requests for a variant that no device has leave unnoticed: they are dropped here.
        self._first(line)
        soft = soft_deadline(request, self._queue.spec)
        line.add(Entry(request.id, soft, request.deadline))

    def head(self, held: Sequence[Variant]) -> tuple[Entry, tuple[Variant, ...]] | None:
        """Return the first request that one of these variants may serve, and which of them may."""
        found: tuple[Entry, tuple[Variant, ...]] | None = None
        for allowed, line in self.lines.items():
            able = tuple([v for v in held if v in allowed])
            entry = self._first(line) if able else None
            if entry is not None and (found is None or entry.soft < found[0].soft):
                found = entry, able
        return found

    def first(self, variant: Variant, most: int) -> list[Entry]:
        """Return the first requests that a variant may serve, at most `most` of them."""
        found: list[Entry] = []
        lines = [line for allowed, line in self.lines.items() if variant in allowed]
        for line in lines:
            gone, count = [], 0
            for entry in line:
                if count == most:
                    break
                if self._state.waits(self.name, entry.request):
                    found.append(entry)
                    count += 1
                else:  # it timed out, was cancelled, or ran elsewhere
                    gone.append(entry)
            for entry in gone:
                line.remove(entry)
        if len(lines) > 1:
            found.sort(key=self._bin)
        return found[:most]

    def take(self, entries: Sequence[Entry]) -> None:
        """Remove requests that will run."""
        for entry in entries:
            for line in self.lines.values():
                if line.discard(entry):
                    break

    def _first(self, line: DeadlineBins) -> Entry | None:
        while (entry := line.head()) is not None:
            if self._state.waits(self.name, entry.request):
                return entry
            line.remove(entry)
        return None

    def _bin(self, entry: Entry) -> float:
        return entry.soft // self._width


class DeviceView:
    """A planned device, as these policies see it."""

    __slots__ = ("capability", "device", "executor", "name")

    def __init__(self, executor: Executor, device: DeviceState) -> None:
        self.name = executor.spec.name
        self.executor = executor
        self.device = device
        self.capability: dict[str, float] = {}
        """Requests per second by model: its most accurate variant, in batches of REFERENCE."""

    @property
    def is_free(self) -> bool:
        """True if the device has nothing to run."""
        return not len(self.device.infers) and self.executor.has_room

    def held(self, variant_queue: VariantQueue) -> list[Variant]:
        """Return the loaded variants of a model, the most accurate first."""
        return [v for v in variant_queue.variants if self.device.has(v.name)]

    def sizes(self, variant: Variant) -> tuple[int, ...]:
        """Return the measured batch sizes of a variant, the smallest first."""
        return self.device.sizes(variant.name)

    def size_for(self, variant: Variant, count: int) -> int:
        """Return the batch size for so many requests, or the largest there is."""
        return self.device.size_for(variant.name, count)

    def seconds(self, variant: Variant, size: int) -> float:
        """Return D, the expected seconds of a batch."""
        return self.device.typical(variant.name, size)


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Run the first `count` requests by `variant`."""

    variant: Variant
    count: int


@mypyc_attr(allow_interpreted_subclasses=True)
class QualityScheduler(Scheduler):
    """A policy that maximises the quality of answers; subclasses implement `decide`."""

    request_aware: ClassVar[bool] = True
    rate_window: ClassVar[float] = RATE_WINDOW
    """Seconds over which arrivals are counted."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self.latency = options.latency
        self.utility = UTILITIES[options.quality.utility]
        width = options.quality.bin
        self.variant_queues = {
            name: VariantQueue(queue, state, width, self.rate_window)
            for name, queue in state.queues.items()
        }
        self._served = {v.name for b in self.variant_queues.values() for v in b.variants}
        self.gpus: dict[str, DeviceView] = {}
        """The devices, the fastest first."""
        self._active: dict[str, VariantQueue] = {}
        """Models that may have waiting requests."""
        self._lacking: dict[str, DeviceView] = {}
        """Devices that may lack a variant for which they have the pages."""

    # Observations

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Do nothing: requests that left the queue are skipped later."""

    def on_request(self, request: Request, now: float) -> None:
        """Enter a request."""
        variant_queue = self.variant_queues[request.model]
        variant_queue.add(request)
        if now == request.arrived:  # otherwise it came back
            variant_queue.rate.add(now)
        self._active[variant_queue.name] = variant_queue

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the set of devices."""
        if not executor.spec.is_planned:
            return
        name, device = executor.spec.name, executor.planned
        known = self.gpus.get(name)
        if known is not None and known.device is device:
            return
        self.gpus.pop(name, None)
        self._lacking.pop(name, None)
        if device is not None:
            gpu = self.gpus[name] = self._lacking[name] = DeviceView(executor, device)
            gpu.capability = {b.name: _capability(gpu, b) for b in self.variant_queues.values()}
            ordered = sorted(self.gpus.values(), key=lambda g: -sum(g.capability.values()))
            self.gpus = {g.name: g for g in ordered}

    def on_memory(self, executor: Executor, model: str, now: float) -> None:
        """Check again which variants a device lacks."""
        gpu = self.gpus[executor.spec.name]
        self._lacking[gpu.name] = gpu

    # Decisions

    @abstractmethod
    def decide(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: tuple[Variant, ...], now: float
    ) -> BatchChoice | DropChoice | float:
        """Return what a free device runs, or until when it waits if nothing comes before.

        Or refuse some requests: they have left at the next call.

        At least one request waits. `able` are the loaded variants that may serve the first request,
        the most accurate first.
        """

    def choose(self, now: float) -> Choice:
        """Load missing variants, then give free devices batches."""
        load, look = self._next_load(now)
        if load is not None:
            return load
        for gpu in self.gpus.values():
            if not gpu.is_free:
                continue
            for variant_queue, able in self._by_urgency(gpu):
                decision = self.decide(variant_queue, gpu, able, now)
                if isinstance(decision, BatchChoice):
                    batch = self._batch(variant_queue, gpu, decision, now)
                    if batch.latest <= now:
                        self._check_predictions(variant_queue, gpu, able, now)
                    return batch
                if isinstance(decision, DropChoice):
                    return decision
                look = min(look, decision)
        return None if look == inf else WaitUntil(max(look, now + TICK))

    def share(self, variant_queue: VariantQueue, gpu: DeviceView) -> float:
        """Return ξ, a device's part of a model's requests, in proportion to its capability."""
        total = 0.0
        for other in self.gpus.values():
            total += other.capability[variant_queue.name]
        return gpu.capability[variant_queue.name] / total

    def quality(self, variant: Variant, entries: Sequence[Entry], ended: float) -> float:
        """Return the total quality of answers that end together (eq. 1)."""
        total, utility = 0.0, self.utility
        for entry in entries:
            total += value(utility, ended, entry.soft, entry.hard)
        return variant.accuracy * total

    def ends(self, gpu: DeviceView, variant: Variant, count: int, now: float) -> float:
        """Return when the answers of a batch that is sent now are expected."""
        seconds = gpu.seconds(variant, gpu.size_for(variant, count))
        return now + 2 * self.latency + seconds

    def _by_urgency(self, gpu: DeviceView) -> list[tuple[VariantQueue, tuple[Variant, ...]]]:
        """Return the models of which a device can run something, the most urgent first."""
        found = []
        for name in list(self._active):
            variant_queue = self._active[name]
            if not variant_queue.waiting:
                del self._active[name]
                continue
            head = variant_queue.head(gpu.held(variant_queue))
            if head is not None:
                found.append((head[0].soft, variant_queue, head[1]))
        if len(found) > 1:
            found.sort(key=_urgency)
        return [(variant_queue, able) for _, variant_queue, able in found]

    def _check_predictions(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: Sequence[Variant], now: float
    ) -> None:
        """Doubt measurements by which no request could be in time, however early it were sent.

        The device would begin none of them, so that nothing would ever correct the measurements: it
        may have been slow for a while.
        """
        deadline = self.state.queues[variant_queue.name].spec.deadline
        if min([gpu.seconds(variant, 1) for variant in able]) + self.latency > deadline:
            for variant in able:
                gpu.device.doubt(variant.name, now)

    def _batch(
        self, variant_queue: VariantQueue, gpu: DeviceView, decision: BatchChoice, now: float
    ) -> Batch:
        variant, count = decision.variant, decision.count
        sizes = gpu.sizes(variant)
        entries = variant_queue.first(variant, min(count, sizes[-1]))
        variant_queue.take(entries)
        size = gpu.size_for(variant, len(entries))
        latest = max([e.hard for e in entries]) - gpu.seconds(variant, size) - self.latency
        requests = tuple([e.request for e in entries])
        latest = max(now, latest)
        return Batch(
            gpu.name, variant_queue.name, requests, now, latest, variant=variant.name, size=size
        )

    def _next_load(self, now: float) -> tuple[LoadChoice | UnloadChoice | None, float]:
        """Return a variant to load, or a model to unload for it, or when to retry a LOAD."""
        look = inf
        for gpu in list(self._lacking.values()):
            if gpu.executor.suspected:
                continue  # it shuts down, and would refuse one LOAD after the other
            device, is_done = gpu.device, True
            unused = self._unused(device)
            pages = sum([device.held[name].pages for name in unused])
            for variant_queue in self.variant_queues.values():
                for variant in variant_queue.variants:
                    if variant.name in device.held:
                        continue
                    room = device.room_for(variant.name)
                    if room + pages < 0:
                        continue
                    pause = device.load_pause(variant.name)
                    if pause > now:
                        look, is_done = min(look, pause), False
                    elif room < 0:
                        return UnloadChoice(gpu.name, unused[0]), look
                    else:
                        return LoadChoice(gpu.name, variant.name, inf), look
            if is_done:
                del self._lacking[gpu.name]
        return None, look

    def _unused(self, device: DeviceState) -> list[str]:
        """Return the models on a device that are not served here, and that nothing uses."""
        return [
            name
            for name, held in device.held.items()
            if name not in self._served and not held.uses and not held.load
        ]


def _urgency(found: tuple[float, VariantQueue, tuple[Variant, ...]]) -> float:
    return found[0]


def _capability(gpu: DeviceView, variant_queue: VariantQueue) -> float:
    best = variant_queue.variants[0]
    size = gpu.size_for(best, REFERENCE)
    return size / gpu.seconds(best, size)
