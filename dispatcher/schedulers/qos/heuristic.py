"""GPU policies `fixed` and `qos` (Fang et al., CIKM 2017, §3.1 and §4.1).

`fixed`   everything that waits in one batch, 32 at most
`qos`     the smallest batch that keeps up with what comes and what waits (eq. 2):

              B ≥ [α·D(B)·R + (1 - α)·N] · β · ξ

Both run the most accurate variant, unless the batch has eight requests or more: then the one whose
answers have the greatest total quality. The paper's Q_B multiplies by κ twice; once is meant.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from dispatcher.schedulers.base import PolicyView
from dispatcher.schedulers.qos.base import BatchChoice, DeviceView, QualityScheduler, VariantQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.variants import Variant

LARGEST: Final = 32
"""Largest batch of `fixed`."""

THRESHOLD: Final = 8
"""B_thrd: from this batch size on, other variants than the most accurate one are considered."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Fixed(QualityScheduler):
    """All waiting requests at once."""

    def decide(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: tuple[Variant, ...], now: float
    ) -> BatchChoice | float:
        """Run everything, up to a bound."""
        return self.best(
            variant_queue, gpu, able, self.count(variant_queue, gpu, able[0], now), now
        )

    def count(
        self, variant_queue: VariantQueue, gpu: DeviceView, variant: Variant, now: float
    ) -> int:
        """Return how many requests to run."""
        return min(variant_queue.waiting, LARGEST)

    def best(
        self,
        variant_queue: VariantQueue,
        gpu: DeviceView,
        able: tuple[Variant, ...],
        count: int,
        now: float,
    ) -> BatchChoice:
        """Choose the variant that gives a batch the greatest quality."""
        chosen = able[0]
        if count < THRESHOLD or len(able) == 1:
            return BatchChoice(chosen, count)
        most = -1.0
        for variant in able:
            entries = variant_queue.first(variant, min(count, gpu.sizes(variant)[-1]))
            ends = self.ends(gpu, variant, len(entries), now)
            quality = self.quality(variant, entries, ends)
            if quality > most:
                chosen, most = variant, quality
        return BatchChoice(chosen, count)


@mypyc_attr(allow_interpreted_subclasses=True)
class Qos(Fixed):
    """The smallest sufficient batch."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._alpha, self._beta = options.quality.alpha, options.quality.beta

    def count(
        self, variant_queue: VariantQueue, gpu: DeviceView, variant: Variant, now: float
    ) -> int:
        """Return the smallest batch size that satisfies eq. 2, or the largest there is."""
        alpha, share = self._alpha, self.share(variant_queue, gpu)
        rate, waiting = variant_queue.rate.at(now), variant_queue.waiting
        backlog = (1.0 - alpha) * waiting
        size = 1
        for size in gpu.sizes(variant):
            coming = alpha * gpu.seconds(variant, size) * rate
            if size >= (coming + backlog) * self._beta * share:
                break
        return min(size, waiting)
