"""`roma up`: executables, dispatcher and supervisors on this machine, started and stopped together.

Each is a program of its own: a pause or a crash of one never stops the others. Whatever ends the
launcher, nothing stays behind: the kernel kills its children, the reaper removes their cgroups.
"""

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from roma.config import Backend, Config
from roma.errors import ActuationError, ActuationNotPermitted, LaunchError
from roma.launch.child import GRACE, Child
from roma.placement import Executable, on_worker
from supervisor.actuators.cgroup import Group, Hierarchy, find_hierarchy

log = logging.getLogger(__name__)

_QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


class Deployment:
    """The running programs of one configuration, by name."""

    def __init__(
        self, executables: dict[str, Child], dispatcher: Child, supervisors: dict[str, Child]
    ) -> None:
        self.executables = executables
        self.dispatcher = dispatcher
        self.supervisors = supervisors

    @property
    def children(self) -> list[Child]:
        """In the order in which they are stopped: clients first, model servers last."""
        return [self.dispatcher, *self.supervisors.values(), *self.executables.values()]

    async def failed(self) -> LaunchError:
        """Wait until a program gives up for good; return why."""
        done, _ = await asyncio.wait(
            [child.fatal for child in self.children], return_when=asyncio.FIRST_COMPLETED
        )
        return done.pop().result()


@contextlib.asynccontextmanager
async def deployed(
    config: Config, file: Path, *, log_dir: Path | None = None
) -> AsyncIterator[Deployment]:
    """Run everything that `config` (read from `file`) puts on this machine until the block ends."""
    for worker in config.workers:
        if worker.backend is Backend.DOCKER:
            raise LaunchError(f"workers.{worker.name}.backend = docker: not available yet")
    local = [
        e
        for worker in config.workers
        if worker.backend is Backend.PROCESS
        for e in on_worker(config, worker)
    ]
    most, drain = config.gateway.max_body_bytes, config.gateway.drain_timeout
    hierarchy = _permitted()
    reaper = None
    groups: dict[str, Group] = {}
    if hierarchy is not None:
        _refuse_running(config, hierarchy, local)
        # The reaper first: whatever fails from here on, it removes what was made.
        reaper = await _start_reaper([e.cgroup for e in local if e.cgroup is not None])
        try:
            groups = _create_groups(config, hierarchy, local)
        except ActuationError as error:
            await _finish(reaper)
            raise LaunchError(f"cannot set CPU quotas: {error}") from error
    deployment = Deployment(
        {e.name: _executable(e, groups.get(e.name), most, log_dir) for e in local},
        _program("dispatcher", ["dispatcher", str(file)], log_dir, grace=drain + GRACE),
        {
            w.name: _program(
                f"supervisor.{w.name}", ["supervisor", str(file), "--worker", w.name], log_dir
            )
            for w in config.workers
        },
    )
    try:
        for child in reversed(deployment.children):
            child.start()
        yield deployment
    finally:
        await deployment.dispatcher.stop()
        await asyncio.gather(*(child.stop() for child in deployment.supervisors.values()))
        for group in groups.values():
            group.lift()  # nobody waits for a model server to end on a tenth of a core
        await asyncio.gather(*(child.stop() for child in deployment.executables.values()))
        if reaper is not None:
            await _finish(reaper)


async def run(config: Config, file: Path) -> None:
    """Run a deployment until SIGTERM or SIGINT, or until a program of it gives up."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with deployed(config, file) as deployment:
        g = config.gateway
        log.info("models: http://%s:%d/v1/models/{%s}", g.host, g.port, ",".join(config.models))
        failed = asyncio.create_task(deployment.failed())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()
        log.info("stopping")


def _permitted() -> Hierarchy | None:
    """Return where quotas may be set; where they may not, say so once and go on without."""
    try:
        return find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return None


def _refuse_running(config: Config, hierarchy: Hierarchy, local: list[Executable]) -> None:
    for executable in local:
        assert executable.cgroup is not None
        group = hierarchy.group(executable.cgroup, config.control.cfs_period)
        if pids := group.pids():
            raise LaunchError(
                f"name = {config.name}: already running here (process {pids[0]} is in "
                f"cgroup {executable.cgroup}); stop it or choose another name"
            )


def _create_groups(
    config: Config, hierarchy: Hierarchy, local: list[Executable]
) -> dict[str, Group]:
    """Create one cgroup per executable, with its initial cores."""
    groups = {}
    for executable in local:
        assert executable.cgroup is not None
        group = hierarchy.group(executable.cgroup, config.control.cfs_period)
        hierarchy.prepare(executable.cgroup)
        group.create()
        group.set_cores(executable.spec.cores)
        groups[executable.name] = group
    return groups


async def _start_reaper(paths: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "roma.launch.reaper",
        *paths,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


async def _finish(reaper: asyncio.subprocess.Process) -> None:
    assert reaper.stdin is not None
    reaper.stdin.close()
    await reaper.wait()


def _program(
    name: str, arguments: list[str], log_dir: Path | None, *, grace: float = GRACE
) -> Child:
    return Child(name, [sys.executable, "-m", "roma", *arguments], log_dir=log_dir, grace=grace)


def _executable(
    executable: Executable, group: Group | None, max_body_bytes: int, log_dir: Path | None
) -> Child:
    def limit(pid: int) -> None:
        if group is None:
            return
        try:
            group.add(pid)
        except ActuationError as error:
            log.error("executable %s runs without a quota: %s", executable.name, error)

    models = [f"--model={name}={path}" for name, path in executable.paths.items()]
    return Child(
        executable.name,
        [
            sys.executable,
            "-m",
            "roma",
            "serve-model",
            *models,
            f"--host={executable.host}",
            f"--port={executable.port}",
            f"--intra-op={executable.spec.threads}",
            f"--inter-op={executable.concurrency}",
            f"--max-body-bytes={max_body_bytes}",
        ],
        env=_QUIET_TENSORFLOW,
        log_dir=log_dir,
        on_start=limit,
    )
