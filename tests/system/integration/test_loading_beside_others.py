"""What loads beside others goes last on the CPU: weights of the real kernel."""

import asyncio
import os
from types import SimpleNamespace

import pytest
from aiohttp import web

from roma.config import schema
from roma.config.placement import on_worker
from roma.deploy import cpu_weight
from roma.deploy.model_servers import cgroups
from supervisor.cgroups import find_hierarchy
from tests.support.served import served


@pytest.fixture
def group():
    hierarchy = find_hierarchy()
    path = f"roma-test-{os.getpid()}/worker/loader"
    hierarchy.prepare(path)
    group = hierarchy.group(path, 0.05)
    group.create()
    yield group
    group.remove()


@pytest.fixture
async def server():
    """A model server's status: `state` is what it says."""
    server = SimpleNamespace(state="LOADING", asked=0)

    async def status(_):
        server.asked += 1
        return web.json_response({"model_version_status": [{"state": server.state}]})

    async with served(web.get("/v1/models/m", status)) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


def weight(group):
    """What the kernel weighs a group by, whichever version."""
    found = [group.directories[0] / name for name in ("cpu.shares", "cpu.weight")]
    return int(next(file.read_text() for file in found if file.exists()))


async def asked(server, times):
    async with asyncio.timeout(10):
        while server.asked < times:
            await asyncio.sleep(0.01)


async def test_the_weight_is_the_least_until_the_model_is_available(group, server, monkeypatch):
    monkeypatch.setattr(cpu_weight, "LOOK", 0.01)
    usual = weight(group)
    executable = SimpleNamespace(name="m@w", url=server.url, spec=SimpleNamespace(models=("m",)))
    task = asyncio.create_task(cpu_weight.last_until_ready(executable, group))
    await asked(server, 3)
    assert weight(group) < usual / 50
    assert not task.done()
    server.state = "AVAILABLE"
    await asyncio.wait_for(task, 10)
    assert weight(group) == usual


async def test_a_group_that_is_removed_is_waited_for_no_longer(group, server, monkeypatch):
    monkeypatch.setattr(cpu_weight, "LOOK", 0.01)
    executable = SimpleNamespace(name="m@w", url=server.url, spec=SimpleNamespace(models=("m",)))
    task = asyncio.create_task(cpu_weight.last_until_ready(executable, group))
    await asked(server, 1)
    group.remove()
    await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(("waiting", "cores"), [(False, 1.5), (True, 0.25)])
async def test_it_begins_with_its_least_cores(tmp_path, waiting, cores):
    (tmp_path / "m" / "1").mkdir(parents=True)
    loaded = schema.parse(
        f"name: loading-{os.getpid()}\n"
        f"models: {{m: {{path: {tmp_path / 'm'}, sla: {{response_time: 1}}, "
        "cpu: {min: 0.25, max: 2, initial: 1.5}}}\n"
        "workers: [{cores: 2}]\n"
    )
    local = [e for w in loaded.workers for e in on_worker(loaded, w)]
    async with cgroups(loaded, find_hierarchy(), local, waiting=waiting) as groups:
        assert [g.read().cores for g in groups.values()] == [cores]
