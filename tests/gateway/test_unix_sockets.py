"""Executables behind Unix sockets: the same answers, the same ends."""

import asyncio
import contextlib
import json
import socket
import tempfile
from pathlib import Path

import pytest
import uvloop

from dispatcher.live.backend import Message, Pool
from roma import config
from roma.errors import BackendError, BackendLost, BackendSilent, BackendUnreached, ConfigError


@pytest.fixture
def sockets():
    """A directory with a short name: the kernel takes 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        yield Path(directory)


async def sent(pool):
    """What becomes of a message."""
    ended = asyncio.get_running_loop().create_future()
    pool.send(Message("/v1/models/m:predict", b"{}"), ended.set_result, timeout=5)
    try:
        return await ended
    finally:
        await pool.close()


async def test_a_model_server_is_called_by_its_socket(stage, sockets):
    await stage.open(sockets=sockets)
    assert (await stage.predict(b"{}"))[:2] == (200, b"{}")
    assert (await stage.get("/v1/models/m/metadata"))[0] == 200
    _, headers, body = stage.backends[0].seen[0]
    assert (headers["Host"], body) == ("localhost", b"{}")
    (endpoint,) = stage.service.endpoints.values()
    assert repr(endpoint.pool) == f"<Pool {sockets}/0.sock: 1 open, 1 idle>"


async def test_its_death_is_noticed_and_its_return_too(stage, sockets):
    await stage.open(sockets=sockets)
    backend = stage.backends[0]
    backend.gate = asyncio.Event()
    call = asyncio.create_task(stage.predict())
    await stage.until(lambda: backend.running == 1)
    backend.kill_connections()
    assert (await call)[0] == 502
    await backend.stop()
    await stage.until(lambda: not any(stage.core.executors.of("m")))
    assert (await stage.predict())[0] == 503
    backend.gate = None
    await backend.start()
    await stage.until(lambda: any(stage.core.executors.of("m")))
    assert (await stage.predict())[0] == 200


@pytest.mark.parametrize("left", ["nothing", "a socket that nobody listens on"])
async def test_a_request_that_never_reached_a_socket_runs_on_another(stage, sockets, left):
    await stage.open(backends=2, sockets=sockets)
    dead, alive = stage.backends
    name = next(e.spec.name for e in stage.core.executors)
    pool = stage.service.endpoints[name].pool
    pool.socket = f"{sockets}/gone.sock"
    if left != "nothing":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(pool.socket)
    for connection in list(pool._all):
        connection.abort()
    assert type(await sent(Pool("localhost", 0, pool.socket))) is BackendUnreached
    statuses = [(await stage.predict())[0] for _ in range(4)]
    assert statuses == [200] * 4
    assert (dead.seen, len(alive.seen)) == ([], 4)


async def test_who_may_not_call_is_told_so(stage, sockets):
    await stage.open(sockets=sockets, start=False)
    path = sockets / "file.sock"
    path.mkdir()
    result = await sent(Pool("localhost", 0, str(path)))
    assert isinstance(result, BackendError)
    assert str(result).startswith(f"cannot connect to {path}: ")


def test_a_full_backlog_is_silence_and_no_death(sockets):
    path = f"{sockets}/full.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        while True:  # as many as the kernel takes
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            try:
                client.connect(path)
            except BlockingIOError:
                break
        result = uvloop.run(sent(Pool("localhost", 0, path)))
    assert type(result) is BackendSilent


async def test_a_broken_connection_is_named_by_its_socket(sockets):
    path = f"{sockets}/short.sock"

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        assert isinstance(await sent(Pool("localhost", 0, path)), BackendLost)


async def test_a_reload_that_moves_it_is_refused_and_names_both_places(stage, sockets):
    await stage.open(sockets=sockets)
    text = stage.text.replace("0.sock", "1.sock")
    with pytest.raises(ConfigError, match=r"unix://.*/0\.sock.* to .*unix://.*/1\.sock"):
        await stage.roster.follow(config.parse(text))
    assert json.loads((await stage.predict(b"[1]"))[1]) == [1]
