"""Ports of temporary deployments: no process is given another's."""

import multiprocessing
import socket

import pytest

from roma.tools.demo.ports import BLOCK, free_ports


def several(_):
    return {port for _ in range(16) for port in free_ports(5)}


def test_each_process_has_its_own():
    # A process that gets all three calls still has more ports than they take.
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        mine, *others = several(0), *pool.map(several, range(3), chunksize=1)
    assert len(mine.union(*others)) == sum(map(len, (mine, *others)))


def test_a_port_comes_again_only_after_the_others():
    given = [free_ports(1)[0] for _ in range(BLOCK // 2)]
    assert len(set(given)) == len(given)


def test_ports_are_consecutive_and_none_is_listened_on():
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        found = [free_ports(7) for _ in range(BLOCK // 7)]
    assert all(p == tuple(range(p[0], p[0] + 7)) for p in found)
    assert not any(port in p for p in found)


def test_a_closed_connection_does_not_hold_its_port():
    (port,) = free_ports(1)
    address = "127.0.0.1", port
    with socket.create_server(address) as server, socket.create_connection(address) as client:
        accepted, _ = server.accept()
        accepted.close()  # the end that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    assert port in {free_ports(1)[0] for _ in range(BLOCK - 1)}


def test_more_than_a_block_is_refused():
    with pytest.raises(ValueError, match=f"count = {BLOCK}: at most {BLOCK - 1} ports"):
        free_ports(BLOCK)
