"""`roma models add | remove | scale` where models are containers: one comes, one goes, none restarts."""

import asyncio

import pytest

from tests.support.containers import DockerUp, balanced, two_models
from tests.support.engine import docker
from tests.support.up import kill, several_workers

BODY = [b'{"instances": [1]}']


@pytest.fixture
def file(tmp_path, worker_image):
    return two_models(tmp_path, "models", worker_image)


async def test_containers_come_and_go_with_their_models(file, tmp_path):
    with DockerUp(file) as up:
        await up.ready()
        started = up.inspect("b", ".State.StartedAt")
        load = asyncio.create_task(up.load({"b": 20}, {"b": BODY}, 20, sla=1.0))
        said = ["--path", tmp_path / "model", "--response-time", "10", "--max", "1"]
        assert "c is served" in await up.models("add", "c", *said)
        answered = balanced(await up.load({"c": 20}, {"c": BODY}, 3, sla=10.0))
        assert answered.answered > 0 == answered.failed
        assert 503 not in answered.statuses  # it was served, though a busy machine may be too slow
        # Under control: it had all it may have, and needs a fraction of it.
        await up.until(lambda: up.quota("c") < 0.9)
        assert "a is gone" in await up.models("remove", "a")
        await up.until(lambda: sorted(up.state["executables"]) == ["b@local", "c@local"])
        await up.until(lambda: docker("ps", "-aq", "--filter", f"name={up.container('a')}") == "")
        assert balanced(await load).failed == 0
        assert up.inspect("b", ".State.StartedAt") == started
        assert up.quota("b") is not None
    assert docker("ps", "-aq", "--filter", f"label=roma.managed={up.config.name}") == ""


async def test_replicas_are_containers_that_come_and_go_without_a_lost_request(file):
    several_workers(file, replicas=1)
    with DockerUp(file) as up:
        await up.ready()
        name = f"{up.config.name}-other-a"
        started = {model: up.inspect(model, ".State.StartedAt") for model in "a"}
        async with up.under_load({"a": 20}, {"a": BODY}):
            assert "a is served by 2" in await up.models("scale", "a", "2")
            assert docker("ps", "-q", "--filter", f"name={name}") != ""
            assert "a is served by 1" in await up.models("scale", "a", "1")
            await up.until(lambda: docker("ps", "-aq", "--filter", f"name={name}") == "")
        assert {model: up.inspect(model, ".State.StartedAt") for model in "a"} == started


async def test_what_the_file_no_longer_asks_for_goes_at_the_next_start(file):
    with DockerUp(file) as up:
        await up.ready()
        started = up.inspect("b", ".State.StartedAt")
        kill(up.process.pid)
        await asyncio.to_thread(up.process.wait)
        assert docker("ps", "-q", "--filter", f"name={up.container('a')}") != ""
        await up.models("remove", "a", "--wait", "0")
    with DockerUp(file) as again:
        await again.ready()
        assert docker("ps", "-aq", "--filter", f"name={up.container('a')}") == ""
        assert again.inspect("b", ".State.StartedAt") == started
