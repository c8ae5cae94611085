"""The device server's program: measure the models, listen, serve, shut down in order."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from dataclasses import dataclass

from roma.config.security import is_loopback
from roma.config.watched_file import keep_looking
from roma.device.device import DeviceRunner
from roma.device.profile import RUNS, measure
from roma.device.runtimes.base import Runtime
from roma.device.server import DeviceServer, DeviceServerSettings
from roma.domain.actions import BATCHES, PAGE, Capabilities, pages_of
from roma.domain.addresses import authority
from roma.domain.errors import ConfigError
from roma.domain.words import counted

DRAIN_LIMIT = 10.0
"""Seconds for running actions to end at shutdown."""
_SWITCH = 0.0005
"""Thread switch interval in seconds, after which a thread that computes in Python yields to the
event loop; Python's default of 5 ms would be longer than a window."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Settings of one device server, from its command line."""

    server: DeviceServerSettings
    pages: int | None = None
    """Pages for weights. None: as many as the device has memory for, or as all models need."""
    runs: int = RUNS
    """Runs of each model and batch size for the seed profile."""
    batches: tuple[int, ...] = BATCHES
    """Batch sizes to profile, smallest first."""
    insecure: bool = False


def check_exposure(settings: DeviceSettings) -> None:
    """Warn of a device that anyone may use; raise ConfigError unless that was requested."""
    server = settings.server
    if server.token is not None or is_loopback(server.host):
        return
    if not settings.insecure:
        raise ConfigError(
            f"host = {server.host}: must be an address of this machine alone, 127.0.0.1 say, "
            "without --token-file; or, if whoever reaches it shall be let in, --insecure"
        )
    _log.warning("host = %s: whoever reaches it may use the device", server.host)


def pages(runtime: Runtime) -> int:
    """Return the default number of pages of a device."""
    if runtime.memory is not None:
        return runtime.memory // PAGE
    return sum(pages_of(model.weights) for model in runtime.models.values())


async def run(runtime: Runtime, settings: DeviceSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish running actions, report them and return.

    It owns the process: its signals, its thread switching, and its exit with status 0 if the device
    still computes when the drain limit ends. Raises ConfigError or LaunchError.
    """
    check_exposure(settings)
    sys.setswitchinterval(_SWITCH)
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(_serve(runtime, settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    ended = True
    try:
        with contextlib.suppress(asyncio.CancelledError):
            ended = await serving
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if not ended:
        _log.error("the device still computes after %g s: it is left to itself", DRAIN_LIMIT)
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
    runtime.close()


async def _serve(runtime: Runtime, settings: DeviceSettings) -> bool:
    """Serve until cancelled; return whether the running actions then ended in time."""
    count = pages(runtime) if settings.pages is None else settings.pages
    offers = await measure(runtime, count, settings.runs, settings.batches)
    device = DeviceRunner(runtime, offers, count)
    server = DeviceServer(settings.server, device, dict(runtime.models))
    await server.start()
    device.start()
    # Objects that exist now stay: no collection need scan them in the middle of an action.
    gc.collect()
    gc.freeze()
    _tell(server, device.offer)
    token = settings.server.token
    try:
        await keep_looking([] if token is None else [token])
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return await server.stop(DRAIN_LIMIT)


def _tell(server: DeviceServer, offer: Capabilities) -> None:
    host, port = server.address
    told = f"{counted(len(offer.models), 'model')}, {counted(offer.pages, 'page')}"
    sys.stderr.write(f"roma device: ready on {authority(host, port)}: {told}\n")
    sys.stderr.flush()
