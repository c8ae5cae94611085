"""Model servers, each in a cgroup of its own, as both `roma up` and `roma profile` start them."""

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from roma.config.executable import Executable
from roma.config.schema import Config
from roma.deploy.child import MODULE, Child
from roma.domain.errors import ActuationError, LaunchError, in_words
from supervisor.cgroups import Group, Hierarchy

log = logging.getLogger(__name__)

_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
"""Environment of model servers, unless ours overrides it. Without a GPU, TensorFlow logs its
absence as an error; real failures of a request or a model raise an exception, at any log level."""


@contextlib.asynccontextmanager
async def cgroups(
    config: Config, hierarchy: Hierarchy, local: Iterable[Executable], *, waiting: bool = False
) -> AsyncIterator[dict[str, Group]]:
    """Create one cgroup per executable, with its initial cores; remove them when the block ends.

    With `waiting`, an executable gets its minimum until a supervisor knows what the others leave.

    The groups are also removed when this process is killed, with any process left in them. Raises
    LaunchError if the deployment already runs, or if a quota cannot be set.
    """
    limited = [(e, e.cgroup) for e in local if e.cgroup is not None]
    _refuse_running(config, hierarchy, [path for _, path in limited])
    # The reaper first: whatever fails from here on, it removes what was created.
    reaper = await _start_reaper([path for _, path in limited])
    try:
        yield _made(config, hierarchy, limited, waiting=waiting)
    finally:
        await _finish(reaper)


def model_server(
    executable: Executable,
    group: Group | None,
    max_body_bytes: int,
    log_dir: Path | None,
    *,
    keeps_trying: bool = False,
    fault_file: Path | None = None,
) -> Child:
    """Return the program that serves an executable's models, not started yet.

    Raises LaunchError if the directory of its socket cannot be created.
    """

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
            *MODULE,
            "roma",
            "serve-model",
            *models,
            f"--host={executable.host}",
            *_where(executable),
            *([] if executable.grpc is None else [f"--grpc-port={executable.grpc[1]}"]),
            f"--intra-op={executable.spec.threads}",
            f"--inter-op={executable.concurrency}",
            f"--max-body-bytes={max_body_bytes}",
        ],
        env={name: os.environ.get(name, value) for name, value in _TENSORFLOW.items()},
        log_dir=log_dir,
        on_start=limit,
        keeps_trying=keeps_trying,
        fault_file=fault_file,
    )


def _where(executable: Executable) -> list[str]:
    """Return the address arguments of its REST server; create the directory of its socket."""
    if executable.socket is None:
        return [f"--port={executable.port}"]
    directory = Path(executable.socket).parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        key = f"workers.{executable.spec.worker}.sockets"
        raise LaunchError(f"{key} = {directory}: cannot be made: {error.strerror}") from error
    return [f"--socket={executable.socket}"]


def _made(
    config: Config,
    hierarchy: Hierarchy,
    limited: Iterable[tuple[Executable, str]],
    *,
    waiting: bool,
) -> dict[str, Group]:
    groups = {}
    try:
        for executable, path in limited:
            group = hierarchy.group(path, config.control.cfs_period, config.control.cfs_burst)
            hierarchy.prepare(path)
            group.create()
            group.set_cores(executable.min_cores if waiting else executable.spec.cores)
            groups[executable.name] = group
    except ActuationError as error:
        raise LaunchError(f"cannot set CPU quotas: {error}") from error
    return groups


def _refuse_running(config: Config, hierarchy: Hierarchy, paths: Iterable[str]) -> None:
    for path in paths:
        if pids := hierarchy.group(path, config.control.cfs_period).pids():
            raise LaunchError(
                f"name = {config.name}: already running here (process {pids[0]} is in "
                f"cgroup {path}); stop it or choose another name"
            )


async def _start_reaper(paths: Iterable[str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *MODULE,
            "roma.deploy.reaper",
            *paths,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:  # no process or memory left, say
        raise LaunchError(f"no program to remove cgroups: {in_words(error)}") from error


async def _finish(reaper: asyncio.subprocess.Process) -> None:
    assert reaper.stdin is not None
    reaper.stdin.close()
    await reaper.wait()
