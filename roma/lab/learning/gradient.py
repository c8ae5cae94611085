"""The network and its weight updates: imitation first, then a policy gradient.

The paper's reward is the mean quality of the last W answers. The goal, the mean quality over a long
run, is reached by charging each action with the quality that the queries after it lack:

    G_t = Σ_k exp(-(t_k - t) / τ) · cost_k,    k from t on

Costs before an action are not in G_t, so they do not add noise as in the mean of a window; τ = 5 s
replaces the window: two hard deadlines later nothing of a queue is left. Answers of batches
generated later do count, since an action's effect on the queue shows in nothing else; a learned
baseline V removes what they cost in any case. Advantages are those of GAE (Schulman et al., ICLR
2016), steps those of PPO (Schulman et al., 2017).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from roma.lab.learning.rollouts import Floats, Numbers, Rollout

HIDDEN: Final = 64
"""Neurons (§4.2)."""

TAU: Final = 5.0
LAMBDA: Final = 0.95
CLIP: Final = 0.2
EPOCHS: Final = 4
MINIBATCH: Final = 1024
PARTS: Final = 16
"""Most steps per epoch: where devices decide often, the minibatches grow instead."""


class Learner:
    """Policy and baseline, and their optimisers; the sample `states` scales the features."""

    def __init__(self, states: Floats, actions: int, seed: int, *, rate: float) -> None:
        keras.utils.set_random_seed(seed)
        inputs = states.shape[1]
        self.mean = states.mean(axis=0).round(4)
        self.scale = np.maximum(states.std(axis=0), 0.05).round(4)
        self.policy = _network(inputs, actions)
        self.baseline = _network(inputs, 1)
        self._numbers = np.random.default_rng(seed)
        self._unit = 1.0
        """Divisor of costs: the baseline learns numbers around one."""
        self._steps = keras.optimizers.Adam(rate)
        self._base_steps = keras.optimizers.Adam(1e-3)
        self._imitate = tf.function(self._imitate_step, reduce_retracing=True)
        self._improve = tf.function(self._improve_step, reduce_retracing=True)
        self._predict = tf.function(self._predict_step, reduce_retracing=True)

    @property
    def weights(self) -> list[Any]:
        """Weights and bias of the hidden layer, then of the output."""
        return list(self.policy.get_weights())

    def set_rate(self, rate: float) -> None:
        """Change the size of the policy's steps."""
        self._steps.learning_rate.assign(rate)

    def imitate(self, rollouts: Sequence[Rollout], epochs: int) -> None:
        """Make the recorded actions likely, and learn their costs."""
        self._unit = float(np.concatenate([_to_come(r) for r in rollouts]).std()) + 1e-6
        states = self._scaled(np.concatenate([r.states for r in rollouts]))
        actions = np.concatenate([r.actions for r in rollouts])
        returns = np.concatenate([_to_come(r) for r in rollouts]) / self._unit
        for part in self._parts(len(actions), epochs):
            self._imitate(*_tensors(states[part], actions[part], returns[part]))

    def improve(self, rollouts: Sequence[Rollout], entropy: float) -> None:
        """Make actions likelier that cost less than was expected in their states."""
        states = [self._scaled(r.states) for r in rollouts]
        before = [self._predict(tf.constant(s)) for s in states]
        gains, targets = [], []
        for rollout, (_, values) in zip(rollouts, before, strict=True):
            gain, target = advantages(rollout, values.numpy(), self._unit)
            gains.append(gain)
            targets.append(target)
        gained: Floats = np.concatenate(gains)
        gained = ((gained - gained.mean()) / (gained.std() + 1e-6)).astype(np.float32)
        seen: Floats = np.concatenate(states)
        actions = np.concatenate([r.actions for r in rollouts])
        logs = np.concatenate([log.numpy() for log, _ in before])
        old = logs[np.arange(len(actions)), actions]
        target = np.concatenate(targets)
        weight = tf.constant(entropy, tf.float32)
        for p in self._parts(len(actions), EPOCHS):
            judged = _tensors(gained[p], old[p])
            self._improve(*_tensors(seen[p], actions[p], target[p]), judged, weight)

    def _scaled(self, states: Floats) -> Floats:
        scaled: Floats = ((states - self.mean) / self.scale).astype(np.float32)
        return scaled

    def _parts(self, count: int, epochs: int) -> Iterable[Numbers]:
        size = min(count, max(MINIBATCH, -(-count // PARTS)))
        for _ in range(epochs):
            order = self._numbers.permutation(count)
            for i in range(0, count - size + 1, size):
                yield order[i : i + size]

    def _predict_step(self, states: Any) -> Any:
        return tf.nn.log_softmax(self.policy(states)), self.baseline(states)[:, 0]

    def _imitate_step(self, states: Any, actions: Any, returns: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(actions, self.policy(states))
            )
        found = tape.gradient(loss, self.policy.trainable_variables)
        self._steps.apply_gradients(zip(found, self.policy.trainable_variables, strict=True))
        self._fit_baseline(states, returns)

    def _improve_step(
        self, states: Any, actions: Any, returns: Any, judged: Any, entropy: Any
    ) -> None:
        gains, old = judged
        with tf.GradientTape() as tape:
            logs = tf.nn.log_softmax(self.policy(states))
            ratio = tf.exp(tf.gather(logs, actions, batch_dims=1) - old)
            clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
            gained = tf.reduce_mean(tf.minimum(ratio * gains, clipped * gains))
            spread = -tf.reduce_mean(tf.reduce_sum(tf.exp(logs) * logs, axis=1))
            loss = -gained - entropy * spread
        found, _ = tf.clip_by_global_norm(tape.gradient(loss, self.policy.trainable_variables), 0.5)
        self._steps.apply_gradients(zip(found, self.policy.trainable_variables, strict=True))
        self._fit_baseline(states, returns)

    def _fit_baseline(self, states: Any, returns: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.baseline(states)[:, 0] - returns))
        found = tape.gradient(loss, self.baseline.trainable_variables)
        self._base_steps.apply_gradients(zip(found, self.baseline.trainable_variables, strict=True))


def advantages(rollout: Rollout, values: Floats, unit: float) -> tuple[Floats, Floats]:
    """Return by how much each action was cheaper than V's estimate, and the target for V.

    The last action is not judged: its consequences were not seen to the end.
    """
    costs, discounts = rollout.costs / unit, _discounts(rollout)
    count = len(costs)
    excess = np.zeros(count, np.float32)
    later = 0.0
    for i in range(count - 2, -1, -1):
        error = costs[i] + discounts[i] * values[i + 1] - values[i]
        later = error + discounts[i] * LAMBDA * later
        excess[i] = later
    return -excess, (values + excess).astype(np.float32)


def _to_come(rollout: Rollout) -> Floats:
    """Return G of each action, up to the end of the stretch."""
    costs, discounts = rollout.costs, _discounts(rollout)
    found = np.zeros(len(costs), np.float32)
    later = 0.0
    for i in range(len(costs) - 1, -1, -1):
        later = costs[i] + discounts[i] * later
        found[i] = later
    return found


def _discounts(rollout: Rollout) -> Floats:
    """Return the discount from each action to the next."""
    steps = np.diff(rollout.times, append=rollout.times[-1:])
    left: Floats = np.exp(-steps / TAU)
    return left


def _network(inputs: int, outputs: int) -> Any:
    first = keras.layers.Dense(HIDDEN, activation="relu")
    # Small at first: no action is preferred before anything was learned.
    last = keras.layers.Dense(outputs, kernel_initializer=keras.initializers.RandomNormal(0, 0.01))
    return keras.Sequential([keras.Input((inputs,)), first, last])


def _tensors(*arrays: Any) -> list[Any]:
    return [tf.constant(array) for array in arrays]
