"""Executables behind Unix sockets; how they die and come back is in `test_backend_faults.py`."""

import asyncio
import contextlib
import json
import socket

import pytest
import uvloop

from dispatcher.live.backends.http_client import Pool
from dispatcher.live.http.messages import Message, request_template
from roma.config import schema
from roma.domain.errors import BackendError, BackendSilent, BackendUnreachable, ConfigError


async def sent(pool):
    """What becomes of a message."""
    ended = asyncio.get_running_loop().create_future()
    pool.send(Message(request_template("/v1/models/m:predict"), b"{}"), ended.set_result, timeout=5)
    try:
        return await ended
    finally:
        await pool.close()


async def test_a_model_server_is_called_by_its_socket(harness, sockets):
    await harness.open(sockets=sockets)
    assert (await harness.predict(b"{}"))[:2] == (200, b"{}")
    assert (await harness.get("/v1/models/m/metadata"))[0] == 200
    # The other one is open for its end to be noticed.
    await harness.until(lambda: len(harness.backends[0].open_connections) == 2)
    _, headers, body = harness.backends[0].seen[0]
    assert (headers["Host"], body) == ("localhost", b"{}")
    (endpoint,) = harness.service.endpoints.values()
    assert repr(endpoint.pool) == f"<Pool {sockets}/0.sock: 1 open, 1 idle>"


@pytest.mark.parametrize("left", ["nothing", "a socket that nobody listens on"])
async def test_a_socket_without_a_server_was_not_reached(sockets, left):
    path = f"{sockets}/gone.sock"
    if left != "nothing":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
    assert type(await sent(Pool("localhost", 0, path))) is BackendUnreachable


async def test_what_is_no_socket_is_named(sockets):
    path = sockets / "directory.sock"
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


async def test_a_reload_that_moves_it_is_refused_and_names_both_places(harness, sockets):
    await harness.open(sockets=sockets)
    text = harness.text.replace("0.sock", "1.sock")
    with pytest.raises(ConfigError, match=r"unix://.*/0\.sock.* to .*unix://.*/1\.sock"):
        await harness.registry.follow(schema.parse(text))
    assert json.loads((await harness.predict(b"[1]"))[1]) == [1]
