"""GPU policy `qos-rl`: batch size and variant by a small network that was trained for the devices.

Fang et al., CIKM 2017, §3.2 and §4.2. The state is the histogram of deadlines, the number of
waiting requests, the arrival rate, the type of the free device and the remaining work of every
device. One hidden layer gives each action a score, and the greatest is carried out: nothing is
random at serving time. `roma.lab.learning` trains the network, `roma.config.policy_file` defines
its file format.

An action that is not feasible falls back to the nearest smaller one: the device's largest batch
size that is not larger, and the next less accurate variant that may serve the first request (the
least accurate one, if there is none). Remaining work is sorted within a type of device, so that
equal devices are exchangeable; an absent device counts as busy for `AWAY` seconds.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from mypy_extensions import mypyc_attr

from dispatcher.schedulers.base import PolicyView
from dispatcher.schedulers.qos.base import BatchChoice, DeviceView, QualityScheduler, VariantQueue
from dispatcher.state.executor import Executor
from roma.config.policy_file import Policy, PolicyAction
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import Capabilities
from roma.domain.variants import Variant

AWAY: Final = 2.0
"""Seconds; also the largest remaining work that is reported of any device."""


class Observer:
    """Computes features from the state that a policy sees; `types` maps device names to types.

    The features are, in this order: N_pre + N_post bins, the number of waiting requests, requests
    per second, the type as ones and zeros, the remaining work of each device in seconds.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.types: dict[str, int] = {}
        self._counts = [device.count for device in policy.devices]

    def add(self, gpu: DeviceView) -> None:
        """Add a device whose capabilities were not refused."""
        found = self.policy.type_of(gpu.device.offer.models)
        assert found is not None, f"{gpu.name} is of no trained type"
        self.types[gpu.name] = found

    def remove(self, name: str) -> None:
        """Forget a device."""
        self.types.pop(name, None)

    def features(
        self, variant_queue: VariantQueue, gpu: DeviceView, gpus: Sequence[DeviceView], now: float
    ) -> list[float]:
        """Return the state for which a free device chooses an action."""
        policy, counts = self.policy, self._counts
        bins = [0] * (policy.before + policy.after)
        for line in variant_queue.lines.values():
            for i, size in enumerate(line.sizes(now, policy.before, policy.after)):
                bins[i] += size
        found = [float(size) for size in bins]
        found.append(float(variant_queue.waiting))
        found.append(variant_queue.rate.at(now))
        kind = self.types[gpu.name]
        rests: list[list[float]] = []
        for i in range(len(counts)):
            found.append(1.0 if i == kind else 0.0)
            rests.append([])
        for other in gpus:
            rest = other.device.infers.free_at(now) - now if other.executor.live else AWAY
            rests[self.types[other.name]].append(min(AWAY, rest))
        for i, count in enumerate(counts):
            rests[i].sort()
            found += rests[i]
            found += [AWAY] * (count - len(rests[i]))
        return found

    def refusal(self, name: str, offer: Capabilities) -> str | None:
        """Return why a device cannot be used: its type was not trained, or it is one too many."""
        policy = self.policy
        found = policy.type_of(offer.models)
        if found is None:
            differ = [f"{d.name}: {d.differs(offer.models)}" for d in policy.devices]
            return "not a device that the policy was trained for; " + "; ".join(differ)
        kind = policy.devices[found]
        count = 1 + sum([t == found for n, t in self.types.items() if n != name])
        if count > kind.count:
            return f"devices of type {kind.name} = {count}: must be ≤ {kind.count} (the policy's)"
        return None


class Network:
    """A hidden layer with ReLU, as plain matrices."""

    def __init__(self, policy: Policy) -> None:
        scale = np.array(policy.scale)
        weights = np.array(policy.hidden.weights) / scale[:, None]
        self._hidden: Any = weights
        self._hidden_bias: Any = np.array(policy.hidden.bias) - np.array(policy.mean) @ weights
        self._output: Any = np.array(policy.output.weights)
        self._output_bias: Any = np.array(policy.output.bias)

    def scores(self, features: Sequence[float]) -> Any:
        """Return the score of each action, an array."""
        hidden = np.maximum(np.array(features) @ self._hidden + self._hidden_bias, 0.0)
        return hidden @ self._output + self._output_bias


@mypyc_attr(allow_interpreted_subclasses=True)
class QosRl(QualityScheduler):
    """The policy that training found best."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        policy = state.learned
        assert policy is not None, "qos-rl needs a policy"
        self.observer = Observer(policy)
        self._actions = policy.actions
        self._wait = policy.wait
        self._order = [v.name for v in policy.variants]
        self._network = Network(policy)
        self._waits: dict[str, float] = {}
        """End of the wait that the policy chose, by device."""

    def refusal(self, executor: str, offer: Capabilities) -> str | None:
        """Refuse a device that the policy was not trained for, and one too many."""
        return self.observer.refusal(executor, offer)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the set of devices and their types."""
        name = executor.spec.name
        known = self.gpus.get(name)
        super().on_executor(executor, now)
        found = self.gpus.get(name)
        if found is None:
            self.observer.remove(name)
        elif found is not known:
            self.observer.add(found)

    def decide(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: tuple[Variant, ...], now: float
    ) -> BatchChoice | float:
        """Carry out the action with the greatest score."""
        until = self._waits.get(gpu.name, 0.0)
        if now < until:
            return until
        features = self.observer.features(variant_queue, gpu, list(self.gpus.values()), now)
        action = self._actions[self.pick(features, now)]
        if action.variant is None:
            until = self._waits[gpu.name] = now + self._wait
            return until
        return self.feasible(variant_queue, gpu, able, action)

    def pick(self, features: list[float], now: float) -> int:
        """Return the number of the action to take."""
        return int(self._network.scores(features).argmax())

    def feasible(
        self,
        variant_queue: VariantQueue,
        gpu: DeviceView,
        able: tuple[Variant, ...],
        action: PolicyAction,
    ) -> BatchChoice:
        """Return an action as this device can carry it out for the requests that wait now."""
        wanted = self._order.index(action.variant or "")
        chosen = able[-1]
        for variant in able:  # the most accurate first
            if variant.name in self._order and self._order.index(variant.name) >= wanted:
                chosen = variant
                break
        sizes = [size for size in gpu.sizes(chosen) if size <= action.batch]
        return BatchChoice(
            chosen, min(variant_queue.waiting, sizes[-1] if sizes else gpu.sizes(chosen)[0])
        )
