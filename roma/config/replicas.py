"""Which workers run a CPU executable of which model: a pure function of names and numbers.

Never two replicas of a model on one worker (paper §2.2): a replica that needs more gets more cores.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class Placement(StrEnum):
    """Which workers get a model's replicas."""

    BALANCE = "balance"
    """Those with the fewest executables."""
    PACK = "pack"
    """The first ones, until each has `per_worker` executables."""


def assign(
    replicas: Mapping[str, int | None],
    workers: Sequence[str],
    placement: Placement,
    per_worker: int | None,
) -> dict[str, list[str]]:
    """Return the models of each worker; `None` replicas means one on every worker.

    Models are placed in the order of the file, those with the most replicas first, since they have
    the least choice. Raises ValueError naming the model that does not fit.
    """
    placed: dict[str, list[str]] = {worker: [] for worker in workers}
    wanted = {m: len(workers) if n is None else n for m, n in replicas.items()}
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
