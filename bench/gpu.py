"""Checks ROMA on a GPU: `python -m bench.gpu`, where one is. Needs PyTorch; not in `make bench`.

One model server on the GPU and one per model on CPUs (`gpu_server.py`), a real `roma up` in front,
and the same Poisson load under two GPU policies, both devices fed from one queue per model. The
load follows the measured cost of a request: it is more than the GPU alone can serve. Exit status 1
if a request was lost or failed, if a device ran nothing, or if the devices disagree about an
answer. Without CUDA the CPU stands in for the GPU, and the first line says so.
"""

import argparse
import asyncio
import base64
import contextlib
import importlib.util
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import orjson
from aiohttp import ClientError, ClientSession
from rich.console import Console

from bench.gpu_report import Outcome, table
from roma.config import schema as configs
from roma.config.executable import Executable
from roma.config.placement import executables
from roma.config.schema import Config
from roma.deploy.child import GRACE, Child
from roma.deploy.model_servers import cgroups
from roma.domain.errors import ActuationNotPermitted, RomaError
from roma.domain.units import milliseconds
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream, run_load
from roma.tools.load.client import RestClient
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.cgroups import Group, container_hierarchy, find_hierarchy
from supervisor.live.gpus import GpuReading, Gpus

POLICIES = ("roma", "round_robin")
MODELS = ("small", "large")
BODIES = 8

OVERLOAD, HEADROOM = 1.2, 0.8
"""The load: OVERLOAD times what the GPU does alone, but at most HEADROOM of what GPU and CPUs do
together, above which random arrivals break the promises under any policy."""

MOST_REQUESTS = 800.0
"""Most requests per second: load generator and gateway share the host, and are not what is
checked."""

PATIENCE, SHORTEST = 8.0, 0.1
"""A promise, as a multiple of a request's time alone on one core, and the shortest in seconds."""

MEASURING, START_LIMIT = 3.0, 180.0
"""Seconds to measure a model on a device, and to wait for a program: PyTorch starts slowly."""

TOLERANCE = 0.01
"""Of the largest number in an answer: a GPU multiplies with 10 bits of mantissa (TF32)."""

_MODEL = "{{sla: {{response_time: {:.3f}, statistic: p95}}, cpu: {{initial: {}}}}}"
_ROMA = """
name: {name}
models: {{small: {small}, large: {large}}}
workers:
  - backend: static
    cores: {cores}
    reserved: {reserved}    # to feed the GPU (or play it), for the gateway and the load generator
    executables:
      - {{url: "http://127.0.0.1:{ports[0]}", device: gpu}}
      - {{url: "http://127.0.0.1:{ports[1]}", model: small, cgroup: {groups}/small}}
      - {{url: "http://127.0.0.1:{ports[2]}", model: large, cgroup: {groups}/large}}
scheduling: {{gpu: {policy}}}
control: {{port: {ports[3]}, cfs_period: 0.05}}
gateway: {{port: {ports[4]}, admin_port: {ports[5]}}}
"""


class Unfit(RomaError):
    """The check cannot continue; the message says why."""


class Check:
    """A check; roma.yaml and logs go to `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cores = len(os.sched_getaffinity(0))
        self._reserved = min(3.0, 0.75 * self._cores)
        self._each = (self._cores - self._reserved) / len(MODELS)
        self._ports = free_ports(6)
        self._gpus = Gpus()
        self._supervisor, self._gateway, self._admin = (
            f"http://127.0.0.1:{port}" for port in self._ports[3:]
        )

    async def run(self, seconds: float, seed: int) -> list[str]:
        """Print how the load fared under each policy; return the faults."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        console = Console(soft_wrap=True)
        config = self._configure(POLICIES[0], dict.fromkeys(MODELS, 60.0))
        gpu, *cpus = executables(config)
        on_gpu, on_cpu, answers = {}, {}, {}
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._gpus)
            groups = await _groups(config, stack)
            told = await stack.enter_async_context(self._server(gpu))
            console.print(f"{told['device']}; torch {told['torch']}, weights random")
            bodies = {model: _bodies(side, seed) for model, side in told["sides"].items()}
            # Through ROMA, two at once: the GPU's wait for the gateway is part of its time.
            async with self._roma(POLICIES[0], ready=1):
                for m in MODELS:
                    on_gpu[m], answers[m] = await _ask(self._gateway, m, bodies[m], 2)
            for m, cpu in zip(MODELS, cpus, strict=True):
                await stack.enter_async_context(self._server(cpu, groups.get(cpu.name)))
                on_cpu[m], expected = await _ask(cpu.url, m, bodies[m], 1)
                off = np.abs(answers[m] - expected).max() / np.abs(expected).max()
                if not off <= TOLERANCE:
                    raise Unfit(f"model {m}: the answers of GPU and CPU differ by {off:.1%}")
            rates = self._rates(on_gpu, on_cpu)
            for m, rate in rates.items():
                times = f"{milliseconds(on_gpu[m]):.1f} ms on the GPU"
                times += f", {milliseconds(on_cpu[m]):.1f} ms on a core"
                console.print(f"{m}: a request takes {times}; load: {rate:.1f} requests/s")
            promises = {m: max(SHORTEST, PATIENCE * on_cpu[m]) for m in MODELS}
            outcomes = []
            for policy in POLICIES:
                self._configure(policy, promises)
                for group in groups.values():
                    group.set_cores(self._each)  # the starting point of each policy
                streams = []
                for i, m in enumerate(MODELS):
                    arrivals = poisson(Profile((RateStep(rates[m], seconds),)), seed=seed + i)
                    streams.append(Stream(m, arrivals, bodies[m], promises[m]))
                outcomes.append(await self._under(policy, streams))
        load = sum(rates[m] * on_gpu[m] for m in MODELS)
        console.print(f"{seconds:g} s at {load:.2f} × what the GPU does alone; times in ms")
        console.print(table(outcomes))
        for outcome in outcomes:
            console.print(outcome.notes())
        return [fault for outcome in outcomes for fault in outcome.faults()]

    def _configure(self, policy: str, promises: Mapping[str, float]) -> Config:
        """Write the policy's roma.yaml; promises are in seconds."""
        file = self._directory / f"{policy}.yaml"
        models = {m: _MODEL.format(promise, self._each) for m, promise in promises.items()}
        name = f"roma-gpu-{os.getpid()}"
        text = _ROMA.format(
            name=name,
            groups=_root() / name,
            cores=self._cores,
            reserved=self._reserved,
            ports=self._ports,
            policy=policy,
            **models,
        )
        file.write_text(text)
        return configs.load(file)

    def _rates(self, gpu: Mapping[str, float], cpu: Mapping[str, float]) -> dict[str, float]:
        """Return requests per second; each model asks for the same share of the GPU's time."""
        share = 1 / len(MODELS)
        helped = sum(min(self._each * gpu[m] / cpu[m], OVERLOAD * share) for m in MODELS)
        load = min(OVERLOAD, HEADROOM * (1 + helped))
        rates = {m: load * share / gpu[m] for m in MODELS}
        slower = min(1.0, MOST_REQUESTS / sum(rates.values()))
        return {m: slower * rate for m, rate in rates.items()}

    async def _under(self, policy: str, streams: Sequence[Stream]) -> Outcome:
        readings: list[GpuReading] = []
        async with self._roma(policy, ready=1 + len(MODELS)):
            watching = asyncio.create_task(self._watch(readings))
            result = await run_load(streams, self._gateway)
            watching.cancel()
            state = await _get(f"{self._supervisor}/control/v1/state")
            report = await _get(f"{self._admin}/control/v1/report")
        dispatched = {model["model"]: model for model in report["models"]}
        return Outcome(policy, state["mode"], result.models, dispatched, readings)

    async def _watch(self, readings: list[GpuReading]) -> None:
        while True:
            await asyncio.sleep(1)
            readings += self._gpus.read()

    @contextlib.asynccontextmanager
    async def _roma(self, policy: str, *, ready: int) -> AsyncIterator[None]:
        """Run dispatcher and supervisor; the block begins when so many executables are ready."""
        argv = [sys.executable, "-m", "roma", "up", str(self._directory / f"{policy}.yaml")]
        child = Child(f"roma-{policy}", argv, log_dir=self._directory, grace=3 * GRACE)
        child.start()
        try:
            await _until(child, f"{self._supervisor}/control/v1/state")
            await _until(
                child,
                f"{self._admin}/control/v1/report",
                lambda report: [e["state"] for e in report["executors"]].count("idle") >= ready,
            )
            yield
        finally:
            await child.stop()

    @contextlib.asynccontextmanager
    async def _server(self, e: Executable, group: Group | None = None) -> AsyncIterator[Any]:
        """Run a model server, without a quota yet; yield what it reports about itself."""
        options = [f"--port={e.port}", f"--device={e.spec.device}", f"--slots={e.concurrency}"]
        models = [f"--model={model}" for model in e.spec.models]
        child = Child(
            e.name,
            [sys.executable, "-m", "bench.gpu_server", *options, *models],
            env={"OMP_NUM_THREADS": "1"},  # a request uses one core
            log_dir=self._directory,
            on_start=group.add if group else lambda _: None,
        )
        try:
            if group:
                group.lift()
            child.start()
            yield await _until(child, f"{e.url}/device")
        finally:
            if group:
                group.lift()  # nobody waits for it to stop on a part of a core
            await child.stop()


def _root() -> PurePath:
    """Return the group below which ours can be made, below the cgroup mount."""
    try:
        return find_hierarchy().roots[0].relative_to(container_hierarchy().roots[0])
    except ActuationNotPermitted:
        return PurePath()  # the supervisor logs the reason


async def _groups(config: Config, stack: contextlib.AsyncExitStack) -> dict[str, Group]:
    """Return a cgroup per CPU executable; none where no quota can be set."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted:
        return {}  # the supervisor logs the reason
    ours = [
        e if e.cgroup is None else replace(e, cgroup=str(PurePath(e.cgroup).relative_to(_root())))
        for e in executables(config)
    ]
    return await stack.enter_async_context(cgroups(config, hierarchy, ours))


async def _until(child: Child, url: str, is_ready: Callable[[Any], bool] = bool) -> Any:
    """Return the answer at `url` once it is ready; raise Unfit if the program exits instead."""
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and not child.restarts and not child.fatal.done():
        with contextlib.suppress(ClientError, OSError):
            if is_ready(found := await _get(url)):
                return found
        await asyncio.sleep(0.1)
    raise Unfit(f"{child.name} did not get ready{child.last_words()}")


async def _get(url: str) -> Any:
    async with ClientSession() as session, session.get(url, raise_for_status=True) as response:
        return await response.json()


async def _ask(
    url: str, model: str, bodies: Sequence[bytes], at_once: int
) -> tuple[float, np.ndarray]:
    """Return the seconds per request with `at_once` in flight, and the answers to `bodies`."""
    numbers, answers = itertools.count(), {}
    async with RestClient(url) as client:

        async def keep_asking() -> None:
            while (n := next(numbers)) < len(bodies) or time.perf_counter() < start + MEASURING:
                answer = await client.predict(model, bodies[n % len(bodies)])
                if answer.status != 200:
                    raise Unfit(f"model {model} at {url}: {answer.status}: {answer.body!r}")
                answers[n] = orjson.loads(answer.body)["predictions"][0]

        start = time.perf_counter()
        await asyncio.gather(*(keep_asking() for _ in range(at_once)))
        seconds = time.perf_counter() - start
    return seconds / len(answers), np.array([answers[n] for n in range(len(bodies))])


def _bodies(side: int, seed: int) -> list[bytes]:
    draw = random.Random(seed)
    images = [base64.b64encode(draw.randbytes(3 * side**2)).decode() for _ in range(BODIES)]
    return [orjson.dumps({"instances": [{"b64": image}]}) for image in images]


def main() -> None:
    """Check, and exit with 1 and a line per fault if there is one."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Check ROMA on a GPU.")
    parser.add_argument("--seconds", type=float, default=30.0, help="load per policy (30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load (1)")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench.gpu: PyTorch is missing; install it with: pip install torch")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    directory = Path(tempfile.mkdtemp(prefix="roma-gpu-"))
    try:
        faults = asyncio.run(Check(directory).run(options.seconds, options.seed))
    except RomaError as error:
        faults = [str(error)]
    except (KeyboardInterrupt, asyncio.CancelledError):
        faults = ["interrupted"]
    if faults:
        sys.exit("\n".join([*faults, f"logs: {directory}"]))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
