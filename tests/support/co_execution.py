"""A policy that executes segments of several batches at once, and device models for it."""

import math

from dispatcher.schedulers.base import Batch, BatchGroup, LoadChoice, Scheduler
from roma.device.overlap import seconds_together
from roma.domain.actions import Segment

OVERLAP = 0.4


class Segments(Scheduler):
    """Gives a free device the next piece of as many batches as it executes at once."""

    BATCH = 2

    def on_queue(self, queue, now):
        pass

    def on_executor(self, executor, now):
        pass

    def choose(self, now):
        for executor in self.state.executors:
            device = executor.planned
            if device is None:
                continue
            for model in self.state.queues:
                if model not in device.held and device.room_for(model) >= 0:
                    return LoadChoice(executor.spec.name, model, math.inf)
            batches = [] if len(device.infers) else self._next(executor, device, now)
            if batches:
                alone = [
                    batch.segment.share * device.execution(batch.model, batch.size)
                    for batch in batches
                ]
                return BatchGroup(tuple(batches), seconds_together(alone, OVERLAP))
        return None

    def _next(self, executor, device, now):
        name, models = executor.spec.name, device.offer.models
        found = []
        for number, kept in self.state.partial.items():
            if kept.execution.executor == name and kept.waited_for:
                model = kept.execution.model
                piece = Segment(kept.end, kept.end + 1, models[model].segments)
                size = kept.execution.size
                found.append(
                    Batch(
                        name, model, (), now, math.inf, size=size, segment=piece, continues=number
                    )
                )
        begun = {r for kept in self.state.partial.values() for r in kept.waited_for}
        for model, queue in self.state.queues.items():
            new = [request for request in queue.waiting if request not in begun][: self.BATCH]
            if new and device.has(model):
                piece = Segment(0, 1, models[model].segments)
                found.append(Batch(name, model, tuple(new), now, math.inf, size=2, segment=piece))
        return found[: device.offer.together]
