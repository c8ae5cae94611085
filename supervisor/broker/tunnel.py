"""A local socket that leads to the engine of another host, by the user's own ssh and keys.

It is kept up: an ssh that exits is restarted, and its reason is reported meanwhile. It never
prompts for anything.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from roma.telemetry.orphans import die_with_parent
from roma.telemetry.reachability import reason
from roma.telemetry.tasks import is_set_within

FIRST_TRY = 12.0
"""Seconds to wait for the first connection; earlier calls would fail."""

PAUSE = 1.0
"""Seconds between the end of one ssh and the start of the next."""

OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    # A connection that the user's ssh shares (ControlMaster) would take the forwarding over and
    # keep it: our ssh would end at once, and the shared one outlive us.
    "ControlPath": "none",
    "ExitOnForwardFailure": "yes",
    "LogLevel": "ERROR",
    # A host that is gone is detected after 15 seconds.
    "ServerAliveInterval": "5",
}

log = logging.getLogger(__name__)


class Tunnel:
    """`socket` leads to the engine unless `down` says why it does not; `target` is host[:port]."""

    def __init__(self, target: str, socket: Path) -> None:
        self.socket = socket
        self.down = "not connected yet"
        self.tried = asyncio.Event()
        self._target = target

    async def keep(self) -> None:
        """Keep the tunnel up until cancelled."""
        while True:
            said = await self._once()
            if said != self.down:  # once per reason, not once per second
                log.warning("ssh %s: %s", self._target, said)
            self.down = said
            self.tried.set()
            await asyncio.sleep(PAUSE)

    def explain(self, error: BaseException) -> str:
        """Return why a call through it failed: the tunnel's own fault, or else `error`."""
        return f"ssh {self._target}: {self.down}" if self.down else reason(error)

    async def _once(self) -> str:
        """Run ssh until it exits; return its last line of output."""
        self.socket.unlink(missing_ok=True)  # ssh leaves it behind, and then refuses to listen
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # Ctrl-C reaches us alone: we may have containers to remove through it.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            return f"cannot be started: {error}"
        assert process.stderr is not None
        opening = asyncio.create_task(self._until_open())
        said = ""
        try:
            async for line in process.stderr:
                said = line.decode(errors="replace").strip() or said
            return said or f"ended with status {await process.wait()}"
        finally:
            opening.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

    def _command(self) -> list[str]:
        host, _, port = self._target.partition(":")
        options = [f"-o{key}={value}" for key, value in OPTIONS.items()]
        where = [f"-p{port}"] if port else []
        return ["ssh", *options, *where, "-NT", f"-L{self.socket}:/var/run/docker.sock", host]

    async def _until_open(self) -> None:
        while not self.socket.exists():
            await asyncio.sleep(0.05)
        self.down = ""
        self.tried.set()


@contextlib.asynccontextmanager
async def tunnel(target: str) -> AsyncIterator[Tunnel]:
    """Yield a tunnel to `target` once the first attempt has succeeded or failed."""
    with tempfile.TemporaryDirectory(prefix="roma-ssh-") as directory:
        made = Tunnel(target, Path(directory) / "engine.sock")
        keeping = asyncio.create_task(made.keep())
        try:
            await is_set_within(made.tried, FIRST_TRY)
            yield made
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
