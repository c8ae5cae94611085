"""The demo from start to end: prepare, deploy, profile, load, watch, report."""

import asyncio
import contextlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import ClientError, ClientSession
from rich.console import Console
from rich.live import Live
from rich.table import Table

from roma.config import file_edit
from roma.config import schema as roma_config
from roma.config.placement import executables
from roma.config.profile import ModelProfile
from roma.deploy.up import Deployment, deployed
from roma.domain.errors import ActuationNotPermitted, ConfigError, LaunchError
from roma.tools.demo import inputs, models, plan, table, verdict
from roma.tools.demo.ports import free_ports
from roma.tools.demo.watch import PERIOD, DemoWatch, watching
from roma.tools.load import RequestEnd, RequestResult, Stream, run_load
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.actuators.host import read_host
from supervisor.cgroups import Group, find_hierarchy
from supervisor.contention import HostReading

READY_LIMIT = 120.0
"""Seconds for both models to load and warm up on a busy machine."""

PROFILE_SECONDS = 6.0
PROFILE_RATE = 8.0
"""Requests per second while a model's cost is measured: enough to average, too few to queue."""

PHOTOS = 64
"""Number of different photographs in the load."""

PICTURE_AT = 0.45
"""Share of the run at which the screenshot is taken: both peaks of the load are visible."""

PICTURE_WIDTH = 138

LINE_EVERY = 5.0
"""Seconds between status lines if the output is no terminal."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options from the command line."""

    cache: Path
    seconds: float
    law: str
    compare: bool
    seed: int
    picture: Path | None = None
    json_output: bool = False


def run(options: DemoOptions) -> int:
    """Run the demo; return the exit status. With JSON, all other output goes to standard error."""
    _check_writable(options)
    out = table.console(stderr=options.json_output)
    prepared = models.prepare(options.cache, on_step=lambda step: out.print(f"[dim]{step}[/]"))
    for model in prepared.values():
        held_out = "" if model.accuracy is None else f", held-out accuracy {model.accuracy:.3f}"
        out.print(f"model {model.name}: weights {model.weights}{held_out}")
    paths = {name: model.path for name, model in prepared.items()}
    profiles: dict[str, ModelProfile] = {}  # measured once: every law meets the same requests
    runs = [asyncio.run(_Demo(options, paths, profiles, out).run())]
    if options.compare:
        again = replace(options, law="rules", picture=None)
        runs.append(asyncio.run(_Demo(again, paths, profiles, out).run()))
        out.print(verdict.comparison(runs))
    if options.json_output:
        sys.stdout.write(json.dumps([verdict.plain(e) for e in runs], indent=2) + "\n")
    failures = verdict.failures(runs[0])
    for failure in failures:
        out.print(f"[red]FAILED[/]: {failure}")
    if not failures:
        out.print("[green]every promise of the demo was kept[/]")
    return 1 if failures else 0


def _check_writable(options: DemoOptions) -> None:
    """Raise ConfigError, before anything is built, if the cache or the picture has no place."""
    file_edit.make(options.cache, "--cache")
    if options.picture is not None:
        if options.picture.is_dir():
            raise ConfigError(f"--picture = {options.picture}: must be a file")
        file_edit.make(options.picture.parent, "--picture")


def run_once(options: DemoOptions, out: Console) -> verdict.Evidence:
    """Run the demo under one law and return the evidence; progress goes to `out`."""
    prepared = models.prepare(options.cache, on_step=lambda step: out.print(f"[dim]{step}[/]"))
    paths = {name: model.path for name, model in prepared.items()}
    return asyncio.run(_Demo(options, paths, {}, out).run())


class _Demo:
    """A run under one law."""

    def __init__(
        self,
        options: DemoOptions,
        paths: dict[str, Path],
        profiles: dict[str, ModelProfile],
        out: Console,
    ) -> None:
        self._options = options
        self._paths = paths
        self._profiles = profiles
        self._out = out
        self._machine = plan.DemoMachine.here()
        self._digits = inputs.digits_held_out()
        self._bodies: dict[str, Sequence[bytes]] = {
            "digits": [body for body, _ in self._digits],
            "photos": inputs.photo_bodies(PHOTOS, options.seed),
        }
        self._checked = self._correct = 0
        self._snapshot: Table | None = None

    async def run(self) -> verdict.Evidence:
        """Deploy, load and tear down; return the evidence."""
        with tempfile.TemporaryDirectory(prefix="roma-demo-") as directory:
            file, log_dir = Path(directory) / "roma.yaml", Path(directory)
            plan.write_config(
                file,
                self._machine,
                self._paths,
                law=self._options.law,
                ports=free_ports(3 + len(plan.MODELS))[:4],
            )
            config = roma_config.load(file)
            async with deployed(config, log_dir=log_dir) as deployment:
                return await self._run_deployed(config, deployment)

    async def _run_deployed(
        self, config: roma_config.Config, deployment: Deployment
    ) -> verdict.Evidence:
        g, c = config.gateway, config.control
        url = f"http://{g.host}:{g.port}"
        await self._until_ready(url, deployment)
        groups = _groups(config)
        admin, supervisor = f"http://{g.admin_host}:{g.admin_port}", f"http://{c.host}:{c.port}"
        self._out.print(f"live page: {admin}/")
        async with watching(groups, admin, supervisor) as watch:
            streams = []
            for i, model in enumerate(plan.MODELS):
                measured = await self._measure(model, url, watch)
                cost = self._profiles.setdefault(model.name, measured).cost
                profile = plan.profile(model, cost, self._machine, self._options.seconds)
                rates = "-".join(f"{step.rate:.0f}" for step in profile.steps)
                self._out.print(
                    f"{model.name}: {cost * 1000:.1f} core-ms per request, load {rates} req/s"
                )
                arrivals = poisson(profile, seed=self._options.seed + i)
                streams.append(
                    Stream(model.name, arrivals, self._bodies[model.name], model.response_time)
                )
            return await self._load(config, streams, url, watch)

    async def _until_ready(self, url: str, deployment: Deployment) -> None:
        failed = asyncio.create_task(deployment.failed())
        try:
            async with asyncio.timeout(READY_LIMIT), ClientSession() as session:
                with self._out.status("loading TensorFlow models"):
                    while not failed.done():
                        with contextlib.suppress(ClientError):
                            async with session.get(f"{url}/readyz") as response:
                                if response.status == 200:
                                    return
                        await asyncio.sleep(0.2)
        except TimeoutError:
            raise LaunchError(f"the models were not ready within {READY_LIMIT:g} s") from None
        finally:
            failed.cancel()
        failed.result()

    async def _measure(self, model: plan.DemoModel, url: str, watch: DemoWatch) -> ModelProfile:
        """Return what one request costs here, from the kernel's own accounting.

        Unlike `roma profile`, it measures in the deployment: behind the gateway, beside the load
        generator.
        """
        profile = Profile((RateStep(PROFILE_RATE, PROFILE_SECONDS),))
        stream = Stream(model.name, poisson(profile, seed=0), self._bodies[model.name])
        kernel = watch.kernel.get(model.name)
        before = kernel.used_seconds if kernel else 0.0
        with self._out.status(f"profiling {model.name}"):
            fastest = math.inf

            def note(result: RequestResult) -> None:
                nonlocal fastest
                if result.outcome is RequestEnd.ANSWERED:
                    fastest = min(fastest, result.response_time)

            report = await run_load([stream], url, on_result=note)
            await asyncio.sleep(2 * PERIOD)
        answered = report.total.answered
        if not answered:
            raise LaunchError(f"model {model.name}: no request was answered while profiling")
        times = report.total.response_time
        assert times is not None
        if kernel is None:
            # Observe-only: wall-clock time is the best estimate.
            return ModelProfile(cost=times.mean)
        cost = (kernel.used_seconds - before) / answered
        if cost <= 0:
            raise LaunchError(f"model {model.name}: the kernel charged no CPU while profiling")
        # The fastest met no stall of its quota: the rest of its time is what no core shortens.
        return ModelProfile(cost=cost, overhead=max(0.0, fastest - cost))

    async def _load(
        self, config: roma_config.Config, streams: list[Stream], url: str, watch: DemoWatch
    ) -> verdict.Evidence:
        for kernel in watch.kernel.values():
            kernel.changes, kernel.core_seconds, kernel.used_seconds = 0, 0.0, 0.0
        host = read_host()
        showing = asyncio.create_task(self._show(watch))
        try:
            report = await run_load(streams, url, on_result=self._check)
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
        kernels = watch.kernel
        evidence = verdict.Evidence(
            law=self._options.law,
            report=report,
            seconds=report.elapsed,
            allocatable=self._machine.allocatable,
            core_seconds=sum(k.core_seconds for k in kernels.values()),
            used={model: k.used_seconds for model, k in kernels.items()},
            changes={model: k.changes for model, k in kernels.items()},
            checked=self._checked,
            correct=self._correct,
            steal=_stolen(host, read_host(), report.elapsed),
            config=config,
            profiles=dict(self._profiles),
            arrivals={stream.model: stream.arrivals for stream in streams},
        )
        self._out.print(report.table())
        self._out.print(verdict.summary(evidence))
        if self._options.picture is not None and self._snapshot is not None:
            paper = Console(record=True, file=io.StringIO(), width=PICTURE_WIDTH)
            paper.print(self._snapshot)
            paper.print(verdict.summary(evidence))
            with file_edit.writing("--picture"):
                file_edit.output(self._options.picture, paper.export_svg(title="make demo"))
        return evidence

    def _check(self, result: RequestResult) -> None:
        """Compare an answered digit with its true class."""
        if result.model != "digits" or result.outcome is not RequestEnd.ANSWERED:
            return
        _, expected = self._digits[result.index % len(self._digits)]
        self._checked += 1
        self._correct += inputs.predicted_class(result.answer) == expected

    async def _show(self, watch: DemoWatch) -> None:
        clock = asyncio.get_running_loop().time
        start, seconds = clock(), self._options.seconds
        shown = -LINE_EVERY
        with contextlib.ExitStack() as stack:
            live = None
            if self._out.is_terminal:
                live = stack.enter_context(Live(console=self._out, auto_refresh=False))
            while True:
                elapsed = clock() - start
                rendered = table.render(f"law {self._options.law}", watch, elapsed, seconds)
                if elapsed < PICTURE_AT * seconds:
                    self._snapshot = rendered
                if live is not None:
                    live.update(rendered, refresh=True)
                elif elapsed - shown >= LINE_EVERY:
                    shown = elapsed
                    self._out.print(table.line(watch, elapsed), highlight=False)
                await asyncio.sleep(PERIOD)


def _stolen(before: HostReading | None, after: HostReading | None, seconds: float) -> float:
    """Return the share of the machine's CPU time that its hypervisor took; 0 if unknown."""
    if before is None or after is None:
        return 0.0
    return (after.stolen - before.stolen) / (after.cpus * seconds)


def _groups(config: roma_config.Config) -> dict[str, Group]:
    """Return each model's cgroup; none where quotas are not permitted."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted:
        return {}
    control = config.control
    return {
        e.spec.models[0]: hierarchy.group(e.cgroup, control.cfs_period, control.cfs_burst)
        for e in executables(config)
        if e.cgroup is not None
    }
