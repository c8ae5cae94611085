"""Several dispatchers on one port: a rolling restart under load fails nobody."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream
from roma.tools.load.client import RestClient
from roma.tools.load.generator import LoadRun
from roma.workload.arrivals import Profile, RateStep, poisson
from tests.support.retrying_client import RetryingClient

STANDIN = Path(__file__).parents[2] / "support" / "standin.py"
CONFIG = """
models: {{m: {{sla: {{response_time: 2}}, cpu: {{max: 8, initial: 8}}}}}}
workers:
  - backend: static
    cores: 8
    executables: [{{url: "http://127.0.0.1:{backend}", model: m}}]
gateway: {{port: {port}, admin_port: {admin}}}
"""


class Town:
    """A model server, and dispatchers on one port that come and go."""

    def __init__(self, directory):
        self.port, self.backend, *self.admins = free_ports(5)
        self.file = directory / "roma.yaml"
        self.file.write_text(
            CONFIG.format(port=self.port, backend=self.backend, admin=self.admins[0])
        )
        self.url = f"http://127.0.0.1:{self.port}"
        env = {**os.environ, "PORT": str(self.backend), "SLEEP": "0.02"}
        self.model_server = subprocess.Popen([sys.executable, str(STANDIN)], env=env)
        self.programs = {}

    def start(self, admin):
        command = [sys.executable, "-m", "roma", "dispatcher", str(self.file)]
        command += ["--shared", "--admin-port", str(admin)]
        self.programs[admin] = subprocess.Popen(command)

    async def ready(self, admin):
        async with asyncio.timeout(30):
            while True:
                try:
                    report = await asyncio.to_thread(self.report, admin)
                    if all(e["state"] in ("idle", "busy") for e in report["executors"]):
                        return
                except OSError:
                    pass
                await asyncio.sleep(0.1)

    def report(self, admin):
        url = f"http://127.0.0.1:{admin}/control/v1/report"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)

    def arrivals(self, admin):
        return self.report(admin)["models"][0]["arrivals"]

    async def stop(self, admin):
        program = self.programs.pop(admin)
        program.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(program.wait, 30) == 0

    def close(self):
        for program in (*self.programs.values(), self.model_server):
            program.kill()
            program.wait()


@pytest.fixture
def town(tmp_path):
    town = Town(tmp_path)
    yield town
    town.close()


async def test_dispatchers_take_turns_on_one_port_and_no_request_fails(town):
    first, _, third = town.admins
    town.start(first)
    await town.ready(first)
    async with RestClient(town.url) as client:
        patient = RetryingClient(client)
        rolling, totals = asyncio.create_task(roll(town)), []
        while not rolling.done():
            totals.append(await load(patient, seed=len(totals)))
        served = await rolling
        totals.append(await load(patient, seed=len(totals)))
    served[third] = town.arrivals(third)
    for total in totals:
        assert (total.lost, total.failed, total.rejected, total.invalid) == (0, 0, 0, 0), total
        assert total.answered == total.sent
    assert patient.again <= 8, patient.again  # connections that ended as they were used
    assert all(served.values()), served  # each had its time


async def load(client, *, seed):
    """Send requests for two seconds, and return what became of them."""
    arrivals = poisson(Profile((RateStep(60, 2),)), seed=seed)
    return (await LoadRun([Stream("m", arrivals, [b'{"instances": [1]}'])], client).run()).total


async def roll(town):
    """Replace one dispatcher by the next, twice; return how much each had had to do."""
    first, second, third = town.admins
    served = {}
    for old, new in ((first, second), (second, third)):
        town.start(new)
        await town.ready(new)
        await asyncio.sleep(1)
        async with asyncio.timeout(30):
            while not (count := await asyncio.to_thread(town.arrivals, old)):
                await asyncio.sleep(0.1)
        served[old] = count
        await town.stop(old)
    return served
