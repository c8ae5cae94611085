"""The scheduling policies of a dispatcher: which take part, and what they are told."""

from dispatcher.schedulers.base import PolicyOptions, PolicyView, Scheduler
from dispatcher.state.executors import Executor
from dispatcher.state.queues import ModelQueue
from roma.domain.actions import Capabilities
from roma.domain.model import Device, Request


class Policies:
    """A policy per kind of device; `active` are those whose devices exist.

    GPUs come first: what they take, no CPU runs.
    """

    def __init__(
        self,
        state: PolicyView,
        options: PolicyOptions,
        *,
        gpu: type[Scheduler],
        cpu: type[Scheduler],
    ) -> None:
        self._state = state
        self.options = options
        self._chosen = {Device.GPU: gpu, Device.CPU: cpu}
        self.by_device: dict[Device, Scheduler] = {}
        self.active: tuple[Scheduler, ...] = ()
        self._request_aware: tuple[Scheduler, ...] = ()
        """Those of them that choose requests, not only models."""
        self.rebuild(0.0)

    def rebuild(self, now: float) -> None:
        """Make them anew: their indices are laid out by models."""
        made = {
            device: policy(self._state, self.options) for device, policy in self._chosen.items()
        }
        self.by_device = made
        self.active = ()
        self.attach(now)

    def attach(self, now: float) -> None:
        """Let those of the devices that exist now take part; tell a new one what there is."""
        devices = {executor.spec.device for executor in self._state.executors}
        active = tuple(policy for device, policy in self.by_device.items() if device in devices)
        for policy in set(active) - set(self.active):
            for queue in self._state.queues.values():
                policy.on_queue(queue, now)
            for executor in self._state.executors:
                policy.on_executor(executor, now)
            if policy.request_aware:
                for queue in (*self._state.queues.values(), *self._state.low_priority.values()):
                    for request in queue.waiting.values():
                        policy.on_request(request, now)
        self.active = active
        self._request_aware = tuple(policy for policy in active if policy.request_aware)

    def refusal(self, executor: str, offer: Capabilities) -> str | None:
        """Return why a planned device that offers this cannot be used, or None."""
        return self.by_device[Device.GPU].refusal(executor, offer)

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Tell that a queue changed; of those of low-priority requests no policy knows."""
        state = self._state
        if state.low_priority and queue is not state.queues[queue.spec.name]:
            return
        for policy in self.active:
            policy.on_queue(queue, now)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Tell that an executor changed."""
        for policy in self.active:
            policy.on_executor(executor, now)

    def on_request(self, request: Request, now: float) -> None:
        """Tell that a request waits, of either priority."""
        for policy in self._request_aware:
            policy.on_request(request, now)

    def on_memory(self, executor: Executor, model: str, now: float) -> None:
        """Tell that a model's place on a planned device changed."""
        for policy in self._request_aware:
            policy.on_memory(executor, model, now)
