"""The edge of profiling: starts model servers, sets quotas, sends requests, reads kernel counters.

One request at a time: the next is sent when the last is answered. Work that the server does after
an answer is charged to the next request, so that no CPU time is lost between two.
"""

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from roma.config.executable import Executable
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.config.sockets import reached
from roma.deploy.child import Child
from roma.deploy.model_servers import cgroups, model_server
from roma.domain.errors import ActuationError, ActuationNotPermitted, ConfigError, LaunchError
from roma.domain.units import milliseconds
from roma.tools.load.client import RestClient
from roma.tools.load.errors import NoAnswerError
from roma.tools.profiling import inputs, machine, summary
from roma.tools.profiling.inputs import Inputs
from roma.tools.profiling.plan import Target
from roma.tools.profiling.summary import MeasuredRun, RequestSample
from supervisor.cgroups import Group, Hierarchy, find_hierarchy

log = logging.getLogger(__name__)

WARM_UP = 5
"""Requests of a new batch size that are not counted: TensorFlow plans and allocates for it."""

LEAST = 10
"""Fewest requests per point, however long they take: fewer have no meaningful median."""

LOAD_LIMIT = 180.0
"""Seconds for one model to load and warm up."""

REQUEST_LIMIT = 300.0
"""Seconds for one request: a second of work on a hundredth of a core, plus a margin."""

OTHERS = 0.1
"""Share of the machine that other programs may use before a warning is logged."""

STATUS_LIMIT = 5.0
"""Seconds for a status or metadata call."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a measurement: batch sizes, seconds per point, the caller's inputs by model."""

    batches: Sequence[int]
    seconds: float
    bodies: Mapping[str, Inputs]
    cores: float
    """The machine's cores; a point with this many sets no quota."""


async def measure(config: Config, target: Target, settings: Settings) -> ModelProfile:
    """Measure one model; leave nothing behind. Raises ConfigError and LaunchError."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted as error:
        raise LaunchError(f"without CPU quotas no cost can be measured: {error}") from error
    # Before anything is started: these inputs may be wrong.
    given = settings.bodies.get(target.model) or _own_inputs(target)
    try:
        async with _serving(config, target, hierarchy) as group:
            url = target.executable.url
            if given is None:
                path = f"/v1/models/{target.model}/metadata"
                given = inputs.invented(target.model, await _get(url, path) or {})
            with _noticing_others(target.model, group, settings.cores):
                runs = await _cpu(target, url, group, given, settings)
        gpu_times = await _gpu(target, given, settings)
    except ActuationError as error:
        raise LaunchError(f"model {target.model}: {error}") from error
    return summary.model_profile(runs, gpu_times)


def _own_inputs(target: Target) -> Inputs | None:
    path = target.executable.paths.get(target.model)
    return None if path is None or not target.is_ours else inputs.from_model(path)


async def _cpu(
    target: Target, url: str, group: Group, given: Inputs, settings: Settings
) -> list[MeasuredRun]:
    if target.is_ours:
        steps = target.steps(settings.batches, settings.cores)
    else:
        found = group.read().cores
        steps = [(found or settings.cores, batch) for batch in settings.batches]
    log.info("%s: %d points of %g s or more", target.model, len(steps), settings.seconds)
    runs = []
    async with RestClient(url) as client:
        caller = _Caller(client, target.model, url, lambda: group.read().usage)
        for batch in sorted({batch for _, batch in steps}):
            bodies = cycle(given.bodies(batch))
            if target.is_ours:
                group.lift()
            await caller.warm_up(bodies, batch)
            for cores, _ in (step for step in steps if step[1] == batch):
                if target.is_ours:
                    _set(group, cores, settings.cores)
                samples = await caller.run(bodies, batch, settings.seconds)
                run = MeasuredRun(cores, batch, samples)
                runs.append(run)
                _tell(target.model, run)
    return runs


@contextlib.contextmanager
def _noticing_others(model: str, group: Group, cores: float) -> Iterator[None]:
    """Warn if other programs kept the machine busy: waiting for a core is no property of a model.

    Their core-seconds are the machine's minus those of the model and of this process.
    """

    def others() -> float:
        return machine.busy_seconds() - group.read().usage - time.process_time()

    before, start = others(), time.monotonic()
    yield
    used = (others() - before) / (time.monotonic() - start)
    if used > OTHERS * cores:
        log.warning(
            "%s: other programs used %.2g of %g cores meanwhile; response times and overhead hold "
            "the waiting for them, and cost a little: measure again on a quiet machine",
            model,
            used,
            cores,
        )


def _set(group: Group, cores: float, all_cores: float) -> None:
    if cores >= all_cores:
        group.lift()
    else:
        group.set_cores(cores)


def _tell(model: str, run: MeasuredRun) -> None:
    point = summary.point(run)
    log.info(
        "%s: %g cores, batch %d: %.3g core-ms, %.3g ms, %d requests",
        model,
        run.cores,
        run.batch,
        milliseconds(point.cost),
        milliseconds(point.response_time),
        point.requests,
    )


async def _gpu(target: Target, given: Inputs, settings: Settings) -> list[float]:
    """Return the response times of single requests on every listed GPU."""
    times: list[float] = []
    for url in target.gpu_urls:
        await _check_available(url, target.model)
        bodies = cycle(given.bodies(1))
        async with RestClient(url) as client:
            caller = _Caller(client, target.model, url, lambda: 0.0)
            await caller.warm_up(bodies, 1)
            samples = await caller.run(bodies, 1, settings.seconds)
        times += [sample.response_time for sample in samples]
        log.info("%s: %d requests on the GPU at %s", target.model, len(samples), url)
    return times


class _Caller:
    """Calls one model, one request at a time; `usage` reads its core-seconds so far."""

    def __init__(
        self, client: RestClient, model: str, url: str, usage: Callable[[], float]
    ) -> None:
        self._client = client
        self._model = model
        self._url = url
        self._usage = usage

    async def warm_up(self, bodies: Iterator[bytes], batch: int) -> None:
        """Send the requests that are not counted."""
        for _ in range(WARM_UP):
            await self._call(next(bodies), batch)

    async def run(self, bodies: Iterator[bytes], batch: int, seconds: float) -> list[RequestSample]:
        """Send requests for `seconds`, at least LEAST; the one before them is not counted."""
        await self._call(next(bodies), batch)
        samples: list[RequestSample] = []
        before, end = self._usage(), time.perf_counter() + seconds
        while len(samples) < LEAST or time.perf_counter() < end:
            response_time = await self._call(next(bodies), batch)
            used = self._usage()
            samples.append(RequestSample(used - before, response_time))
            before = used
        return samples

    async def _call(self, body: bytes, batch: int) -> float:
        """Return the seconds of one request; raise ConfigError if the model refuses it."""
        what = f"model {self._model} at {self._url}, a request of batch {batch}"
        start = time.perf_counter()
        try:
            async with asyncio.timeout(REQUEST_LIMIT):
                answer = await self._client.predict(self._model, body)
        except TimeoutError:
            raise LaunchError(f"{what}: no answer within {REQUEST_LIMIT:g} s") from None
        except NoAnswerError as error:
            raise LaunchError(f"{what}: no answer: {error.reason}") from error
        seconds = time.perf_counter() - start
        if answer.status != 200:
            text = " ".join(answer.body.decode(errors="replace").split())[:300]
            raise ConfigError(f"{what}: answered {answer.status}, must be 200: {text}")
        return seconds


@contextlib.asynccontextmanager
async def _serving(config: Config, target: Target, hierarchy: Hierarchy) -> AsyncIterator[Group]:
    """Yield the cgroup of the model's server, loaded; start and stop the server if it is ours."""
    executable = target.executable
    if not target.is_ours:
        assert executable.cgroup is not None
        await _check_available(executable.url, target.model)
        yield hierarchy.group(executable.cgroup, config.control.cfs_period)
        return
    if await _is_available(executable.url, target.model):
        key = "base_port" if executable.socket is None else "sockets"
        raise LaunchError(
            f"{executable.url}: another server answers there; stop it, or choose another {key}"
        )
    with tempfile.TemporaryDirectory(prefix="roma-profile-") as log_dir:
        async with cgroups(config, hierarchy, [executable]) as groups:
            group = groups[executable.name]
            group.lift()  # it loads with all the CPU there is
            most = config.gateway.max_body_bytes
            child = model_server(executable, group, most, Path(log_dir))
            child.start()
            try:
                await _until_loaded(child, executable, target.model)
                if child.pid not in group.pids():
                    raise LaunchError(f"{executable.name} is not in cgroup {executable.cgroup}")
                yield group
            finally:
                group.lift()  # nobody waits for it to stop on a tenth of a core
                await child.stop()


async def _until_loaded(child: Child, executable: Executable, model: str) -> None:
    try:
        async with asyncio.timeout(LOAD_LIMIT):
            while not await _is_available(executable.url, model):
                if child.fatal.done():
                    raise child.fatal.result()
                if child.restarts:
                    raise LaunchError(f"{child.name} ended while loading{child.last_words()}")
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise LaunchError(f"model {model}: not loaded within {LOAD_LIMIT:g} s") from None


async def _check_available(url: str, model: str) -> None:
    if not await _is_available(url, model):
        raise LaunchError(f"model {model}: not available at {url}")


async def _is_available(url: str, model: str) -> bool:
    status = await _get(url, f"/v1/models/{model}") or {}
    versions = status.get("model_version_status", ())
    return any(version.get("state") == "AVAILABLE" for version in versions)


async def _get(url: str, path: str) -> dict[str, Any] | None:
    """Return a JSON answer; None if there is no server or another kind of answer."""
    timeout = aiohttp.ClientTimeout(total=STATUS_LIMIT)
    root, connector = reached(url)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(f"{root}{path}") as response,
        ):
            document = orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
        return None
    return document if response.status == 200 and isinstance(document, dict) else None
