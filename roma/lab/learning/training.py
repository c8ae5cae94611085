"""Imitate the heuristic, follow the gradient, and keep the best: a policy for some devices.

The same seed on the same machine writes the same file: a training is a number of rounds, not of
minutes, and what other processes simulate depends on nothing but weights and seeds.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, resource_tracker
from typing import Any, Final

import numpy as np

from dispatcher.schedulers.qos.heuristic import Qos
from roma.config.policy_file import (
    FORMAT,
    Policy,
    PolicyAction,
    PolicyDevice,
    PolicyLayer,
    PolicyTraining,
    PolicyVariant,
)
from roma.lab.learning.rollouts import Rollout, Task, roll, score
from roma.telemetry.orphans import begin_in_pool, ended_on_error
from roma.tensors import frameworks

BEFORE: Final = 4
AFTER: Final = 6
"""N_pre and N_post (§4.2)."""

WAIT: Final = 0.05
"""Seconds to wait. Less than the time of the smallest batch: waiting queries miss no device by
it."""

DIGITS: Final = 5
"""Digits of a weight in the file; scoring uses the rounded weights."""

RATES: Final = (1e-3, 1e-4)
"""Learning rate of the first round and of the last."""
ENTROPY: Final = (0.01, 0.0005)
"""Weight of the entropy in the first round and in the last."""

UNSEEN: Final = 1_000_000
"""First seed of the stretches that choose among rounds; no training uses these."""


@dataclass(frozen=True, slots=True)
class Course:
    """Length of a training: `rounds` of as many `stretches` each.

    Every `every` rounds the policy is scored on `exams` stretches, and the best is kept.
    """

    rounds: int
    stretches: int = 8
    every: int = 10
    exams: int = 8
    imitations: int = 8
    epochs: int = 30
    processes: int = 2


@dataclass(frozen=True, slots=True)
class TrainingRound:
    """Results of a scored round."""

    round: int
    score: float
    best: float
    teacher: float


Map = Callable[[Callable[[int], Any], Sequence[int]], list[Any]]
"""Applies a function to seeds, possibly in other processes."""


def empty(task: Task, types: Sequence[tuple[str, int]]) -> Policy:
    """Return an untrained policy.

    `types` names the devices' types and their numbers, in the order of `task.plan.kinds`.
    """
    variants = task.plan.variants[task.model]
    devices, first = [], 0
    for name, count in types:
        offered = task.plan.kinds[first]
        seconds = {v.name: dict(offered[v.name].executions) for v in variants}
        devices.append(PolicyDevice(name=name, count=count, seconds=seconds))
        first += count
    sizes = {v.name: {b for d in devices for b in d.seconds[v.name]} for v in variants}
    actions = [PolicyAction(batch=0)]
    for v in variants:
        actions += [PolicyAction(batch=b, variant=v.name) for b in sorted(sizes[v.name])]
    inputs = BEFORE + AFTER + 2 + len(devices) + sum(d.count for d in devices)
    return Policy(
        format=FORMAT,
        variants=tuple(PolicyVariant(name=v.name, accuracy=v.accuracy) for v in variants),
        devices=tuple(devices),
        utility=task.plan.quality.utility,
        bin=task.plan.quality.bin,
        before=BEFORE,
        after=AFTER,
        wait=WAIT,
        actions=tuple(actions),
        mean=(0.0,) * inputs,
        scale=(1.0,) * inputs,
        hidden=PolicyLayer(weights=((0.0,),) * inputs, bias=(0.0,)),
        output=PolicyLayer(weights=((0.0,) * len(actions),), bias=(0.0,) * len(actions)),
        training=PolicyTraining(command="", seed=0, hours="", rounds=0, score=0, teacher=0),
    )


def train(
    task: Task,
    blank: Policy,
    course: Course,
    told: PolicyTraining,
    *,
    on_progress: Callable[[TrainingRound], None] = lambda _: None,
) -> Policy:
    """Return the best policy found; `told` is the provenance that its file records."""
    frameworks.claim("tensorflow")
    from roma.lab.learning.gradient import Learner  # noqa: PLC0415 - TensorFlow, for this process alone

    with _processes(course.processes) as each:
        first = told.seed * 10_000_000
        exams = range(first + UNSEEN, first + UNSEEN + course.exams)
        teacher = _mean(each(partial(score, task, blank, kind=Qos), exams))
        lessons = range(first, first + course.imitations)
        taught: list[Rollout] = each(partial(roll, task, blank, teach=True), lessons)
        states = np.concatenate([r.states for r in taught])
        learner = Learner(states, len(blank.actions), told.seed, rate=RATES[0])
        learner.imitate(taught, course.epochs)
        best, most = blank, -1.0
        for done in range(course.rounds + 1):
            policy = _written(blank, learner)
            if done % course.every == 0 or done == course.rounds:
                found = _mean(each(partial(score, task, policy), exams))
                if found > most:
                    best, most = policy, found
                on_progress(TrainingRound(done, found, most, teacher))
            if done == course.rounds:
                break
            begin = first + course.imitations + done * course.stretches
            part = done / max(1, course.rounds - 1)
            learner.set_rate(_between(RATES, part))
            stretches = range(begin, begin + course.stretches)
            learner.improve(each(partial(roll, task, policy), stretches), _between(ENTROPY, part))
    training = told.model_copy(
        update={"rounds": course.rounds, "score": round(most, 4), "teacher": round(teacher, 4)}
    )
    return best.model_copy(update={"training": training})


def _between(ends: tuple[float, float], part: float) -> float:
    return float(ends[0] * (ends[1] / ends[0]) ** part)


def _written(blank: Policy, learner: Any) -> Policy:
    weights, bias, output, output_bias = [_rounded(w) for w in learner.weights]
    return Policy.model_validate(
        blank.model_dump()
        | {
            "mean": _rounded(learner.mean),
            "scale": _rounded(learner.scale),
            "hidden": {"weights": weights, "bias": bias},
            "output": {"weights": output, "bias": output_bias},
        }
    )


def _rounded(array: Any) -> Any:
    return np.round(np.asarray(array, float), DIGITS).tolist()


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


@contextmanager
def _processes(count: int) -> Iterator[Map]:
    """Spread work over processes; with one, run it here."""
    if count == 1:
        yield lambda function, seeds: [function(seed) for seed in seeds]
        return
    # Not forked: a fork would copy TensorFlow's locks without its threads.
    with (
        ProcessPoolExecutor(count, get_context("spawn"), begin_in_pool) as pool,
        ended_on_error(pool),
    ):
        yield partial(_spread, pool)


def _spread(pool: ProcessPoolExecutor, function: Any, seeds: Sequence[int]) -> list[Any]:
    # Ctrl-C is held back while processes start, and from them until they leave it to this one.
    resource_tracker.ensure_running()  # it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        results = pool.map(function, seeds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return list(results)
