"""Time and CPU to set the cores of twenty executables: through the engine, and by cgroup.

The engine is asked by the broker's own calls and, beside them, by the docker package in threads.
That part needs a Docker engine and the image `roma/control:dev` (`make images`); any image with a
`sleep` will do (ROMA_BENCH_IMAGE). Jitter is the delay of ticks while quotas are set.
"""

import asyncio
import contextlib
import functools
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

import docker
from rich.console import Console

from bench.tables import new_table
from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.domain import units
from roma.domain.errors import ActuationError
from roma.domain.stats import quantile
from roma.telemetry.threads import in_thread
from supervisor.actuators.cgroup import CgroupActuator
from supervisor.actuators.recording import RecordingActuator
from supervisor.assembly import build_core
from supervisor.broker.broker import Broker
from supervisor.broker.containers import EXECUTABLE, owned
from supervisor.broker.engine import connected
from supervisor.cgroups import find_hierarchy
from supervisor.live.loop import ControlLoop

EXECUTABLES = 20
TICKS = 100
PERIOD = 0.2
"""Seconds between two settings; the control loop that runs meanwhile has the same period."""

IMAGE = os.environ.get("ROMA_BENCH_IMAGE", "roma/control:dev")

Measured = tuple[list[float], list[float], float]
"""The seconds of each tick's setting, the loop's jitters, and the CPU-seconds of it all."""

Apply = Callable[[Mapping[str, float]], Awaitable[Mapping[str, float | ActuationError]]]


def run() -> None:
    """Print the time of one tick's actuation, and the jitter of a concurrent loop."""
    title = f"setting the cores of {EXECUTABLES} executables, ms ({TICKS} ticks)"
    columns = ("through", "median", "p99", "jitter of ticks, p99", "CPU per tick")
    table = new_table(title, *columns)
    ways = {
        "the engine": _by_engine,
        "the engine, docker package": lambda: _by_engine(package=True),
        "cgroup files": _by_cgroup,
    }
    for name, measure in ways.items():
        durations, jitters, cpu = asyncio.run(measure())
        quantiles = (quantile(durations, 0.5), quantile(durations, 0.99), quantile(jitters, 0.99))
        figures = (*quantiles, cpu / TICKS)
        table.add_row(name, *(f"{1000 * figure:.1f}" for figure in figures if figure is not None))
    Console().print(table)


def _config() -> Config:
    return Config.model_validate(
        {
            "name": f"bench-{os.getpid()}",
            "models": {
                f"m{i}": {"path": "/", "sla": {"response_time": 1}} for i in range(EXECUTABLES)
            },
            "workers": [{"name": "w", "backend": "docker", "cores": EXECUTABLES}],
        }
    )


async def _by_engine(*, package: bool = False) -> Measured:
    config = _config()
    (worker,) = config.workers
    async with connected(worker.containers) as engine, contextlib.AsyncExitStack() as stack:
        broker = Broker(config, worker, engine, time.monotonic)
        for executable in on_worker(config, worker):
            assert executable.container is not None
            body = {
                "Image": IMAGE,
                "Entrypoint": ["sleep", "infinity"],
                "Labels": {**owned(config, worker), EXECUTABLE: executable.name},
                "HostConfig": {"CpuPeriod": 100_000, "CpuQuota": 100_000, "NetworkMode": "none"},
            }
            try:
                await engine.create(executable.container, body)
            except ActuationError as error:
                sys.exit(f"actuation bench: {error}")
            stack.push_async_callback(engine.remove, executable.container, grace=0)
            await engine.start(executable.container)
        if not package:
            return await _measured(config, broker.grant)
        found = await broker.containers()
        ids = {name: container.id for name, container in found.items()}
        with contextlib.closing(docker.APIClient(worker.containers.host)) as client:
            period = units.period_us(config.control.cfs_period)

            async def apply(wanted: Mapping[str, float]) -> dict[str, float | ActuationError]:
                """Set quotas as the broker does, all at once."""
                calls = (
                    in_thread(
                        functools.partial(
                            client.update_container,
                            ids[name],
                            cpu_period=period,
                            cpu_quota=units.quota_us(cores, config.control.cfs_period),
                        )
                    )
                    for name, cores in wanted.items()
                )
                await asyncio.gather(*calls)
                return dict(wanted)

            return await _measured(config, apply)


async def _by_cgroup() -> Measured:
    config, hierarchy = _config(), find_hierarchy()
    (worker,) = config.workers
    with contextlib.ExitStack() as stack:
        groups = {}
        for executable in on_worker(config, worker):
            path = f"{config.name}/{executable.spec.models[0]}"
            hierarchy.prepare(path)
            groups[executable.name] = hierarchy.group(path, config.control.cfs_period)
            groups[executable.name].create()
            stack.callback(groups[executable.name].remove)
        return await _measured(config, CgroupActuator(groups).apply)


async def _measured(config: Config, apply: Apply) -> Measured:
    """Set other cores at every tick."""
    (worker,) = config.workers
    core = build_core(config, worker)
    loop = ControlLoop(core, RecordingActuator(), [], worker=worker.name, period=PERIOD)
    ticking = asyncio.create_task(loop.run())
    draw, durations = random.Random(1), []
    began = time.process_time()
    for _ in range(TICKS):
        wanted = {name: draw.uniform(0.1, 1.0) for name in core.status}
        start = time.perf_counter()
        results = await apply(wanted)
        durations.append(time.perf_counter() - start)
        for result in results.values():
            if isinstance(result, ActuationError):
                sys.exit(f"actuation bench: {result}")
        await asyncio.sleep(PERIOD)
    cpu = time.process_time() - began
    ticking.cancel()
    return durations, list(loop.jitters), cpu
