"""`roma models add | remove` where models are containers: one comes, one goes, none restarts."""

import asyncio
import os

from tests.support.containers import DockerUp, balanced
from tests.support.engine import docker
from tests.support.up import write_config

BODY = [b'{"instances": [1]}']


async def test_containers_come_and_go_with_their_models(tmp_path, worker_image):
    (tmp_path / "model").mkdir()
    file = write_config(
        tmp_path,
        dict.fromkeys("ab", tmp_path / "model"),
        name=f"models-{os.getpid()}",
        response_time=1.0,
        worker={
            "backend": "docker",
            "docker": {"server": "roma", "image": worker_image, "run_dir": str(tmp_path)},
        },
    )
    with DockerUp(file) as up:
        await up.ready()
        started = up.inspect("b", ".State.StartedAt")
        load = asyncio.create_task(up.load({"b": 20}, {"b": BODY}, 20, sla=1.0))
        said = ["--path", tmp_path / "model", "--response-time", "1", "--max", "1"]
        assert "c is served" in await up.models("add", "c", *said)
        answered = balanced(await up.load({"c": 20}, {"c": BODY}, 3, sla=1.0))
        assert answered.answered == answered.sent
        # Under control: it had all it may have, and needs a fraction of it.
        await up.until(lambda: up.quota("c") < 0.9)
        assert "a is gone" in await up.models("remove", "a")
        await up.until(lambda: sorted(up.state["executables"]) == ["b@local", "c@local"])
        names = docker("ps", "-a", "--filter", f"label=roma.managed={up.config.name}")
        assert up.container("a") not in names
        assert balanced(await load).failed == 0
        assert up.inspect("b", ".State.StartedAt") == started
        assert up.quota("b") is not None
    assert docker("ps", "-aq", "--filter", f"label=roma.managed={up.config.name}") == ""
