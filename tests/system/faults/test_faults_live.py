"""Parts of a real deployment die under load; every request still ends, and the part comes back."""

import asyncio
import os
import signal

import pytest
import yaml

from roma.tools.demo import inputs
from tests.support.up import Up, alive, kill, write_config


@pytest.fixture(scope="module")
def bodies():
    return {"digits": [body for body, _ in inputs.digits_held_out()]}


@pytest.fixture
def file(tmp_path, demo_models):
    models = {"digits": demo_models["digits"]}
    return write_config(tmp_path, models, name=f"fault-{os.getpid()}", response_time=2.0)


def balanced(report):
    total = report.total
    assert total.lost == 0
    assert total.sent == total.answered + total.rejected + total.failed + total.invalid
    assert total.invalid == 0
    return total


@pytest.mark.parametrize("by_socket", [False, True], ids=["port", "socket"])
async def test_an_executable_killed_under_load(file, bodies, by_socket):
    if by_socket:
        data = yaml.safe_load(file.read_text())
        data["workers"][0]["sockets"] = str(file.parent / "s")
        file.write_text(yaml.safe_dump(data))
    with Up(file) as up:
        await up.ready()
        (pid,) = up.children("serve-model")
        load = asyncio.create_task(up.load({"digits": 40}, bodies, 6))
        await up.until(lambda: up.reports["digits"]["completed_cpu"] > 40)
        kill(pid)
        # Noticed in less than 2 s: the gateway stops promising anything for the model.
        await up.until(lambda: up.get(up.url, "/readyz")[0] == 503, limit=2)
        total = balanced(await load)
        assert total.statuses.get(503, 0) > 0
        assert total.failed <= 2  # in flight: 1.4 cores at most
        await up.until(lambda: up.get(up.url, "/readyz")[0] == 200)
        (again,) = up.children("serve-model")
        assert again != pid
        assert (file.parent / "s").exists() is by_socket
        assert up.groups["digits"].pids() == [again]  # in its cgroup, under its quota
        after = balanced(await up.load({"digits": 20}, bodies, 2))
        assert after.answered == after.sent


async def test_the_supervisor_killed_under_load(file, bodies):
    with Up(file) as up:
        await up.ready()
        (pid,) = up.children(" supervisor ")
        load = asyncio.create_task(up.load({"digits": 40}, bodies, 5))
        await up.until(lambda: up.reports["digits"]["completed_cpu"] > 40)
        kill(pid)
        await up.until(lambda: not alive(pid))
        standing = up.groups["digits"].read().cores
        assert 0.1 <= standing <= 1.4
        await asyncio.sleep(0.3)  # restarts take longer: the last allocation stands meanwhile
        assert up.groups["digits"].read().cores == standing
        total = balanced(await load)
        assert total.answered == total.sent  # nobody noticed
        await up.until(lambda: up.state.get("ticks", 0) >= 3)
        (again,) = up.children(" supervisor ")
        assert again != pid


async def test_a_hung_supervisor_means_safe_shares_until_it_is_back(file, bodies):
    with Up(file) as up:
        await up.ready()
        (pid,) = up.children(" supervisor ")
        await up.until(lambda: up.groups["digits"].read().cores < 0.3)  # idle
        kill(pid, signal.SIGSTOP)
        try:
            # All it may have: there is nobody to share the worker's 1.4 cores with.
            await up.until(lambda: up.groups["digits"].read().cores == 1.4, limit=20)
            served = balanced(await up.load({"digits": 20}, bodies, 2))
            assert served.answered == served.sent
        finally:
            kill(pid, signal.SIGCONT)
        await up.until(lambda: up.groups["digits"].read().cores < 0.3)  # given back
        assert up.children(" supervisor ") == [pid]


async def test_the_dispatcher_stopped_under_load_drains_and_comes_back(file, bodies):
    with Up(file) as up:
        await up.ready()
        (pid,) = up.children(" dispatcher ")
        load = asyncio.create_task(up.load({"digits": 40}, bodies, 6))
        await up.until(lambda: up.reports["digits"]["completed_cpu"] > 40)
        kill(pid, signal.SIGTERM)
        total = balanced(await load)
        # While it was away connections were refused; none that was accepted was cut.
        assert set(total.statuses) <= {200, 503}
        assert "disconnected" not in total.reasons, total.reasons
        assert "draining" in up.log.read_text()
        await up.until(lambda: up.get(up.url, "/readyz")[0] == 200)
        assert up.children(" dispatcher ") != [pid]
        after = balanced(await up.load({"digits": 20}, bodies, 2))
        assert after.answered == after.sent


async def test_the_launcher_killed_leaves_no_process_and_no_cgroup(file):
    with Up(file) as up:
        await up.ready()
        children, groups = up.children(), up.groups
        assert len(children) == 4
        kill(up.process.pid)
        up.process.wait()
        async with asyncio.timeout(15):
            while any(alive(pid) for pid in children):
                await asyncio.sleep(0.05)
        assert not any(d.exists() for g in groups.values() for d in g.directories)


async def test_ctrl_c_ends_a_deployment_whose_engine_never_answers(tmp_path):
    socket, asked = tmp_path / "engine.sock", asyncio.Event()

    async def silent(reader, writer):
        asked.set()
        await reader.read()
        writer.close()

    (tmp_path / "model").mkdir()
    hung = {"host": f"unix://{socket}", "run_dir": str(tmp_path)}
    file = write_config(
        tmp_path,
        {"m": tmp_path / "model"},
        name=f"fault-{os.getpid()}",
        worker={"backend": "docker", "docker": hung},
    )
    async with await asyncio.start_unix_server(silent, socket):
        with Up(file) as up:
            await asyncio.wait_for(asked.wait(), 60)
            up.process.send_signal(signal.SIGINT)
            await up.until(lambda: up.process.poll() is not None)
            assert up.process.returncode == 0, up.tail()
            assert up.children() == []
