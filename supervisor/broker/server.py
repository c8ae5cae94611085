"""`roma broker`: two unix sockets, one per role. The first check is who may open a socket.

    supervisor.sock    GET /v1/executables, /v1/readings; POST /v1/cores {"cores": {NAME: cores}}
    launcher.sock      the same, GET /v1/known, PUT and DELETE /v1/executables/NAME

The kernel identifies the calling user (SO_PEERCRED, unix(7)), so a caller cannot claim to be
another.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roma.config.reload import reloads
from roma.config.schema import Config
from roma.config.sockets import is_taken
from roma.config.workers import WorkerConfig
from roma.domain.errors import ActuationError, BrokerRefused, EngineError, LaunchError
from roma.telemetry.exhaustion import report_exhaustion
from roma.telemetry.tasks import stop_signal, until_one_ends
from supervisor.broker.broker import Broker
from supervisor.broker.engine import connected
from supervisor.executables import Reading

SUPERVISOR, LAUNCHER = "supervisor.sock", "launcher.sock"

MOST_BYTES = 1 << 20
"""Most bytes of a request's body: enough for ten thousand executables."""

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Grant(BaseModel):
    """Body of POST /v1/cores."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cores: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


def run_dir(config: Config, worker: WorkerConfig) -> Path:
    """Return the directory of a worker's sockets."""
    return worker.containers.run_dir / config.name / worker.name


async def run(config: Config, worker: WorkerConfig, file: Path, *, launcher: bool) -> None:
    """Serve until SIGTERM or SIGINT; granted quotas stay in force.

    Without `launcher` there is no second socket: another program creates the containers. On SIGHUP,
    switch to the models of `file`.
    """
    stop, loop = stop_signal(), asyncio.get_running_loop()
    report_exhaustion(loop)
    async with connected(worker.containers) as engine, contextlib.AsyncExitStack() as stack:
        broker = Broker(config, worker, engine, loop.time)
        callers = frozenset({os.geteuid(), *worker.containers.callers})
        directory = run_dir(config, worker)
        applications = {SUPERVISOR: supervisor_application(broker, callers)}
        if launcher:
            applications[LAUNCHER] = launcher_application(broker, callers)
        for name, application in applications.items():
            await stack.enter_async_context(_listening(application, directory / name, callers))
        log.info("broker of worker %s listens in %s", worker.name, directory)
        works: list[Awaitable[object]] = [stop.wait(), _follow(broker, file, config)]
        if not config.control.dry_run:
            # In dry-run nothing is applied, so silence has no meaning.
            works.append(broker.watch_lease())
        # A bug that ends one of them ends the program, so that it is restarted.
        await until_one_ends(*works)


async def _follow(broker: Broker, file: Path, config: Config) -> None:
    async for changed in reloads(file, config):
        broker.follow(changed)


def supervisor_application(broker: Broker, callers: frozenset[int]) -> web.Application:
    """Return the application with a supervisor's calls."""

    async def executables(_: web.Request) -> web.Response:
        found = await broker.containers()
        return _json({name: asdict(container) for name, container in found.items()})

    async def readings(_: web.Request) -> web.Response:
        found = await broker.readings()
        return _json({name: _result(result) for name, result in found.items()})

    async def cores(request: web.Request) -> web.Response:
        grant = _Grant.model_validate_json(await request.read())
        results = await broker.grant(grant.cores)
        return _json({name: _result(result) for name, result in results.items()})

    application = web.Application(middlewares=[_only(callers), _errors], client_max_size=MOST_BYTES)
    application.router.add_get("/v1/executables", executables)
    application.router.add_get("/v1/readings", readings)
    application.router.add_post("/v1/cores", cores)
    return application


def launcher_application(broker: Broker, callers: frozenset[int]) -> web.Application:
    """Return the application with a launcher's calls."""

    async def known(_: web.Request) -> web.Response:
        return _json(await broker.known())

    async def create(request: web.Request) -> web.Response:
        await broker.create(request.match_info["name"])
        return web.Response(status=204)

    async def remove(request: web.Request) -> web.Response:
        await broker.remove(request.match_info["name"])
        return web.Response(status=204)

    application = supervisor_application(broker, callers)
    application.router.add_get("/v1/known", known)
    application.router.add_put("/v1/executables/{name}", create)
    application.router.add_delete("/v1/executables/{name}", remove)
    return application


@contextlib.asynccontextmanager
async def _listening(
    application: web.Application, path: Path, callers: frozenset[int]
) -> AsyncIterator[None]:
    """Listen on a socket file; refuse one on which another broker listens."""
    # A launcher that goes while an image is on its way wants no container any more.
    is_launcher_s = path.name == LAUNCHER
    runner = web.AppRunner(application, access_log=None, handler_cancellation=is_launcher_s)
    await runner.setup()
    try:
        try:
            _make_way(path)
            await web.UnixSite(runner, str(path)).start()
            # Other users must be able to connect before their identity can be checked.
            os.chmod(path, 0o600 if callers == {os.geteuid()} else 0o666)
        except OSError as error:
            why = error.strerror or error
            raise LaunchError(f"docker.run_dir: cannot listen on {path}: {why}") from error
        yield
    finally:
        await runner.cleanup()


def _make_way(path: Path) -> None:
    """Create the socket's directory; remove the socket of a broker that has died."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_taken(path):
        raise OSError(errno.EADDRINUSE, "another broker listens there")
    path.unlink(missing_ok=True)


def _only(callers: frozenset[int]) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        user = _caller(request)
        if user not in callers:
            log.warning("refused user %s: %s %s", user, request.method, request.path)
            return _error(403, f"user {user} may not call this broker (docker.callers)")
        return await handler(request)

    return check


def _caller(request: web.Request) -> int | None:
    """Return the user id of the connected peer; None if it has disconnected."""
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None:
        return None
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return _error(400, f"{where}: {first['msg']}")
    except BrokerRefused as error:
        log.warning("refused: %s", error)
        return _error(409, str(error))
    except EngineError as error:
        return _error(502, str(error))


def _result(result: float | Reading | ActuationError) -> dict[str, Any]:
    match result:
        case ActuationError():
            return {"error": str(result)}
        case Reading():
            return asdict(result)
        case _:
            return {"cores": result}


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)
