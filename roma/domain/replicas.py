"""Commands that start and stop replicas of models, and a rule for the workers they concern.

An autoscaler of replicas decides on them; `roma.deploy.replicas` carries them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start a replica of a model; without a worker, whoever places replicas chooses it."""

    model: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop a replica of a model, once it has answered what it runs; likewise."""

    model: str
    worker: str | None = None


ReplicaCommand = StartReplica | StopReplica


def commands(
    model: str, count: int, placed: Mapping[str, Sequence[str]]
) -> list[StartReplica] | list[StopReplica]:
    """Return the commands that give a model `count` replicas.

    `placed` are the models of each worker. Replicas start on the workers with the fewest models and
    stop on those with the most; ties keep the order of `placed`, and stop in reverse. Raises
    ValueError for a count below 1 or above the number of workers.
    """
    if not 1 <= count <= len(placed):
        raise ValueError(count)
    here = [worker for worker, models in placed.items() if model in models]
    if count >= len(here):
        free = [worker for worker in placed if worker not in here]
        free.sort(key=lambda worker: len(placed[worker]))
        return [StartReplica(model, worker) for worker in free[: count - len(here)]]
    here.reverse()
    here.sort(key=lambda worker: -len(placed[worker]))
    return [StopReplica(model, worker) for worker in here[: len(here) - count]]
