"""A Service of a cluster on a port of this machine, by `kubectl port-forward`.

The API server's own proxy takes the Authorization header for itself, so a dispatcher's token would
not arrive. kubectl knows every way to log in to a cluster.
"""

import asyncio
import contextlib
import re
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from roma.domain.errors import ExchangeError, in_words
from roma.telemetry.tasks import background

START_LIMIT: Final = 15.0
"""Seconds within which kubectl must listen; a log-in may ask a program of its own."""

PAUSE: Final = 1.0
"""Seconds before kubectl is started again: it ends with the pod that it forwards to."""

_LISTENING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")


@dataclass(frozen=True, slots=True)
class ClusterService:
    """A port of a Service in a cluster of the user's kubeconfig; `namespace` None is its own."""

    context: str
    namespace: str | None
    service: str
    port: int


@contextlib.asynccontextmanager
async def forwarded(at: ClusterService) -> AsyncIterator[str]:
    """Yield the URL of a Service on this machine; raise ExchangeError if kubectl cannot."""
    kubectl, port = await _started(at, 0)
    async with background(_keep(at, kubectl, port)):
        yield f"http://127.0.0.1:{port}"


async def _keep(at: ClusterService, kubectl: Process, port: int) -> None:
    """Start kubectl again whenever it ends; end it at last."""
    running: Process | None = kubectl
    try:
        while True:
            if running is not None:
                assert running.stdout is not None
                async for _ in running.stdout:
                    pass  # a line per connection, which nobody needs
                await running.wait()
                running = None
            await asyncio.sleep(PAUSE)
            with contextlib.suppress(ExchangeError):  # whoever calls says that nobody answers
                running, _ = await _started(at, port)
    finally:
        if running is not None:
            await _end(running)


async def _started(at: ClusterService, port: int) -> tuple[Process, int]:
    """Start kubectl on a local port, any if 0; return it once it listens, and the port."""
    namespace = () if at.namespace is None else ("--namespace", at.namespace)
    ports = f"{port or ''}:{at.port}"
    try:
        kubectl = await asyncio.create_subprocess_exec(
            *("kubectl", "--context", at.context, *namespace, "port-forward"),
            *("--address", "127.0.0.1", f"service/{at.service}", ports),
            stdout=PIPE,
            stderr=STDOUT,
        )
    except OSError as error:
        raise ExchangeError(f"--kube-context: kubectl does not start: {in_words(error)}") from error
    assert kubectl.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(START_LIMIT):
            async for line in kubectl.stdout:
                if listening := _LISTENING.match(line):
                    return kubectl, int(listening[1])
                said = line.decode(errors="replace").strip()
    except TimeoutError:
        said = said or f"nothing within {START_LIMIT:g} s"
    except BaseException:  # also when cancelled: nobody else would end it
        await _end(kubectl)
        raise
    await _end(kubectl)
    where = f"context {at.context}, service {at.service}"
    raise ExchangeError(f"--kube-context: kubectl port-forward ({where}): {said}")


async def _end(kubectl: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        kubectl.terminate()
    await kubectl.wait()
