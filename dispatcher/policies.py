"""The scheduling policies of a dispatcher: which ones are active, and the changes they observe."""

from dispatcher.schedulers.base import PolicyView, Scheduler
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Device, Request


class Policies:
    """Policies, one per kind of device; `active` are those whose devices exist.

    GPUs come first: a request that they take does not run on a CPU.
    """

    def __init__(
        self,
        state: PolicyView,
        options: SchedulingConfig,
        *,
        gpu: type[Scheduler],
        cpu: type[Scheduler],
    ) -> None:
        self.state = state
        self.options = options
        self._chosen = {Device.GPU: gpu, Device.CPU: cpu}
        self.by_device: dict[Device, Scheduler] = {}
        self.active: tuple[Scheduler, ...] = ()
        self._request_aware: tuple[Scheduler, ...] = ()
        """The active policies that choose requests, not only models."""
        self.rebuild(0.0)

    def rebuild(self, now: float) -> None:
        """Create the policies anew: their indices are laid out by model."""
        self.by_device = {
            device: policy(self.state, self.options) for device, policy in self._chosen.items()
        }
        self.active = ()
        self.attach(now)

    def attach(self, now: float) -> None:
        """Activate the policies of existing devices; report the current state to a new one."""
        devices = {executor.spec.device for executor in self.state.executors}
        for device, policy in list(self.by_device.items()):
            if policy in self.active and device not in devices:
                # It will observe nothing until it is active again: another one begins then.
                self.by_device[device] = self._chosen[device](self.state, self.options)
        active = tuple(policy for device, policy in self.by_device.items() if device in devices)
        for policy in [policy for policy in active if policy not in self.active]:
            for queue in self.state.queues.values():
                self._tell(policy, queue, now)
            for executor in self.state.executors:
                policy.on_executor(executor, now)
            if policy.request_aware:
                for queue in (*self.state.queues.values(), *self.state.low_priority.values()):
                    for request in queue.waiting.values():
                        policy.on_request(request, now)
        self.active = active
        self._request_aware = tuple(policy for policy in active if policy.request_aware)

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Report that a queue changed; policies do not see the queues of low-priority requests."""
        state = self.state
        if state.low_priority and queue is not state.queues[queue.spec.name]:
            return
        if state.executors.off_gpus:
            for policy in self.active:
                self._tell(policy, queue, now)
            return
        for policy in self.active:
            policy.on_queue(queue, now)

    def _tell(self, policy: Scheduler, queue: ModelQueue, now: float) -> None:
        """Report a queue, unless the policy is of GPUs and none of them has the model."""
        is_off = queue.spec.name in self.state.executors.off_gpus
        if not is_off or policy is not self.by_device[Device.GPU]:
            policy.on_queue(queue, now)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Report that an executor changed."""
        for policy in self.active:
            policy.on_executor(executor, now)

    def on_request(self, request: Request, now: float) -> None:
        """Report that a request waits, of either priority."""
        for policy in self._request_aware:
            policy.on_request(request, now)

    def on_memory(self, executor: Executor, model: str, now: float) -> None:
        """Report that the state of a model on a planned device changed."""
        for policy in self._request_aware:
            policy.on_memory(executor, model, now)
