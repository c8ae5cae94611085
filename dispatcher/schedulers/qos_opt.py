"""GPU policy `qos-opt`: the batch with the best answers now and the best place to go on from.

Each batch size and variant, and waiting for another request, is scored by the quality of its answers, at the deadlines that the
requests really have, less what all devices would make on average in the device's part of that time, plus the value of the
backlog that it leaves (`dispatcher.values`). The best score runs. Nothing is tuned and nothing is
learned: the values follow from the measured batch times, κ and the deadlines.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from dispatcher.quality import value
from dispatcher.schedulers.base import Options, State
from dispatcher.schedulers.quality import Book, Decision, Gpu, QualityScheduler
from dispatcher.values import Action, Values
from roma.model import Variant


@mypyc_attr(allow_interpreted_subclasses=True)
class QosOpt(QualityScheduler):
    """One step ahead, and the value of what is then."""

    def __init__(self, state: State, options: Options) -> None:
        super().__init__(state, options)
        self._values: dict[tuple[object, ...], Values] = {}

    def decide(
        self, book: Book, gpu: Gpu, able: tuple[Variant, ...], now: float
    ) -> Decision | float:
        """Choose the batch with the highest score."""
        share = self.share(book, gpu)
        waiting = book.waiting
        worth = self._of(book, gpu, share).at(book.rate.at(now))
        rate = worth.rate
        best: Decision | float = now + 1 / rate
        most = worth.of(waiting + 1) - worth.gain / rate
        for variant in able:
            sizes = gpu.sizes(variant)
            entries = book.first(variant, min(waiting, sizes[-1]))
            available = len(entries)
            for size in sizes:
                count = min(size, available)
                seconds = gpu.seconds(variant, gpu.size_for(variant, count))
                ended, quality = now + 2 * self.options.latency + seconds, 0.0
                for entry in entries[:count]:
                    quality += value(self.utility, ended, entry.soft, entry.hard)
                part = share * seconds
                left = worth.expected(waiting - count, rate * part)
                score = variant.accuracy * quality - worth.gain * part + left
                if score > most:
                    best, most = Decision(variant, count), score
                if count == available:
                    break
        return best

    def _of(self, book: Book, gpu: Gpu, share: float) -> Values:
        offer = gpu.device.offer
        actions = [
            Action(size, v.accuracy, offer.models[v.name].seconds(size))
            for v in book.variants
            for size in gpu.sizes(v)
        ]
        key = book.name, share, *[(a.count, a.accuracy, a.seconds) for a in actions]
        known = self._values.get(key)
        if known is None:
            spec = self.state.queues[book.name].spec
            known = self._values[key] = Values(
                actions,
                self.utility,
                soft=spec.sla.response_time,
                hard=spec.deadline,
                share=share,
            )
        return known
