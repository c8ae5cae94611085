"""Health checks of executables: when each becomes ready, and when it is lost.

A crash is detected at once: the kernel closes an open connection, of which one is held where the
server keeps any. A slow answer is no sign of a crash here: an executable with a tenth of a core may
take long.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence

import orjson

from dispatcher.live.backends.backend_address import BackendAddress
from dispatcher.live.backends.http_client import CONNECT_TIMEOUT, Pool
from dispatcher.live.driver import Driver
from dispatcher.live.http.messages import Response
from dispatcher.live.unavailable import Reasons
from dispatcher.state.lifecycle import ExecutorState
from roma.domain.errors import BackendAway, BackendError, BackendLost, BackendTimeout
from roma.telemetry.tasks import cancel, is_set_within

POLL = 0.25
"""Seconds between two checks of an executable that is not ready."""

CHECK = 5.0
"""Seconds between two checks of a ready one."""

LOADING_CHECK = 1.0
"""The same of one whose server may still be loading some of its models."""

HANG = 10.0
"""Seconds without an answer to a status request after which an executable counts as lost, unless
it computes."""


MOST_STATUS = 2**20
"""Limit in bytes of an answer to a status request: enough for thousands of versions."""

MOST_REASON = 500
"""Most characters of a fault in a status that are kept."""

log = logging.getLogger(__name__)


async def watch(
    executor: str,
    models: Sequence[str],
    endpoint: BackendAddress,
    driver: Driver,
    reasons: Reasons | None = None,
    *,
    is_foreign: bool = False,
) -> None:
    """Report when an executable becomes ready or lost, until cancelled, whatever its status.

    `reasons` gets the fault in the status of a model, and of a foreign executable, which nobody
    here starts, also why it cannot be reached.
    """

    def note(missing: Mapping[str, str]) -> None:
        if reasons is not None:
            reported = {m: why for m, why in missing.items() if isinstance(why, _Fault)}
            others = [why for m, why in missing.items() if m not in reported]
            unreached = others[0] if is_foreign and others and not reported else None
            reasons.note(executor, reported=reported, unreached=unreached)

    said = ""
    while True:
        try:
            await _watch(executor, models, endpoint, driver, note)
        except Exception as bug:  # it costs this executable, not those of the other models
            if repr(bug) != said:  # once per bug, not once per check
                log.exception("executable %s: cannot be watched", executor)
            said = repr(bug)
            driver.on_lost(executor, f"cannot be watched: {said}")
            await asyncio.sleep(CHECK)


async def _watch(
    executor: str,
    models: Sequence[str],
    endpoint: BackendAddress,
    driver: Driver,
    note: Callable[[Mapping[str, str]], None],
) -> None:
    doubt, known = driver.suspects[executor], driver.core.executors
    told: dict[str, str] = {}
    while True:
        doubt.clear()  # before the check: trouble during it asks for another one
        state = known[executor].state
        is_doubted = state is ExecutorState.SUSPECTED or state is ExecutorState.LOST
        missing = await _missing(models, endpoint, is_doubted=is_doubted)
        if len(missing) == len(models) or known.lacks_more(executor, missing.keys()):
            note(missing)
            why = next(iter(missing.values()))
            if isinstance(why, _NoHost):
                driver.on_lost(executor, why)
            else:
                driver.on_unavailable(executor, why)
            await asyncio.sleep(POLL)
            continue
        if doubt.is_set():
            continue  # trouble since the check began: its result is out of date
        driver.on_missing(executor, missing.keys())
        driver.on_ready(executor)
        note(missing)
        for model, why in missing.items():
            if told.get(model) != why:
                level = logging.WARNING if isinstance(why, _Fault) else logging.INFO
                log.log(level, "executable %s serves its other models: %s", executor, why)
        told = missing
        is_loading = any(not isinstance(why, _Fault) for why in missing.values())
        await _until_suspect(endpoint.pool, doubt, LOADING_CHECK if is_loading else CHECK)


async def _missing(
    models: Sequence[str], endpoint: BackendAddress, *, is_doubted: bool
) -> dict[str, str]:
    """Return the models that the executable does not serve, each with the reason.

    One that is doubted must accept a new connection: idle ones may go on where none is accepted.
    """
    missing: dict[str, str] = {}
    try:
        for model in models:
            status = await _look(endpoint.pool, f"/v1/models/{model}", is_fresh=is_doubted)
            is_doubted = False
            why = _fault(model, status)
            if why is not None:
                missing[model] = why
        if endpoint.channel is not None and len(missing) < len(models):
            await endpoint.channel.check(CONNECT_TIMEOUT)
    except BackendError as error:
        return dict.fromkeys(
            models, _NoHost(error) if isinstance(error, BackendAway) else str(error)
        )
    return missing


async def _look(pool: Pool, path: str, *, is_fresh: bool) -> Response:
    try:
        return await pool.fetch(path, timeout=HANG, most=MOST_STATUS, is_fresh=is_fresh)
    except BackendLost:
        # An idle connection that was closed meanwhile proves nothing yet.
        return await pool.fetch(path, timeout=HANG, most=MOST_STATUS, is_fresh=is_fresh)
    except BackendTimeout:
        if not is_fresh:
            raise
        # It was accepted: a server that serves one connection at a time may answer on another.
        return await pool.fetch(path, timeout=HANG, most=MOST_STATUS)


class _NoHost(str):
    """Nobody accepts or refuses a connection: what runs there closes none, either."""

    __slots__ = ()


class _Fault(str):
    """A reason that the executable itself reported."""

    __slots__ = ()


def _fault(model: str, response: Response) -> str | None:
    """Return why a model is not available, as its status says; None if it is."""
    states = _states(response.body)
    if response.status == 200 and "AVAILABLE" in states:
        return None
    fault = _reported(response.body)
    if fault:
        return _Fault(f"model {model} is not available: {fault}")
    found = ", ".join(states)[:MOST_REASON] or f"status {response.status}"
    return f"model {model} is not available ({found})"


def _reported(body: bytes) -> str:
    """Return why no version could be loaded; an empty string while one may still load."""
    try:
        versions = orjson.loads(body)["model_version_status"]
        ended = all(version["state"] == "END" for version in versions)
        texts = [version["status"]["error_message"] for version in versions]
    except (ValueError, KeyError, TypeError):
        return ""
    found = [text for text in texts if isinstance(text, str) and text]
    return " ".join(found[0].split())[:MOST_REASON] if ended and found else ""


def _states(body: bytes) -> tuple[str, ...]:
    """Return the different states of the versions; none if the body is no status."""
    try:
        versions = orjson.loads(body)["model_version_status"]
        return tuple(dict.fromkeys(str(version["state"]) for version in versions))
    except (ValueError, KeyError, TypeError):
        return ()


async def _until_suspect(pool: Pool, doubt: asyncio.Event, limit: float) -> None:
    """Return when the connection breaks, a request fails, or the next check is due."""
    if not pool.keeps:
        # A server that closes after each answer may have one worker per connection, such as
        # gunicorn's sync ones: a silent connection would keep it from everything else.
        await is_set_within(doubt, limit)
        return
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if pool.socket is not None:
                reader, writer = await asyncio.open_unix_connection(pool.socket)
            else:
                reader, writer = await asyncio.open_connection(pool.host, pool.port)
                _notice_silence(writer.get_extra_info("socket"))
    except (OSError, TimeoutError):
        await asyncio.sleep(POLL)
        return
    try:
        signs = [asyncio.ensure_future(sign) for sign in (_end_of(reader), doubt.wait())]
        try:
            await asyncio.wait(signs, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(signs)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Return when a connection ends; keep nothing of what comes unasked meanwhile."""
    while await reader.read(2**16):
        pass


def _notice_silence(sock: socket.socket) -> None:
    """Let the kernel probe an idle connection each second: a host that vanishes closes nothing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        sock.setsockopt(socket.IPPROTO_TCP, option, 1)
