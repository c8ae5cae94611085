"""Value of a shorter control period for a real model: bursts, with ticks every second and five.

A deployment by `roma up` for each, with cgroup quotas and the default law; the same requests at the
same times. Between bursts the model gives its cores back.
"""

import asyncio
import re
import urllib.request
from typing import Any, NamedTuple

from rich.console import Console

from bench.loading import BUSY, Plant, bodies_of, up
from bench.proxies import scratch
from bench.tables import new_table
from roma.config.control import LONG_PERIOD, SHORT_PERIOD
from roma.tools.load import RequestEnd, Stream
from roma.tools.load.client import RestClient
from roma.tools.load.generator import LoadRun
from roma.workload.arrivals import Profile, RateStep, poisson

SERVED = "photos"
PROMISE: dict[str, Any] = {"response_time": 0.25}
PERIODS = (LONG_PERIOD, SHORT_PERIOD)

ON, OFF, BURSTS = 5.0, 7.0, 8


class Outcomes(NamedTuple):
    """A run: shares of all requests, and core-seconds by the supervisor's accounts."""

    requests: int
    late: float  # or refused
    refused: float
    allocated: float
    used: float
    missed: int


def run() -> None:
    """Print late shares and core-seconds, by control period."""
    table = new_table(
        f"{BURSTS} bursts of {ON:g} s with {OFF:g} s between them",
        *("period", "sent", "late", "refused", "allocated", "used", "missed"),
        words=0,
        caption="core-seconds allocated and used",
    )
    cost: float | None = None
    for period in PERIODS:
        with scratch() as directory:
            plant = Plant(directory / "roma.yaml", SERVED, "digits", None)
            plant.promise = PROMISE
            del plant.control["law"]
            plant.control |= {"period": period}
            plant.write(SERVED)
            with up(plant.file, directory / "up.log"):
                cost, found = asyncio.run(_measured(plant, cost))
        shares = f"{found.late:.2%}", f"{found.refused:.2%}"
        cores = f"{found.allocated:.1f}", f"{found.used:.1f}"
        table.add_row(f"{period:g} s", f"{found.requests}", *shares, *cores, f"{found.missed}")
    Console().print(table)


async def _measured(plant: Plant, cost: float | None) -> tuple[float, Outcomes]:
    """Return a request's cost, measured unless it is known, and the outcomes of the bursts."""
    await plant.until(plant.served, 200)
    bodies = bodies_of(plant.served)
    async with RestClient(plant.url) as client:
        warm = await plant.cost(client)
        cost = warm if cost is None else cost
        rate = BUSY * plant.cores / cost
        profile = Profile((RateStep(0.0, OFF), RateStep(rate, ON)) * BURSTS + (RateStep(0.0, OFF),))
        stream = Stream(plant.served, poisson(profile, seed=1), bodies)
        begun, used = _counted(plant), plant.used()
        await LoadRun([stream], client, on_result=plant.results.append).run()
        ended, used = _counted(plant), plant.used() - used
    sent = len(plant.results)
    answered = [r for r in plant.results if r.outcome is RequestEnd.ANSWERED]
    in_time = sum(r.response_time <= PROMISE["response_time"] for r in answered)
    refused = sum(r.outcome is RequestEnd.REJECTED for r in plant.results)
    missed = ended["ticks_missed"] - begun["ticks_missed"]
    allocated = ended["applied_core_seconds"] - begun["applied_core_seconds"]
    found = Outcomes(sent, 1 - in_time / sent, refused / sent, allocated, used, round(missed))
    return cost, found


def _counted(plant: Plant) -> dict[str, float]:
    """Return the supervisor's counters."""
    url = f"http://127.0.0.1:{plant.control['port']}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return {
        name: sum(float(v) for v in re.findall(rf"^roma_{name}_total{{.*}} (\S+)$", text, re.M))
        for name in ("applied_core_seconds", "ticks_missed")
    }
