"""Two supervisors of one worker, as programs: the second one says whose it is, and ends."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from roma.tools.demo.ports import free_ports
from supervisor.cgroups import find_hierarchy
from tests.support.deployment import below_the_mount

STANDIN = Path(__file__).parents[2] / "support" / "standin.py"
CONFIG = """
name: {name}
models: {{m: {{sla: {{response_time: 2}}}}}}
workers:
  - name: {worker}
    backend: static
    cores: 2
    executables: [{{url: "http://127.0.0.1:{backend}", model: m{cgroup}}}]
gateway: {{port: {port}, admin_port: {admin}}}
control: {{port: {control}}}
"""


class Site:
    """Programs of one deployment; each supervisor has a file, and so a port, of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.port, self.admin, self.backend = free_ports(3)
        self.programs = []

    def file(self, control=0, worker="w", cgroup=""):
        path = self.directory / f"{worker}{control}.yaml"
        path.write_text(
            CONFIG.format(
                name="two",
                worker=worker,
                cgroup=cgroup and f", cgroup: {cgroup}",
                backend=self.backend,
                port=self.port,
                admin=self.admin,
                control=control or self.admin + 1,
            )
        )
        return path

    def start(self, kind, file):
        log = self.directory / f"{kind}{len(self.programs)}.log"
        with log.open("w") as out:
            command = [sys.executable, "-m", "roma", kind, str(file)]
            program = subprocess.Popen(command, stderr=out, stdout=out)
        self.programs.append(program)
        return program, log

    async def ended(self, program):
        return await asyncio.to_thread(program.wait, 120)

    async def ticking(self, control):
        """Wait until the supervisor at this port has ticked."""
        await self.answers(f"http://127.0.0.1:{control}/control/v1/state", "ticks")

    async def answers(self, url, field):
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    if (await asyncio.to_thread(_get, url))[field]:
                        return
                await asyncio.sleep(0.1)

    def close(self):
        for program in self.programs:
            program.kill()
            program.wait()


def _get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    env = {**os.environ, "PORT": str(site.backend)}
    site.programs.append(subprocess.Popen([sys.executable, str(STANDIN)], env=env))
    yield site
    site.close()


@pytest.fixture
def cgroup():
    """A group in the real kernel; CI must be allowed to make one."""
    hierarchy, path = find_hierarchy(), f"roma-two-{os.getpid()}/m"
    hierarchy.prepare(path)
    group = hierarchy.group(path, 0.1)
    group.create()
    yield below_the_mount(group)
    group.remove()


async def test_a_dispatcher_hears_one_of_them(site):
    ports = free_ports(3)
    first, second, third = (site.file(port) for port in ports)
    site.start("dispatcher", first)
    await site.answers(f"http://127.0.0.1:{site.admin}/control/v1/report", "epoch")
    holder, _ = site.start("supervisor", first)
    await site.ticking(ports[0])
    program, log = site.start("supervisor", second)
    assert await site.ended(program) == 1
    last = log.read_text().splitlines()[-1]
    assert last.startswith("supervisor of worker w: ")
    assert f"worker = w: its supervisor is process {holder.pid} of host " in last
    assert holder.poll() is None
    # One that is killed says nothing: the next one of this machine knows that it has ended.
    holder.kill()
    await site.ended(holder)
    _, log = site.start("supervisor", third)
    await site.ticking(ports[2])
    assert "its supervisor is" not in log.read_text()


async def test_a_cgroup_has_one_of_them_whatever_their_workers_are_called(site, cgroup):
    ports = free_ports(3)
    holder, _ = site.start("supervisor", site.file(ports[0], "one", cgroup))
    await site.ticking(ports[0])
    program, log = site.start("supervisor", site.file(ports[1], "other", cgroup))
    assert await site.ended(program) == 1
    last = log.read_text().splitlines()[-1]
    assert last.endswith(f"{cgroup}: process {holder.pid} of this host controls it")
    holder.kill()
    await site.ended(holder)
    site.start("supervisor", site.file(ports[2], "other", cgroup))
    await site.ticking(ports[2])
