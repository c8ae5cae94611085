"""`roma up`: executables, dispatcher and supervisors on this machine, started and stopped together.

Each is a program of its own: a pause or a crash of one never stops the others. However the launcher
ends, no process and no cgroup stays behind: the kernel kills its children, and the reaper removes
their cgroups. Containers are removed when it stops; if it is killed, they stay
(`roma/deploy/containers.py`).
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import aiohttp

from roma.config import start_failures
from roma.config.executable import Executable
from roma.config.placement import executables, on_worker
from roma.config.reload import ConfigWatch
from roma.config.schema import Config
from roma.config.watched_file import LOOK
from roma.deploy.child import GRACE, LONGEST_DELAY, MODULE, Child
from roma.deploy.config_snapshot import write
from roma.deploy.cpu_weight import last_until_ready
from roma.deploy.launchers import LAUNCHERS, Launched
from roma.deploy.lease import keep_safe
from roma.deploy.model_servers import cgroups, model_server
from roma.deploy.ready import announce, report
from roma.domain.errors import (
    ActuationError,
    ActuationNotPermitted,
    ConfigError,
    ExchangeError,
    LaunchError,
    in_words,
)
from roma.security import exposure, peers
from roma.telemetry.tasks import background, is_set_within, stop_signal, until_one_ends
from supervisor.cgroups import Group, Hierarchy, find_hierarchy

log = logging.getLogger(__name__)

TELL = 0.5
"""Seconds between two checks for model servers that failed."""


class Deployment:
    """The running programs of one configuration, by name; `follow` switches to another's models.

    `file` is the configuration they read: the one that was accepted.
    """

    def __init__(
        self,
        config: Config,
        file: Path,
        hierarchy: Hierarchy | None,
        log_dir: Path | None,
        *,
        insecure: bool = False,
    ) -> None:
        self.config = self._first = config
        self.executables: dict[str, Child] = {}
        self.launched: list[Launched] = []
        self._file = file
        self._most_body = config.gateway.max_body_bytes
        self._hierarchy = hierarchy
        self._log_dir = log_dir
        self._options = ["--insecure"] if insecure else []
        self._groups: dict[str, Group] = {}
        self._addresses: set[tuple[str, int]] = set()
        self._cgroups = contextlib.AsyncExitStack()
        self._added: dict[str, contextlib.AsyncExitStack] = {}
        self._leases: list[asyncio.Task[None]] = []
        self._faults = file.with_name("faults.json")
        self._tasks: set[asyncio.Task[None]] = set()
        self.dispatchers = self._dispatchers()
        self.supervisors = self._supervisors()

    @property
    def children(self) -> list[Child]:
        """The programs in the order of shutdown: clients' ports first, model servers last."""
        return [*self.dispatchers, *self.supervisors, *self.executables.values()]

    @property
    def _is_alone(self) -> bool:
        """True if this deployment starts every model server itself."""
        return all(w.is_local for w in self.config.workers)

    async def start(self) -> None:
        """Start everything but containers; raise LaunchError if a quota cannot be set."""
        try:
            start_failures.write({}, self._faults)
        except OSError as error:
            raise LaunchError(f"{self._faults}: cannot be written: {in_words(error)}") from error
        self._tasks.add(asyncio.create_task(self._tell_faults()))
        await self._add(_local(self.config), self._cgroups)
        for child in (*self.supervisors, *self.dispatchers):
            child.start()
        if self._hierarchy is not None and not self.config.control.dry_run:
            self._leases = [
                asyncio.create_task(keep_safe(w.name, lambda: self.config, lambda: self._groups))
                for w in self.config.workers
                if w.is_local
            ]

    async def stop(self) -> None:
        """Stop everything but containers, clients first."""
        for task in (*self._leases, *self._tasks):
            task.cancel()
        await asyncio.gather(*(child.stop() for child in self.dispatchers))
        await asyncio.gather(*(child.stop() for child in self.supervisors))
        for group in self._groups.values():
            group.lift()  # nobody waits for a model server to stop on a tenth of a core
        await asyncio.gather(*(child.stop() for child in self.executables.values()))
        await asyncio.gather(*(s.aclose() for s in (self._cgroups, *self._added.values())))

    async def failed(self) -> NoReturn:
        """Wait until a program gives up for good, or no model server can run; raise the reason.

        Where the file has changed meanwhile, what it says of model servers can be put right there.
        """
        brokers = [c.broker for c in self.launched if c.broker is not None]
        while True:
            # Repeatedly: programs come and go.
            fatal = [child.fatal for child in (*self.children, *brokers)]
            faults = [c.fault for c in self.executables.values() if c.fault is not None]
            is_first = self.config is self._first and self._is_alone
            if faults and len(faults) == len(self.executables) and is_first:
                raise faults[0]
            for lease in self._leases:
                if lease.done():
                    lease.result()  # raise the bug that ended it
            done, _ = await asyncio.wait(fatal, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if done:
                raise done.pop().result()

    async def follow(self, config: Config) -> None:
        """Switch to the models of `config`, the file's new content, without disturbing the others.

        The dispatchers go first, so that they send nothing more to what is removed. Raises
        LaunchError, and ConfigError for a token or certificate that cannot be read now.
        """
        keys = _model_servers(_local(config))
        _check_free({at: key for at, key in keys.items() if at not in self._addresses})
        write(config, self._file)
        self.config = config
        for dispatcher in self.dispatchers:
            dispatcher.signal(signal.SIGHUP)
        await _until_serving(config)
        for supervisor in self.supervisors:
            supervisor.signal(signal.SIGHUP)
        # The present state is compared with the wanted one: a failed step is retried.
        local = _local(config)
        wanted = {e.name for e in local}
        await self._remove([name for name in self.executables if name not in wanted])
        # An engine that is away must not keep other workers, or local processes, from following.
        done = await asyncio.gather(
            *(worker.follow(config) for worker in self.launched), return_exceptions=True
        )
        away = [str(error) for error in done if isinstance(error, ActuationError)]
        for error in done:
            if isinstance(error, BaseException) and not isinstance(error, ActuationError):
                raise error  # a bug
        for new in (e for e in local if e.name not in self.executables):
            # One reaper each, which ends when the executable is removed or cannot be started.
            async with contextlib.AsyncExitStack() as stack:
                await self._add([new], stack, waiting=not config.control.dry_run)
                self._added[new.name] = stack.pop_all()
        if away:
            raise LaunchError("; ".join(away))
        log.info("models: %s", ", ".join(config.models))

    async def _tell_faults(self) -> None:
        """Maintain the files of the programs: the configuration, and why model servers do not run.

        A cleaner of /tmp may delete them, and a program that restarts reads them.
        """
        known: dict[str, str] | None = {}
        while True:
            if not (self._file.exists() and self._faults.exists()):
                known = None
                try:
                    _make_own(self._file.parent.parent)
                    write(self.config, self._file)
                except (LaunchError, OSError):  # tried again in a moment
                    await asyncio.sleep(TELL)
                    continue
            found = {n: child.trouble for n, child in self.executables.items() if child.trouble}
            if found != known:
                try:
                    start_failures.write(found, self._faults)
                except OSError as error:  # a full disk; the log has the reason too
                    log.warning("%s: cannot be written: %s", self._faults, error.strerror)
                known = found
            await asyncio.sleep(TELL)

    async def _add(
        self,
        local: Sequence[Executable],
        stack: contextlib.AsyncExitStack,
        *,
        waiting: bool = False,
    ) -> None:
        """Start executables, whose cgroups are there until `stack` is closed.

        `waiting`: at their minimum cores, since others serve beside them.
        """
        if self._hierarchy is not None and local:
            made = cgroups(self.config, self._hierarchy, local, waiting=waiting)
            self._groups |= await stack.enter_async_context(made)
        self._addresses |= _model_servers(local).keys()
        for executable in local:
            group = self._groups.get(executable.name)
            child = model_server(
                executable,
                group,
                self._most_body,
                self._log_dir,
                keeps_trying=True,
                fault_file=self._file.with_name(f"{executable.name}.fault"),
            )
            self.executables[executable.name] = child
            if waiting and group is not None:
                task = asyncio.create_task(last_until_ready(executable, group))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            child.start()

    async def _remove(self, names: Sequence[str]) -> None:
        groups = [self._groups.pop(name) for name in names if name in self._groups]
        for group in groups:
            group.lift()
        await asyncio.gather(*(self.executables.pop(name).stop() for name in names))
        for group in groups:
            group.remove()
        await asyncio.gather(*(self._added.pop(n).aclose() for n in names if n in self._added))

    def _dispatchers(self) -> list[Child]:
        """Return the programs that serve clients: `dispatcher`, or `dispatcher.1` and so on."""
        g, base = self.config.gateway, ["dispatcher", str(self._file), *self._options]
        base += ["--faults", str(self._faults)]
        grace = g.drain_timeout + GRACE
        if g.processes == 1:
            return [self._program("dispatcher", base, grace)]
        return [
            self._program(f"dispatcher.{i}", [*base, "--number", str(i)], grace)
            for i in range(1, g.processes + 1)
        ]

    def _supervisors(self) -> list[Child]:
        """Return the supervisors: one per worker, but one for all that are discovered."""
        base = ["supervisor", str(self._file), *self._options]
        found = [self._program("supervisor", base)] if self.config.discovered else []
        return found + [
            self._program(f"supervisor.{w.name}", [*base, "--worker", w.name])
            for w in self.config.workers
            if not w.is_discovered
        ]

    def _program(self, name: str, arguments: list[str], grace: float = GRACE) -> Child:
        argv = [*MODULE, "roma", *arguments]
        return Child(name, argv, log_dir=self._log_dir, grace=grace, hears=True)


@contextlib.asynccontextmanager
async def deployed(
    config: Config, *, log_dir: Path | None = None, insecure: bool = False
) -> AsyncIterator[Deployment]:
    """Run everything that `config` puts on this machine until the block ends."""
    # Before anything is started; each program warns about its own listeners.
    exposure.check(exposure.of_all(config), insecure=insecure)
    _check_ports(config)
    async with contextlib.AsyncExitStack() as stack:
        local = any(worker.is_local for worker in config.workers)
        # A program that restarts must not read a file that was not accepted.
        try:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="roma-up-")))
        except OSError as error:
            raise LaunchError(f"TMPDIR: no directory can be made: {in_words(error)}") from error
        held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, held)
        fcntl.flock(held, fcntl.LOCK_SH)  # systemd-tmpfiles spares what is locked
        file = scratch / config.name / "roma.yaml"
        write(config, file)
        hierarchy = _permitted() if local else None
        deployment = Deployment(config, file, hierarchy, log_dir, insecure=insecure)
        for worker in config.workers:
            launcher = LAUNCHERS.get(worker.backend)
            if launcher is not None:
                made = await stack.enter_async_context(launcher(config, worker, file, log_dir))
                deployment.launched.append(made)
        stack.push_async_callback(deployment.stop)
        await deployment.start()
        yield deployment


async def run(config: Config, file: Path, *, insecure: bool = False) -> None:
    """Run a deployment until SIGTERM or SIGINT, or until one of its programs gives up.

    When the file changes, its models come and go without a restart; SIGHUP has it read at once.
    """
    stop, told = stop_signal(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
    # In a task of its own, so that slow starts (an image pull, for example) can be cancelled too.
    serving = asyncio.create_task(_serve(config, file, told, insecure=insecure))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        log.info("stopping")
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _serve(config: Config, file: Path, told: asyncio.Event, *, insecure: bool) -> None:
    """Run a deployment until cancelled; raise LaunchError if one of its programs gives up."""
    async with deployed(config, insecure=insecure) as deployment:
        g = config.gateway
        log.info("models: %s/v1/models/{%s}", g.url, ",".join(config.models))
        log.info("live page: %s/", g.admin_url)
        async with background(_announce(deployment)):
            await until_one_ends(deployment.failed(), _follow(deployment, file, told))


async def _announce(deployment: Deployment) -> None:
    """Log when the models are served, and again when the set of models changes."""
    while True:
        config = deployment.config
        async with background(announce(config, deployment.executables)):
            while deployment.config is config:
                await asyncio.sleep(LOOK)


async def _follow(deployment: Deployment, file: Path, told: asyncio.Event) -> None:
    """Apply the file's models when it changes or once `told`; log a failure once, and retry.

    With growing pauses: at each attempt every program reads the whole file.
    """
    watch, clock = ConfigWatch(file, deployment.config), asyncio.get_running_loop().time
    pending: Config | None = None
    said, pause, due = "", LOOK, 0.0
    while True:
        if again := await is_set_within(told, LOOK):
            log.info("SIGHUP: reading %s", file)
        told.clear()
        new = watch.look(again=again)
        if new is not None or again:
            pending, pause, due = new or pending, LOOK, 0.0
        if pending is None or clock() < due:
            continue
        try:
            await deployment.follow(pending)
        except (LaunchError, ConfigError) as error:
            if str(error) != said:
                log.error("%s: not all of it is in force yet: %s", file, error)
            said, pause = str(error), min(2 * pause, LONGEST_DELAY)
            due = clock() + pause
        else:
            pending, said = None, ""


async def _until_serving(config: Config) -> None:
    """Wait until every dispatcher has the models and the executables of `config` and no others."""
    async with peers.session(peers.to_dispatchers(config), 1) as session:
        await asyncio.gather(
            *(_until_one_serves(config, session, at) for at in config.gateway.exchange_urls)
        )


async def _until_one_serves(config: Config, session: aiohttp.ClientSession, at: str) -> None:
    models = sorted(config.models)
    placed = {worker.name for worker in config.workers if worker.is_placed}
    wanted = sorted(e.name for e in executables(config) if e.spec.worker in placed)
    # It drains removed models first, then their executables.
    deadline = asyncio.get_running_loop().time() + 2 * config.gateway.drain_timeout + GRACE
    token = peers.exchange_token(config)
    while asyncio.get_running_loop().time() < deadline:
        reply = None
        with contextlib.suppress(ExchangeError):
            reply = await report(session, at, token)
        if reply is not None:
            reported = (e.executor for e in reply.executors)
            known = sorted(name for name in reported if name.rpartition("@")[2] in placed)
            if (sorted(m.model for m in reply.models), known) == (models, wanted):
                return
        await asyncio.sleep(0.1)
    names = ", ".join(config.models)
    raise LaunchError(f"the dispatcher at {at} does not take over the models {names}")


def _check_ports(config: Config) -> None:
    """Raise LaunchError for a port that another program has.

    Several dispatchers share theirs by SO_REUSEPORT, and would share it with another deployment's,
    unnoticed. And what answers at the admin port must be our own.
    """
    g, control = config.gateway, config.control
    keys = {(g.host, g.port): "gateway.port"}
    if g.grpc_port is not None:
        keys[g.host, g.grpc_port] = "gateway.grpc_port"
    keys |= dict.fromkeys(g.exchange_addresses[1:], "gateway.process_port")
    # The last key of an address stands: without ports of their own both are at the admin port.
    keys[g.exchange_address] = "gateway.exchange_port"
    keys[g.metrics_address] = "gateway.metrics_port"
    keys[g.admin_host, g.admin_port] = "gateway.admin_port"
    keys |= {(control.host, config.control_port(w)): "control.port" for w in config.workers}
    _check_free(keys | _model_servers(_local(config)))


def _model_servers(local: Sequence[Executable]) -> dict[tuple[str, int], str]:
    """Return the keys of model servers' ports, by address.

    Another server of the same model would answer there in place of ours, unnoticed.
    """
    found = {}
    for e in local:
        key = f"workers.{e.spec.worker}.base_port"
        if e.socket is None:
            found[e.host, e.port] = key
        if e.grpc is not None:
            found[e.grpc] = f"{key} + grpc_offset"
    return found


def _check_free(keys: Mapping[tuple[str, int], str]) -> None:
    """Raise LaunchError for an address that another program has; `keys` says where it is set."""
    for (host, port), key in keys.items():
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a kernel without IPv6 cannot make one for `localhost`, say
            continue  # the program that listens there says why it cannot
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                why = f"cannot listen on {host}: {(error.strerror or str(error)).lower()}"
                raise LaunchError(f"{key} = {port}: {why}") from error


def _make_own(directory: Path) -> None:
    """Make a directory of ours alone, unless it is there; raise OSError if it is anyone else's.

    Its name is known from our command lines, and all may write to /tmp.
    """
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} is not ours alone")


def _local(config: Config) -> list[Executable]:
    """Return the executables that are processes of this machine."""
    return [e for worker in config.workers if worker.is_local for e in on_worker(config, worker)]


def _permitted() -> Hierarchy | None:
    """Return the hierarchy for quotas; without permission, log it once and return None."""
    try:
        return find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return None
