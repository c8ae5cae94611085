"""GPU policy `qos-opt`: the batch with the best answers now and the best state to continue from.

Each batch size and variant is scored. The score is the quality of its answers, at the actual
deadlines of the requests, minus the average yield of all devices in this device's part of the
batch's time, plus the value of the remaining backlog (`dispatcher.schedulers.qos.values`). The best
score runs. If waiting for one more request scores better, and the first one stays in time, the
device waits. If the oldest requests are late and the batch behind them scores better, they are
refused. Nothing is tuned and nothing is learned: the values follow from batch times, κ and
deadlines.
"""

import math
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from dispatcher.schedulers.base import DropChoice, PolicyView
from dispatcher.schedulers.qos.base import BatchChoice, DeviceView, QualityScheduler, VariantQueue
from dispatcher.schedulers.qos.deadline_bins import Entry
from dispatcher.schedulers.qos.values import MARGIN, SHED, BatchOption, Values, Worth
from dispatcher.state.executor import Executor
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import Reason
from roma.domain.variants import Variant

LEAST_FACTOR: Final = 1e-3
"""Least share of the offered time that a batch counts as: a coarse clock reports none."""

DRIFT: Final = 1.25
"""Factor by which a variant's batch times must change, up or down, before values are computed
anew."""

WORTH_WAITING: Final = 0.02
"""Quality that waiting must gain: a device does not wait for less."""

MOST_SHED: Final = 64
"""Most requests that are refused at once."""

Drifts = tuple[tuple[Variant, int], ...]
"""Variants, and the exponent of DRIFT by which their batches take longer than offered."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QosOpt(QualityScheduler):
    """A step of lookahead, plus the value of the state that follows."""

    rate_window: ClassVar[float] = 10.0
    """Longer window: the values assume a lasting rate, and the backlog shows bursts."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._values: dict[tuple[str, str, Drifts], Values] = {}
        """Values by device, model, and the drifts of the variants that the device holds."""
        self._latest: dict[tuple[str, str], Values] = {}
        """Most recent values by device and model."""

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the set of devices: the share of each one depends on all."""
        before = list(self.gpus.values())
        super().on_executor(executor, now)
        if before != list(self.gpus.values()):
            self._values.clear()

    def decide(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: tuple[Variant, ...], now: float
    ) -> BatchChoice | DropChoice | float:
        """Choose the batch with the highest score, or to wait, or to refuse the oldest requests."""
        worth, waiting = self._worth(variant_queue, gpu, now), variant_queue.waiting
        score, best, ended, head = self._best(variant_queue, gpu, able, now, worth)
        shed = min(int(SHED * waiting), MOST_SHED)
        if (
            head.soft < now
            and shed
            and self._best(variant_queue, gpu, able, now, worth, skip=shed)[0] > score
        ):
            oldest = tuple([entry.request for entry in variant_queue.first(able[0], shed)])
            detail = f"{waiting} requests wait: those behind this one are answered instead"
            return DropChoice(variant_queue.name, oldest, Reason.DEADLINE, detail)
        # The values assume that requests arrive as before; waiting requests have their actual
        # deadlines. A request that only some of the variants may serve is not covered by the
        # values.
        next_one, is_open = 1 / worth.traffic.rate, len(able) == len(gpu.held(variant_queue))
        if is_open and worth.of(waiting + 1) - worth.gain * next_one > score + WORTH_WAITING:
            margin = MARGIN * self.state.queues[variant_queue.name].spec.sla.response_time
            if ended + next_one + margin <= head.soft:
                return now + next_one
        return best

    def _best(
        self,
        variant_queue: VariantQueue,
        gpu: DeviceView,
        able: tuple[Variant, ...],
        now: float,
        worth: Worth,
        *,
        skip: int = 0,
    ) -> tuple[float, BatchChoice, float, Entry]:
        """Return the best batch without the first `skip` requests: score, end and first request."""
        share, waiting = self.share(variant_queue, gpu), variant_queue.waiting - skip
        most, best, best_end = -math.inf, BatchChoice(able[0], 1), now
        head = variant_queue.first(able[0], 1)[0]
        for variant in able:
            entries = variant_queue.first(variant, skip + gpu.sizes(variant)[-1])[skip:]
            if not entries:
                continue  # its requests, which others may not serve, are fewer
            for size in gpu.sizes(variant):
                count = min(size, len(entries))
                seconds = gpu.seconds(variant, gpu.size_for(variant, count))
                ended, part = now + 2 * self.latency + seconds, share * seconds
                quality = self.quality(variant, entries[:count], ended)
                score = quality - worth.gain * part + worth.expected(waiting - count, part)
                if score > most:
                    most, best, best_end = score, BatchChoice(variant, count), ended
                if count == len(entries):
                    break
        return most, best, best_end, head

    def _worth(self, variant_queue: VariantQueue, gpu: DeviceView, now: float) -> Worth:
        drifts = tuple([(v, _drift(gpu.device.factor(v.name))) for v in gpu.held(variant_queue)])
        key = gpu.name, variant_queue.name, drifts
        known = self._values.get(key)
        if known is None:
            known = self._like(variant_queue, gpu, drifts) or self._begun(
                variant_queue, gpu, drifts
            )
            self._values[key] = self._latest[gpu.name, variant_queue.name] = known
        return known.at(variant_queue.rate.at(now))

    def _like(self, variant_queue: VariantQueue, gpu: DeviceView, drifts: Drifts) -> Values | None:
        """Return the values of another device that offers and holds the same."""
        for other in self.gpus.values():
            known = self._values.get((other.name, variant_queue.name, drifts))
            if known is not None and other.device.offer.models == gpu.device.offer.models:
                return known
        return None

    def _begun(self, variant_queue: VariantQueue, gpu: DeviceView, drifts: Drifts) -> Values:
        offers, spec = gpu.device.offer.models, self.state.queues[variant_queue.name].spec
        actions = [
            BatchOption(size, v.accuracy, DRIFT**drift * offers[v.name].seconds(size))
            for v, drift in drifts
            for size in gpu.sizes(v)
        ]
        return Values(
            actions,
            self.utility,
            soft=spec.sla.response_time,
            hard=spec.deadline,
            share=self.share(variant_queue, gpu),
            like=self._latest.get((gpu.name, variant_queue.name)),
        )


def _drift(factor: float) -> int:
    return round(math.log(max(factor, LEAST_FACTOR)) / math.log(DRIFT))
