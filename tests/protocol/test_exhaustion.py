"""Programs without a descriptor left for a connection: a line, not a traceback each, and they recover."""

import asyncio
import contextlib
import errno
import logging
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from roma.telemetry import exhaustion
from roma.tools.demo.ports import free_ports

DESCRIPTORS = 64
CLIENTS = 120

FILE = """
models: {{m: {{path: /nowhere, sla: {{response_time: 1}}}}}}
workers: [{{name: a, cores: 1}}]
gateway: {{port: {0}, admin_port: {1}}}
control: {{port: {2}, dry_run: true}}
"""


def answers(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as response:
        return response.status == 200
    return False


def wait_for(condition):
    ends = time.monotonic() + 60  # only bounds a failing test
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_supervisor_says_so_once_and_answers_when_there_are_some_again(tmp_path):
    ports, file, said = free_ports(3), tmp_path / "roma.yaml", tmp_path / "log"
    file.write_text(FILE.format(*ports))
    url = f"http://127.0.0.1:{ports[2]}/healthz"
    command = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", sys.executable, "-m", "roma"]
    with said.open("w") as output:
        program = subprocess.Popen([*command, "supervisor", str(file)], stderr=output)
    try:
        wait_for(lambda: answers(url))
        with contextlib.ExitStack() as flood:
            for _ in range(CLIENTS):
                one = flood.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", ports[2]))
            wait_for(lambda: "cannot be accepted" in said.read_text())
        assert answers(url)
    finally:
        program.terminate()
        program.wait()
    assert said.read_text().count("cannot be accepted") == 1
    assert "Traceback" not in said.read_text()


@pytest.fixture
async def reporting():
    """The event loop, which reports exhaustion."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    exhaustion.report_exhaustion(loop)
    yield loop
    loop.set_exception_handler(before)


async def test_other_faults_of_the_event_loop_are_logged_as_ever(reporting, caplog):
    reporting.call_exception_handler({"message": "a bug", "exception": OSError(errno.EMFILE, "x")})
    reporting.call_exception_handler({"message": "no error", "socket": None})
    assert [record.message for record in caplog.records] == ["a bug", "no error\nsocket: None"]


async def test_a_listener_that_closes_meanwhile_adds_nothing(reporting, monkeypatch, caplog):
    def accept(_):
        raise OSError(errno.EMFILE, "Too many open files")

    server = await reporting.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=8)
    with monkeypatch.context() as exhausted, socket.socket() as client:
        exhausted.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)
        exhausted.setattr(socket.socket, "accept", accept)
        client.setblocking(False)
        client.connect_ex(server.sockets[0].getsockname())
        while not caplog.records:
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0.05)  # longer than any try waits
    assert len(caplog.records) == 1


@pytest.mark.looptime
async def test_a_line_a_minute(reporting, caplog):
    context = {"message": "", "exception": OSError(errno.EMFILE, "Many"), "socket": None}
    with caplog.at_level(logging.ERROR):
        for _ in range(150):  # seconds
            reporting.call_exception_handler(context)
            reporting.call_exception_handler(context)
            await asyncio.sleep(1)
    assert len(caplog.records) == 3
