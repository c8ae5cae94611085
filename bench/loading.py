"""Effect of a loading model on one that serves: p50 and p99 while it loads, against quiet times.

A deployment by `roma up`, with the demo's real models and the defaults of roma.yaml. One model has
a steady open-loop load. Each round measures its times first while nothing else happens, then while
another model, added to the file, imports TensorFlow, loads and warms up; then that model is
removed. The load generator runs beside it on the same cores, at a cost of some 0.3 ms per request.
"""

import asyncio
import sys
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml
from rich.console import Console

from bench.builds import environment
from bench.programs import program
from bench.proxies import scratch
from bench.tables import new_table
from roma.config import file_edit
from roma.tools.demo import inputs, models, plan
from roma.tools.demo.ports import free_ports
from roma.tools.load import RequestEnd, RequestResult, Stream
from roma.tools.load.client import RestClient
from roma.tools.load.generator import LoadRun
from roma.tools.load.report import Distribution
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.cgroups import find_hierarchy

SERVED = "photos"
ROUNDS = 5
QUIET = 15.0
"""Seconds of each quiet time; a load takes about as long."""

SETTLING = 5.0
"""Seconds after a model is removed, and before the first round, in which the law settles."""

SHARE = 0.7
"""Share of the allocatable cores for the model that serves; the other has the rest."""

BUSY = 0.5
"""Offered load, as a share of what these cores can serve."""

PROFILE_RATE, PROFILE_SECONDS = 8.0, 10.0

CFS_PERIOD = 0.05
"""Seconds: half the default halves the stall of a spent quota."""

READY_LIMIT = 90.0


class Times(NamedTuple):
    """Response times in seconds, and the share that was refused or failed."""

    p50: float
    p99: float
    refused: float


class Pair(NamedTuple):
    """A round; `seconds` is how long the other model took to load."""

    quiet: Times
    loading: Times
    seconds: float


class Plant:
    """A deployment of one model, its file, and a load whose results are kept."""

    def __init__(self, file: Path, served: str, loaded: str, initial: float | None) -> None:
        self.file, self.served, self.loaded = file, served, loaded
        prepared = models.prepare(Path(".cache"))
        self._paths = {name: str(model.path.resolve()) for name, model in prepared.items()}
        gateway, admin, supervisor, self._first, _ = free_ports(5)
        self.name, self.url = f"bench-{gateway}", f"http://127.0.0.1:{gateway}"
        self._ports = {"port": gateway, "admin_port": admin}
        # The law's own steps would hide the effect that is measured.
        self.control: dict[str, Any] = {
            "port": supervisor,
            "cfs_period": CFS_PERIOD,
            "law": "static",
        }
        self.promise: dict[str, Any] = {"response_time": 0.5, "statistic": "p95"}
        self.machine = plan.DemoMachine.here()
        self.cores = round(SHARE * self.machine.allocatable, 2)
        self.cpu = {} if initial is None else {"initial": initial}
        self.results: list[RequestResult] = []

    def write(self, *names: str) -> None:
        """Write the file with these models."""
        cpu = {self.served: {"max": self.cores}, self.loaded: self.cpu}
        document: dict[str, Any] = {
            "name": self.name,
            "models": {
                name: {"path": self._paths[name], "sla": self.promise, "cpu": cpu[name]}
                for name in names
            },
            "workers": [
                {
                    "cores": self.machine.cores,
                    "reserved": round(self.machine.reserved, 3),
                    "base_port": self._first,
                }
            ],
            "gateway": self._ports,
            "control": self.control,
        }
        file_edit.output(self.file, yaml.safe_dump(document, sort_keys=False))

    async def until(self, name: str, status: int) -> None:
        """Wait until the gateway answers this status for a model; exit if it does not."""
        url = f"{self.url}/v1/models/{name}"
        await asyncio.to_thread(until_status, url, status, limit=READY_LIMIT)

    def used(self) -> float:
        """Return the core-seconds that the served model has used."""
        path = f"{self.name}/local/{self.served}"
        return find_hierarchy().group(path, CFS_PERIOD).read().usage

    async def cost(self, client: RestClient) -> float:
        """Return the core-seconds of a request, from a few trial requests."""
        before = self.used()
        few = poisson(Profile((RateStep(PROFILE_RATE, PROFILE_SECONDS),)), seed=0)
        done = await LoadRun([Stream(self.served, few, bodies_of(self.served))], client).run()
        return (self.used() - before) / done.total.answered

    def between(self, since: float, until: float) -> Times:
        """Return the times of requests that were due in a part of the run, in seconds of it."""
        found = [r for r in self.results if since <= r.intended < until]
        answered = [r.response_time for r in found if r.outcome is RequestEnd.ANSWERED]
        spread = Distribution.of(answered)
        if spread is None:
            sys.exit("bench: nothing was answered")
        shares = spread.percentiles
        return Times(shares["p50"], shares["p99"], 1 - len(answered) / len(found))


def run(served: str = SERVED, initial: float | None = None) -> None:
    """Print both times of each round, and the median of their ratios.

    `initial` is `cpu.initial` of the model that loads, in cores; None: its default.
    """
    others = [name for name in models.MODELS if name != served]
    if served not in models.MODELS:
        sys.exit(f"loading = {served}: must be one of {', '.join(models.MODELS)}")
    with scratch() as directory:
        plant = Plant(directory / "roma.yaml", served, others[0], initial)
        plant.write(served)
        with up(plant.file, directory / "up.log"):
            rate, pairs = asyncio.run(_measured(plant))
    _print(plant, rate, pairs)


async def _measured(plant: Plant) -> tuple[float, list[Pair]]:
    await plant.until(plant.served, 200)
    bodies = bodies_of(plant.served)
    async with RestClient(plant.url) as client:
        rate = BUSY * plant.cores / await plant.cost(client)
        # Longer than needed; it is ended after the last round.
        profile = Profile((RateStep(rate, 3600.0),))
        stream = Stream(plant.served, poisson(profile, seed=1), bodies)
        load = LoadRun([stream], client, on_result=plant.results.append)
        sending = asyncio.create_task(load.run())
        clock = asyncio.get_running_loop().time
        start = clock()
        await asyncio.sleep(SETTLING)
        marks = []
        for _ in range(ROUNDS):
            quiet = clock() - start
            await asyncio.sleep(QUIET)
            begun = clock() - start
            plant.write(plant.served, plant.loaded)
            await plant.until(plant.loaded, 200)
            ended = clock() - start
            marks.append((quiet, begun, ended))
            plant.write(plant.served)
            await plant.until(plant.loaded, 404)
            await asyncio.sleep(SETTLING)
        load.stop()
        await sending
    return rate, [
        Pair(plant.between(quiet, begun), plant.between(begun, ended), ended - begun)
        for quiet, begun, ended in marks
    ]


def bodies_of(model: str) -> list[bytes]:
    """Return what clients send to a model of the demo."""
    if model == "photos":
        return inputs.photo_bodies(16, 1)
    return [body for body, _ in inputs.digits_held_out()]


def status_of(url: str) -> int:
    """Return the gateway's status for a model, 503 also while it is unavailable; else 0."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return 200 if b'"AVAILABLE"' in answer.read() else 503
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until_status(url: str, *statuses: int, limit: float) -> None:
    """Wait until the gateway's status for a model is one of these; exit if it is not."""
    deadline = time.monotonic() + limit
    while (status := status_of(url)) not in statuses:
        if time.monotonic() > deadline:
            sys.exit(f"bench: {url} was {status} for {limit:g} s, not {statuses}")
        time.sleep(0.1)


def up(
    file: Path, log: Path, core: int | None = None, build: str = "interpreted"
) -> AbstractContextManager[int]:
    """Run a deployment, on one core if asked to; the context is the launcher's process id."""
    argv = [sys.executable, "-m", "roma", "up", str(file)]
    return program(argv, core, environment(build), log=log)


def _print(plant: Plant, rate: float, pairs: list[Pair]) -> None:
    table = new_table(
        f"{plant.served} at {rate:.1f} req/s ({BUSY:.0%} of {plant.cores:g} "
        f"cores) while {plant.loaded} loads",
        *("round", "quiet p50 / p99, ms", "loading p50 / p99, ms", "p50 ×", "p99 ×"),
        *("refused", "loaded in, s"),
        words=0,
        caption="aim: p99 × ≤ 1.2, the median of the rounds",
    )
    ratios = [(p.loading.p50 / p.quiet.p50, p.loading.p99 / p.quiet.p99) for p in pairs]
    for i, (pair, (half, most)) in enumerate(zip(pairs, ratios, strict=True), 1):
        refused = f"{pair.quiet.refused:.1%} / {pair.loading.refused:.1%}"
        times = (_ms(pair.quiet), _ms(pair.loading), f"{half:.2f}", f"{most:.2f}")
        table.add_row(f"{i}", *times, refused, f"{pair.seconds:.1f}")
    middle = [f"{median(values):.2f}" for values in zip(*ratios, strict=True)]
    table.add_row("median", "", "", *middle, "", f"{median(p.seconds for p in pairs):.1f}")
    Console().print(table)


def _ms(times: Times) -> str:
    return f"{1000 * times.p50:.1f} / {1000 * times.p99:.1f}"
