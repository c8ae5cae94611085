"""Assignment of CPU executables to workers: a pure function of names and numbers.

A worker never has two replicas of a model (paper §2.2): a replica that needs more gets more cores.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class Placement(StrEnum):
    """Strategy for choosing the workers of a model's replicas."""

    BALANCE = "balance"
    """The workers with the fewest executables."""
    PACK = "pack"
    """The first workers, until each has `per_worker` executables."""


def assign(
    replicas: Mapping[str, int | None],
    workers: Sequence[str],
    placement: Placement,
    per_worker: int | None,
    pinned: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[str]]:
    """Return the models of each worker; `None` replicas means one on every worker.

    `pinned` are models whose workers are given; they are placed first. The others
    follow, those with the most replicas first, since they have the least choice; ties keep the
    order of the file. Raises ValueError naming the model that does not fit.
    """
    placed: dict[str, list[str]] = {worker: [] for worker in workers}
    pinned = pinned or {}
    for model, chosen in pinned.items():
        for worker in chosen:
            placed[worker].append(model)
            if per_worker is not None and len(placed[worker]) > per_worker:
                raise ValueError(model)
    wanted = {m: len(workers) if n is None else n for m, n in replicas.items() if m not in pinned}
    for model, count in sorted(wanted.items(), key=lambda entry: -entry[1]):
        free = [w for w in workers if per_worker is None or len(placed[w]) < per_worker]
        if len(free) < count:
            raise ValueError(model)
        if placement is Placement.BALANCE:
            free.sort(key=lambda worker: len(placed[worker]))
        for worker in free[:count]:
            placed[worker].append(model)
    order = {model: i for i, model in enumerate(replicas)}
    return {w: sorted(models, key=order.__getitem__) for w, models in placed.items()}
