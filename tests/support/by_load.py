"""A policy that chooses variants of a model on CPU executables, as an autoscaler of variants would."""

from dispatcher.schedulers.base import RunChoice, Scheduler


class ByLoad(Scheduler):
    """Runs the variant `fast` while more than one request waits, and `good` otherwise."""

    def on_queue(self, queue, now):
        pass

    def on_executor(self, executor, now):
        pass

    def choose(self, now):
        for model, queue in self.state.queues.items():
            variant = "fast" if len(queue) > 1 else "good"
            for executor in self.state.executors.of(model):
                if queue.head is not None and executor.has_room:
                    return RunChoice(executor.spec.name, model, variant=variant)
        return None
