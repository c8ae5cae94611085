"""`gateway.processes: 2`: two dispatchers behind one port know together what a model server can do."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request

import pytest
import yaml
from aiohttp import web

from roma.config import schema as roma_config
from roma.config.placement import executables
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream
from roma.tools.load.client import RestClient
from roma.tools.load.generator import LoadRun
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.cgroups import find_hierarchy
from tests.protocol.gateway.conftest import FakeModelServer
from tests.support.retrying_client import RetryingClient
from tests.support.up import Up, kill

SLOTS, SERVICE = 8, 0.1
BODY = b'{"instances": [1]}'


class Town:
    """A deployment with two dispatchers, and the model server that both send to."""

    def __init__(self, up, server):
        self.up, self.server = up, server
        g = up.config.gateway
        self.admins = [f"http://127.0.0.1:{port}" for port in g.admin_ports]

    def pid(self, number):
        (pid,) = self.up.children(" dispatcher ", f"--number {number}")
        return pid

    def reports(self):
        """What each dispatcher says of the model; None from one that does not answer."""
        answers = [self.up.get(admin, "/control/v1/report") for admin in self.admins]
        return [json.loads(b)["models"][0] if s == 200 else None for s, b in answers]

    @property
    def arrivals(self):
        return [r["arrivals"] for r in self.reports()]

    async def ready(self):
        for admin in self.admins:
            await self.up.until(lambda admin=admin: self.live(admin))
        ticks = self.up.state.get("ticks", 0)
        await self.up.until(lambda: self.up.state.get("ticks", 0) > ticks + 3)

    def live(self, admin):
        status, body = self.up.get(admin, "/control/v1/report")
        return status == 200 and json.loads(body)["executors"][0]["state"] in ("idle", "busy")

    def measured(self, seconds):
        """The arrivals that the supervisor's decisions of the last seconds rest on."""
        url = f"{self.up.supervisor}/control/v1/decisions?seconds={seconds}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            told = json.load(answer)["decisions"]
        return sum(d["measurement"]["arrivals"] for d in told if d["measurement"])

    def status(self, size):
        """What a request of so many bytes is answered with."""
        url = f"{self.up.url}/v1/models/m:predict"
        request = urllib.request.Request(url, data=BODY.ljust(size), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    async def load(self, rate, seconds):
        """Send; return the report, and how often a connection was lost and the request sent anew."""
        stream = Stream("m", poisson(Profile((RateStep(rate, seconds),)), seed=1), [BODY])
        async with RestClient(self.up.url) as client:
            patient = RetryingClient(client)
            report = await LoadRun([stream], patient).run()
        return report.total, patient.again


async def slowly(request, body):
    await asyncio.sleep(SERVICE)
    return web.json_response({"predictions": [1]})


@pytest.fixture
async def town(tmp_path):
    port, backend, admin, supervisor, second = free_ports(5)
    data = {
        "name": f"workers-{os.getpid()}",
        "models": {
            "m": {
                "sla": {"response_time": 2},
                "cpu": {"max": SLOTS, "initial": SLOTS, "in_flight": SLOTS},
            }
        },
        "workers": [
            {
                "backend": "static",
                "cores": SLOTS,
                "executables": [
                    {
                        "url": f"http://127.0.0.1:{backend}",
                        "model": "m",
                        "cgroup": f"workers-{os.getpid()}/m",
                    }
                ],
            }
        ],
        "gateway": {"port": port, "admin_port": admin, "processes": 2, "process_port": second},
        "control": {"port": supervisor},
    }
    file = tmp_path / "roma.yaml"
    file.write_text(yaml.safe_dump(data))
    (executable,) = executables(roma_config.load(file))
    hierarchy = find_hierarchy()
    hierarchy.prepare(executable.cgroup)
    group = hierarchy.group(executable.cgroup, 0.1)
    group.create()
    group.set_cores(SLOTS)
    server = FakeModelServer(backend)
    server.behave = slowly
    try:
        async with server:
            with Up(file) as up:
                town = Town(up, server)
                await town.ready()
                yield town
    finally:
        group.remove()


async def test_both_serve_and_together_send_no_more_than_the_slots(town):
    before = town.arrivals
    total, again = await town.load(1.5 * SLOTS / SERVICE, 8)
    assert (total.lost, total.failed, again) == (0, 0, 0), total
    shares = [now - then for now, then in zip(town.arrivals, before, strict=True)]
    assert sum(shares) == total.sent
    assert min(shares) > total.sent / 10, shares
    assert SLOTS / 2 < town.server.most_running <= SLOTS
    ticks = town.up.state["ticks"]
    await town.up.until(lambda: town.up.state["ticks"] > ticks + 1)
    assert town.measured(60) == pytest.approx(total.sent, rel=0.1)


async def test_one_that_is_killed_comes_back_and_costs_only_what_it_had(town):
    load = asyncio.create_task(town.load(0.3 * SLOTS / SERVICE, 12))
    await town.up.until(lambda: town.server.most_running > 0 and max(town.arrivals) > SLOTS)
    # So few connections may all have been dealt to one: it is the one to kill.
    arrivals = town.arrivals
    number = 1 + arrivals.index(max(arrivals))
    pid, option = town.pid(number), f"--number {number}"
    await asyncio.to_thread(kill, pid)
    await town.up.until(lambda: town.up.children(" dispatcher ", option) not in ([], [pid]))
    total, again = await load
    assert (total.lost, total.failed, total.rejected) == (0, 0, 0), (total.statuses, total)
    assert total.answered == total.sent
    assert again <= 2 * SLOTS  # what ran there, and what had just been sent there
    assert town.server.most_running <= SLOTS
    await town.ready()
    before = town.arrivals
    total, again = await town.load(1.5 * SLOTS / SERVICE, 4)
    assert (total.lost, total.failed, again) == (0, 0, 0), total
    assert all(now > then for now, then in zip(town.arrivals, before, strict=True))
    assert town.server.most_running <= SLOTS


async def test_both_take_over_the_file_and_are_replaced_one_after_the_other(town):
    file = town.up.file
    data = yaml.safe_load(file.read_text())
    data["gateway"]["max_body_bytes"] = 1024
    file.write_text(yaml.safe_dump(data))
    # Each question takes a connection: either may have to answer.
    await town.up.until(lambda: {town.status(2048) for _ in range(20)} == {413})
    load = asyncio.create_task(town.load(0.3 * SLOTS / SERVICE, 12))
    for number in (1, 2):
        pid, option = town.pid(number), f"--number {number}"
        await asyncio.to_thread(kill, pid, signal.SIGTERM)
        await town.up.until(
            lambda pid=pid, option=option: (
                town.up.children(" dispatcher ", option) not in ([], [pid])
            )
        )
        await town.ready()
    total, _ = await load
    assert (total.lost, total.failed, total.rejected) == (0, 0, 0), (total.statuses, total)
    assert total.answered == total.sent
    assert town.server.most_running <= SLOTS
    assert {town.status(2048) for _ in range(20)} == {413}
