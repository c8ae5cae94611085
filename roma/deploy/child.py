"""A supervised program: restarted with back-off, stopped in order, never orphaned."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from roma.config import start_failures
from roma.domain.errors import LaunchError
from roma.telemetry.orphans import die_with_parent

log = logging.getLogger(__name__)

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
"""Longest delay before a restart, in seconds; the delay doubles after each early exit."""

STEADY = 30.0
"""Seconds of uptime after which an exit no longer counts as early."""

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL; a dispatcher gets its drain timeout on top."""

MODULE = (sys.executable, "-P", "-m")
"""Begins a command that runs a module of ours. Without -P, Python would import what the working
directory has of the same name as a module that it needs: a yaml.py or token.py of the user's, or
one left in /tmp."""

FATAL = 2
"""Exit status for a wrong configuration or a port in use: a restart cannot help."""


class Child:
    """A program that is restarted whenever it exits.

    `on_start(pid)` runs after each start. `fatal` holds the reason why it gave up. A child with
    `keeps_trying` never gives up: its fault may be repaired, and the others do not depend on it.
    Nor does any that ran before: only its start can show that the deployment cannot run here.
    The program writes its reason to `fault_file` (roma/config/start_failures.py). One that `hears`
    takes SIGHUP as news, from when it listens (`roma.config.reload.listen`).
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        grace: float = GRACE,
        on_start: Callable[[int], None] = lambda _: None,
        keeps_trying: bool = False,
        fault_file: Path | None = None,
        hears: bool = False,
    ) -> None:
        self.name = name
        self.restarts = 0
        self._fault: LaunchError | None = None
        self._trouble = ""
        self._started = -math.inf
        self.fatal: asyncio.Future[LaunchError] = asyncio.get_running_loop().create_future()
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._fault_file = fault_file
        if fault_file is not None:
            self._env[start_failures.FAULT_FILE] = str(fault_file)
        self._log_dir = log_dir
        self._grace = grace
        self._on_start = on_start
        self._keeps_trying = keeps_trying
        self._hears = hears
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Child {self.name} pid {self.pid}, {self.restarts} restarts>"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    @property
    def fault(self) -> LaunchError | None:
        """The reason why it cannot run; None while it does."""
        return self._fault if self.pid is None else None

    @property
    def trouble(self) -> str:
        """The reason of its last early exit, until it has run for `STEADY` seconds; else empty."""
        is_steady = self.pid is not None and time.monotonic() - self._started > STEADY
        return "" if is_steady else self._trouble

    def start(self) -> None:
        """Start it and keep it running until `stop`."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    def signal(self, signum: int) -> None:
        """Send it a signal, if it runs."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(signum)

    async def stop(self) -> None:
        """Stop it: SIGTERM, then SIGKILL after the grace period."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.pid is None or self._process is None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(self._grace):
                await self._process.wait()
        except TimeoutError:
            log.warning("%s did not stop within %g s: killing it", self.name, self._grace)
            self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        """Return its own reason, or else the last line of its log."""
        if self._fault_file is not None and (reason := start_failures.left(self._fault_file)):
            return f": {reason}"
        if self._log_dir is None:
            return ""
        try:
            lines = (self._log_dir / f"{self.name}.log").read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return ": " + next((line for line in reversed(lines) if line.strip()), "no reason given")

    async def _keep(self) -> None:
        delay = FIRST_DELAY
        while True:
            self._started = time.monotonic()
            if self._fault_file is not None:
                self._fault_file.unlink(missing_ok=True)
            try:
                status: int | str = await self._run_once()
            except (OSError, ValueError) as error:  # no process or memory left, say
                status = f"could not start: {error}"
            before, self._fault = self._fault, None
            if time.monotonic() - self._started > STEADY:
                before, delay = None, FIRST_DELAY
            words = self.last_words()
            if status == FATAL:
                self._fault = LaunchError(f"{self.name} cannot run here{words}")
                self._trouble = str(self._fault)
                # A typo in a file of keys, say, that was made since: the others serve on.
                if not (self._keeps_trying or self.restarts):
                    self.fatal.set_result(self._fault)
                    return
                if str(before) != str(self._fault):  # once per fault, not once per attempt
                    log.error("%s; trying again every %g s", self._fault, LONGEST_DELAY)
                await asyncio.sleep(LONGEST_DELAY)
                self.restarts += 1
                continue
            self._trouble = f"{self.name} ended ({status}){words}"
            log.warning("%s; restarting in %g s", self._trouble, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)
            self.restarts += 1

    async def _run_once(self) -> int:
        with self._output() as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches the launcher alone, which stops its children in order.
                start_new_session=True,
                # Safe: the launcher runs no other thread whose locks the child could inherit.
                preexec_fn=_prepare if self._hears else die_with_parent,
            )
        self._on_start(self._process.pid)
        return await self._process.wait()

    def _output(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self._log_dir is None:
            return contextlib.nullcontext()
        return (self._log_dir / f"{self.name}.log").open("ab")


def _prepare() -> None:
    """Prepare a program that hears: SIGHUP waits until it listens, since unhandled it ends one."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
