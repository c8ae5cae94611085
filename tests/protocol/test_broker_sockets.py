"""The sockets of a broker: one that another broker has is refused, one of a dead broker replaced."""

import asyncio
import errno
import os
import socket

import pytest
from aiohttp import web

from roma.domain.errors import LaunchError
from supervisor.broker.server import _listening

OURS = frozenset({os.geteuid()})


async def test_a_socket_is_refused_while_another_broker_has_it_though_it_accepts_nothing(tmp_path):
    path, clients = tmp_path / "supervisor.sock", []
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        while not clients or clients[-1].connect_ex(str(path)) != errno.EAGAIN:
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].setblocking(False)
        with pytest.raises(LaunchError, match=r"supervisor\.sock: another broker listens there$"):
            async with _listening(web.Application(), path, OURS):
                pass
    for client in clients:
        client.close()


async def test_the_socket_of_a_broker_that_has_died_is_replaced(tmp_path):
    path = tmp_path / "supervisor.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with _listening(web.Application(), path, OURS):
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
        await writer.wait_closed()
