"""Lower bound on the work that no scheduler can do: the excess over all devices within an SLO."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import repeat, takewhile

from roma.domain.actions import ModelCapabilities


def unservable(
    sends: Iterable[tuple[str, Iterator[float]]],
    models: Mapping[str, ModelCapabilities],
    *,
    devices: int,
    slo: float,
    begin: float,
    end: float,
) -> float:
    """Return the least share of the work from `begin` to `end` that is not done within `slo`.

    Times in seconds. A relaxation: every device holds every model, requests are divisible among the
    devices and cost what they do in their model's best batch. As all deadlines are alike, the least
    is lost by serving requests in order of arrival, each as far as there is room for it.
    """
    cost = {name: min(s / b for b, s in offer.executions.items()) for name, offer in models.items()}
    arrivals = merge(
        *(
            zip(takewhile(lambda time: time < end, times), repeat(cost[model]))
            for model, times in sends
        )
    )
    backlog = last = lost = total = 0.0
    for time, work in arrivals:
        backlog = max(0.0, backlog - devices * (time - last))
        taken = min(work, devices * slo - backlog)
        backlog, last = backlog + taken, time
        if time >= begin:
            total += work
            lost += work - taken
    return lost / total if total else 0.0
