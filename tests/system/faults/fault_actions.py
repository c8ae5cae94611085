"""Faults of what is around the programs: the exchange between them, clocks, disks, the network.

`stage_…` sets up what a ground stands on and yields options of it; the others strike.
"""

import asyncio
import contextlib
import json
import math
import socket
import struct
import time
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from roma.tools.demo.ports import free_ports
from roma.ui.report.read import read
from tests.support.deployment import Program
from tests.support.lossy_link import LossyLink
from tests.support.waiting import beside
from tests.system.faults.fault_runner import CALM
from tests.system.faults.hostile import Hostile, surprises

DAY = 86_400


async def ran(*argv):
    """Run a command that must succeed."""
    process = await asyncio.create_subprocess_exec(*map(str, argv))
    assert await process.wait() == 0, argv


class Exchange:
    """Stands between supervisor and dispatcher, and passes their messages on.

    `delay` in seconds for each. With `reorders` every second confirmation waits until the one
    after it has passed.
    """

    def __init__(self, port, target):
        self.port, self._target = port, target
        self.delay, self.reorders = 0.0, False
        self.swapped = 0
        self._held = None

    @contextlib.asynccontextmanager
    async def listening(self):
        app = web.Application()
        app.router.add_get("/control/v1/report", self._report)
        app.router.add_post("/control/v1/applied", self._applied)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        async with aiohttp.ClientSession() as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _report(self, request):
        await asyncio.sleep(self.delay)
        return await self._pass_on("GET", request.path, None)

    async def _applied(self, request):
        body = await request.read()
        await asyncio.sleep(self.delay)
        if self.reorders and self._held is None:
            self._held = body
            return web.Response(status=204)
        answer = await self._pass_on("POST", request.path, body)
        if self._held is not None:
            await self._pass_on("POST", request.path, self._held)
            self._held = None
            self.swapped += 1
        return answer

    async def _pass_on(self, method, path, body):
        try:
            async with self._session.request(method, self._target + path, data=body) as answer:
                return web.Response(
                    status=answer.status,
                    body=await answer.read(),
                    content_type=answer.content_type,
                )
        except aiohttp.ClientError:
            return web.Response(status=502)


@contextlib.asynccontextmanager
async def stage_exchange(_):
    port, admin = free_ports(2)
    exchange = Exchange(port, f"http://127.0.0.1:{admin}")
    async with exchange.listening():
        dispatchers = [f"http://127.0.0.1:{port}"]
        yield {
            "admin_port": admin,
            "control": {"dispatchers": dispatchers},
            "controlled": True,
            "under": exchange,
        }


@contextlib.asynccontextmanager
async def exchange_delayed(deployment):
    await deployment.until(lambda: state(deployment)["ticks"] > 1)
    deployment.under.delay = 0.6  # a supervisor waits half a period for an answer, here 0.25 s
    await deployment.until(lambda: "holding" in deployment.supervisor.log.read_text())
    yield
    deployment.under.delay = 0.0


@contextlib.asynccontextmanager
async def exchange_reordered(deployment):
    deployment.under.reorders = True
    yield
    await deployment.until(lambda: deployment.under.swapped > 1)
    deployment.under.reorders = False


async def limits_follow(deployment):
    """Wait until the dispatcher's in-flight limit is that of the cores that were applied."""

    def follows():
        (executable,) = state(deployment)["executables"].values()
        (limit,) = deployment.metrics("roma_executable_in_flight_limit").values()
        return limit == max(1, math.ceil(executable["applied"]))

    await deployment.until(follows)


def state(deployment):
    """What the supervisor says of itself."""
    status, text = deployment.get(deployment.supervised, "/control/v1/state")
    return json.loads(text) if status == 200 else {"ticks": 0}


@contextlib.asynccontextmanager
async def second_supervisor(deployment):
    await deployment.until(lambda: state(deployment)["ticks"] > 1)
    (port,) = free_ports(1)
    file = deployment.directory / "second.yaml"
    loaded = yaml.safe_load(deployment.file.read_text())
    loaded["control"]["port"] = port
    file.write_text(yaml.safe_dump(loaded))
    second = Program(["roma", "supervisor", file], deployment.directory / "second.log")
    second.start()
    try:
        await deployment.until(lambda: second.ended)
    finally:
        second.kill()
    assert second.process.returncode == 1
    first = f"process {deployment.supervisor.process.pid} of this host controls it"
    assert second.log.read_text().splitlines()[-1].endswith(first)
    ticks = state(deployment)["ticks"]
    yield
    await deployment.until(lambda: state(deployment)["ticks"] > ticks)


@contextlib.asynccontextmanager
async def attacked(deployment):
    clients = Hostile(deployment.port, 100.0)
    async with beside(clients.run()) as attacking:
        await deployment.until(lambda: clients.sent > 0)
        yield
        assert not attacking.done()
        assert not surprises(clients.ends), surprises(clients.ends)


@contextlib.asynccontextmanager
async def looked_up(deployment):
    async def ask(session):
        while True:
            async with session.get(deployment.url + "/v1/models/m/metadata") as answer:
                assert answer.status == 200
            answered[0] += 1

    answered, began = [0], time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        asking = [asyncio.create_task(ask(session)) for _ in range(200)]
        try:
            yield
            await deployment.until(lambda: answered[0] > 1000)
            assert not any(task.done() for task in asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    sent = deployment.metrics("roma_gateway_lookups_total")[("executable",)]
    assert sent <= 2 + time.monotonic() - began
    assert sum(deployment.metrics("roma_gateway_lookups_total").values()) >= answered[0]


@contextlib.asynccontextmanager
async def stage_wall_clock(directory):
    source = Path(__file__).parents[2] / "support/wallclock.c"
    library, shift = directory / "wallclock.so", directory / "shift"
    await ran("gcc", "-shared", "-fPIC", "-o", library, source, "-ldl")
    shift.write_bytes(struct.pack("q", 0))
    yield {
        "env": {"LD_PRELOAD": str(library), "WALLCLOCK": str(shift)},
        "under": shift,
        "controlled": True,
    }


@contextlib.asynccontextmanager
async def wall_clock_jumps(deployment):
    def jump(seconds):
        with deployment.under.open("r+b") as file:  # in place: the programs have it mapped
            file.write(struct.pack("q", seconds))

    jump(DAY)
    await deployment.until(lambda: told_time(deployment) > time.time() + DAY / 2)
    yield
    jump(-DAY)
    await deployment.until(lambda: told_time(deployment) < time.time() - DAY / 2)


def told_time(deployment):
    """The wall clock as the dispatcher sees it."""
    return json.loads(deployment.get(deployment.admin, "/control/v1/decisions?seconds=1")[1])["at"]


@contextlib.asynccontextmanager
async def descriptors_exhausted(deployment):
    """Take every descriptor, and then make the gateway need a new one towards its executable."""
    hoard = []
    try:
        for _ in range(200):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", deployment.port))
            hoard.append(sock)
        await asyncio.sleep(0.2)
        deployment.server.say("drop")
        yield
    finally:
        for sock in hoard:
            sock.close()


@contextlib.asynccontextmanager
async def stage_small_disk(directory):
    disk = directory / "disk"
    disk.mkdir()
    await ran("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk)
    try:
        yield {
            "under": disk,
            "logs": disk,
            "log": {"requests": "all"},
            "control": {"decision_log": str(disk / "story")},
            "controlled": True,
        }
    finally:
        await ran("umount", "--lazy", disk)


@contextlib.asynccontextmanager
async def disk_full(deployment):
    ballast = deployment.under / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    said = deployment.gateway.log.stat().st_size
    yield
    assert deployment.gateway.log.stat().st_size <= said + 4096  # the rest of a page: it was full
    ballast.unlink()


async def written_again(deployment):
    """Wait until log and story go on, and read the story as `roma report` would."""
    assert deployment.gateway.log.read_text().count(": answered after") > CALM
    story = deployment.under / "story"
    for file in story.iterdir():
        size = file.stat().st_size
        await deployment.until(lambda file=file, size=size: file.stat().st_size > size)
    run = read(story)
    assert "m" in run.models


@contextlib.asynccontextmanager
async def stage_cable(_):
    async with LossyLink() as lossy_link:
        yield {"hosts": [lossy_link.address], "entered": lossy_link.inside, "under": lossy_link}


@contextlib.asynccontextmanager
async def cable_cut(deployment):
    deployment.under.cut = True
    await deployment.until(deployment.lost)
    yield
    deployment.under.cut = False
    await deployment.until(lambda: not deployment.lost())


@contextlib.asynccontextmanager
async def cable_bad(deployment):
    deployment.under.delay, deployment.under.loss = 0.02, 0.05
    yield
    assert deployment.under.lost > 0
    deployment.under.delay = deployment.under.loss = 0.0
