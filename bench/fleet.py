"""What `clockwork` costs a request at the size of the paper's fleet: 4,026 models, 24 devices.

The whole dispatcher core is measured (books, deadlines, statistics, policy), in virtual time, over
emulated devices: arrival, batches, loads, unloads and their outcomes, divided by the requests.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from dispatcher.schedulers.clockwork import Clockwork
from roma.actions import ModelOffer, pages_of
from roma.events import Command, Event
from roma.sim.fleet import Ended, Fleet, Plan

MODELS = 4026
DEVICES = 24
PAGES = 1984
"""Of 16 MB: 32 GB of a V100 without 1 GB for inputs, outputs and workspace (§5.2)."""

RATES = (2_500, 5_000, 10_000)
SECONDS = 3.0
WARM = 2.0
"""Virtual seconds before what is measured."""

TABLE_1 = (
    (56.5, 4.50, (5.18, 6.29, 8.57, 12.82, 21.85)),
    (95.3, 7.77, (4.46, 6.85, 10.99, 16.45, 26.17)),
    (19.0, 1.55, (1.29, 1.92, 3.13, 5.71, 11.62)),
    (46.7, 3.81, (1.27, 1.86, 2.73, 4.06, 7.02)),
    (102.3, 8.33, (2.61, 3.78, 5.61, 9.13, 15.67)),
    (240.9, 19.58, (7.71, 11.14, 16.21, 26.48, 44.60)),
)


def run() -> None:
    """Print µs per request by rate."""
    table = Table(title=f"clockwork, {MODELS} models on {DEVICES} devices, SLO 100 ms")
    for name in ("req/s", "core, µs per request", "in time", "cold", "LOADs per s"):
        table.add_column(name, justify="right")
    for rate in RATES:
        table.add_row(*_measure(rate))
    Console().print(table)


def _measure(rate: int) -> tuple[str, ...]:
    kinds = [
        ModelOffer(
            pages_of(mb * 1e6),
            load / 1e3,
            dict(zip((1, 2, 4, 8, 16), (r / 1e3 for r in runs), strict=True)),
        )
        for mb, load, runs in TABLE_1
    ]
    models = {f"m{i}": kinds[i % len(kinds)] for i in range(MODELS)}
    seen: Counter[str] = Counter()
    is_measured = False

    def on_end(end: Ended) -> None:
        if is_measured:
            seen["ended"] += 1
            seen["good"] += end.is_good
            seen["cold"] += end.is_cold

    fleet = Fleet(Plan(models, DEVICES, PAGES, 0.1, Clockwork), on_end=on_end)
    draw = random.Random(1)
    # As functions of the Azure trace: a few models have most of the requests (Zipf, exponent 0.9).
    weights = [1 / (i + 1) ** 0.9 for i in range(MODELS)]
    total = sum(weights)
    order = list(models)
    draw.shuffle(order)
    for name, weight in zip(order, weights, strict=True):
        fleet.send(name, _poisson(rate * weight / total, random.Random(draw.random())))
    core, spent = fleet.dispatcher, 0.0
    handle = core.handle

    def timed(event: Event, *, now: float) -> list[Command]:
        nonlocal spent
        start = time.perf_counter()
        commands = handle(event, now=now)
        spent += time.perf_counter() - start
        return commands

    fleet.run(WARM)
    is_measured = True
    fleet.handle = timed
    gc.collect()
    gc.freeze()  # and thresholds, as in `dispatcher.live.app.run`
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    fleet.run(WARM + SECONDS)
    gc.set_threshold(*before)
    gc.unfreeze()
    ended = seen["ended"]
    return (
        f"{rate}",
        f"{spent / ended * 1e6:.1f}",
        f"{seen['good'] / ended:.2%}",
        f"{seen['cold'] / ended:.1%}",
        f"{fleet.loads / (WARM + SECONDS):.0f}",
    )


def _poisson(rate: float, draw: random.Random) -> Iterator[float]:
    time = 0.0
    while True:
        time += draw.expovariate(rate)
        yield time


if __name__ == "__main__":
    run()
