"""`roma up` with containers on a real engine, under load, while parts of it die."""

import asyncio
import signal
from pathlib import Path

import pytest

from roma.config.placement import executables
from supervisor.broker.broker import safe_shares
from tests.support.containers import DockerUp, balanced, two_models
from tests.support.engine import docker
from tests.support.up import alive, kill

BODIES = {model: [b'{"instances": [1]}'] for model in "ab"}


@pytest.fixture
def file(tmp_path, worker_image):
    return two_models(tmp_path, "up", worker_image)


async def gives_back(up):
    """Wait until idle cores are given back.

    Where a busy machine made requests late, the law keeps what that taught it for over a minute.
    """
    await up.until(lambda: up.quota("a") < 0.15, limit=240)


async def test_quotas_follow_the_load_and_no_container_restarts(file):
    with DockerUp(file) as up:
        await up.ready()
        started = {m: up.inspect(m, ".State.StartedAt") for m in "ab"}
        load = asyncio.create_task(up.load({"a": 30, "b": 1}, BODIES, 8, sla=1.0))
        # 30 req/s at 10 core-ms need 0.3 cores and their noise; b needs its minimum.
        await up.until(lambda: up.reports["a"]["completed_cpu"] > 120)
        busy, idle = up.quota("a"), up.quota("b")
        assert busy > 0.25 > idle
        assert balanced(await load).failed == 0
        # Idle again: given back, in the kernel too.
        await gives_back(up)
        assert {m: up.inspect(m, ".State.StartedAt") for m in "ab"} == started
        assert {m: up.inspect(m, ".RestartCount") for m in "ab"} == {"a": "0", "b": "0"}
        assert up.executable("a")["changes"] > 3
    assert docker("ps", "-aq", "--filter", f"label=roma.managed={up.config.name}") == ""


async def test_a_container_killed_under_load_comes_back_under_its_quota(file):
    with DockerUp(file) as up:
        await up.ready()
        load = asyncio.create_task(up.load({"a": 20, "b": 20}, BODIES, 8, sla=1.0))
        await up.until(lambda: up.reports["a"]["completed_cpu"] > 40)
        kill(int(up.inspect("a", ".State.Pid")))
        total = balanced(await load)
        assert total.failed <= 2  # in flight: 1.4 cores at most
        await up.until(lambda: up.get(up.url, "/readyz")[0] == 200)
        assert int(up.inspect("a", ".RestartCount")) == 1
        await up.until(lambda: (up.quota("a") or 9) <= 1.4)
        assert balanced(await up.load({"a": 20}, BODIES, 2, sla=1.0)).failed == 0


async def test_a_container_that_eats_its_memory_costs_nobody_else(file):
    text = file.read_text().replace("a:\n", "a:\n    memory: 64MiB\n", 1)
    file.write_text(text)
    with DockerUp(file) as up:
        await up.ready()
        load = asyncio.create_task(up.load({"b": 20}, BODIES, 6, sla=1.0))
        eaten = balanced(await up.load({"a": 1}, {"a": [b"eat"]}, 1, sla=1.0))
        assert eaten.answered == 0
        # On few cores the request expires before its memory is eaten.
        await up.until(lambda: int(up.inspect("a", ".RestartCount")) >= 1)
        await up.until(lambda: up.get(up.url, "/readyz")[0] == 200)
        assert balanced(await load).failed == 0
        assert balanced(await up.load({"a": 10}, BODIES, 2, sla=1.0)).failed == 0


async def test_a_paused_container_holds_up_its_own_requests_only(file):
    with DockerUp(file) as up:
        await up.ready()
        load = asyncio.create_task(up.load({"a": 10, "b": 20}, BODIES, 8, sla=1.0))
        await up.until(lambda: up.reports["a"]["completed_cpu"] > 20)
        docker("pause", up.container("a"))
        try:
            await asyncio.sleep(2)
        finally:
            docker("unpause", up.container("a"))
        report = await load
        balanced(report)
        (b,) = [m for m in report.models if m.model == "b"]
        assert b.failed == 0
        assert balanced(await up.load({"a": 10}, BODIES, 2, sla=1.0)).failed == 0


async def test_a_dead_broker_is_replaced_and_nobody_notices(file):
    with DockerUp(file) as up:
        await up.ready()
        (pid,) = up.children(" broker ")
        load = asyncio.create_task(up.load({"a": 30}, BODIES, 8, sla=1.0))
        await up.until(lambda: up.reports["a"]["completed_cpu"] > 40)
        kill(pid)
        await up.until(lambda: not alive(pid))
        await up.until(lambda: up.children(" broker ") not in ([], [pid]))
        changes = up.executable("a")["changes"]
        assert balanced(await load).failed == 0
        await up.until(lambda: up.executable("a")["changes"] > changes)  # control goes on
        await gives_back(up)


async def test_a_hung_supervisor_means_safe_shares_within_five_seconds(file):
    with DockerUp(file) as up:
        await up.ready()
        await up.until(lambda: up.quota("a") == up.quota("b") == 0.1)
        safe = safe_shares(executables(up.config), up.config.workers[0].allocatable)
        (pid,) = up.children(" supervisor ")
        kill(pid, signal.SIGSTOP)
        try:
            await up.until(lambda: up.quota("a") == up.quota("b") == safe["a@local"], limit=5)
            assert balanced(await up.load({"a": 30}, BODIES, 2, sla=1.0)).failed == 0
        finally:
            kill(pid, signal.SIGCONT)
        await up.until(lambda: up.quota("b") == 0.1)  # believed again


async def test_containers_outlive_a_killed_launcher_and_the_next_one_takes_them_over(file):
    with DockerUp(file) as up:
        await up.ready()
        ids = {m: up.inspect(m, ".Id") for m in "ab"}
        kill(up.process.pid)
        up.process.wait()
    with DockerUp(file) as again:
        await again.ready()
        assert {m: again.inspect(m, ".Id") for m in "ab"} == ids
    assert docker("ps", "-aq", "--filter", f"label=roma.managed={up.config.name}") == ""


def test_an_image_that_is_nowhere_is_one_clear_line(file):
    file.write_text(file.read_text().replace("image: ", "image: nowhere.invalid/"))
    with DockerUp(file) as up:
        assert up.process.wait(60) == 2
    said = up.log.read_text().splitlines()[-1]
    assert "workers.local: broker" in said
    assert "nowhere.invalid" in said
    assert "Traceback" not in up.log.read_text()
    assert not Path(f"/run/roma/{up.config.name}").exists()


def test_an_engine_that_is_nowhere_is_one_clear_line(file):
    file.write_text(file.read_text().replace("docker:\n", "docker:\n    host: unix:///no/engine\n"))
    with DockerUp(file) as up:
        assert up.process.wait(60) == 2
    said = up.log.read_text().splitlines()[-1]
    assert said.startswith("no broker after 20 s: ")
    assert "engine unix:///no/engine: GET /version: no such file or directory" in said
