"""`roma models add | remove` on a deployment that runs: the others notice nothing."""

import asyncio
import os

import pytest
import yaml

from roma.demo import inputs
from tests.support.up import Up, kill, write_config


@pytest.fixture
def file(tmp_path, demo_models):
    return write_config(
        tmp_path, {"digits": demo_models["digits"]}, name=f"models-{os.getpid()}", response_time=2.0
    )


def weight(group):
    """What the kernel weighs a group by, whichever version."""
    found = [group.directories[0] / name for name in ("cpu.shares", "cpu.weight")]
    return next(file.read_text() for file in found if file.exists())


async def test_models_come_and_go_while_the_others_are_served(file, demo_models):
    bodies = [body for body, _ in inputs.digits_held_out()]
    with Up(file) as up:
        await up.ready()
        programs = set(up.children("-m roma "))
        load = asyncio.create_task(up.load({"digits": 20}, {"digits": bodies}, 25, sla=2.0))
        said = ["--path", demo_models["digits"], "--response-time", "2", "--max", "1.4"]
        assert "twin is served" in await up.models("add", "twin", *said)
        twin = await up.load({"twin": 20}, {"twin": bodies}, 2, sla=2.0)
        assert twin.total.answered == twin.total.sent
        await up.until(lambda: (up.state["executables"]["twin@local"]["applied"] or 9) <= 1.4)
        group = up.groups["twin"]
        await up.until(lambda: weight(group) == weight(up.groups["digits"]))
        (pid,) = set(up.children("-m roma ")) - programs
        assert group.pids() == [pid]
        assert "twin is gone" in await up.models("remove", "twin")
        await up.until(lambda: not any(d.exists() for d in group.directories))
        await up.until(lambda: list(up.state["executables"]) == ["digits@local"])
        assert set(up.children("-m roma ")) == programs  # nothing was restarted for it
        total = (await load).total
        assert (total.failed, total.lost, total.rejected) == (0, 0, 0)


async def test_a_model_that_cannot_be_served_is_its_own_trouble(file, demo_models, tmp_path):
    wrong = tmp_path / "digts"
    with Up(file) as up:
        await up.ready()
        said = ["--path", str(wrong), "--response-time", "2"]
        before = file.read_text()
        with pytest.raises(AssertionError, match=r"models\.twin\.path = .*digts: No such file"):
            await up.models("add", "twin", *said)
        assert file.read_text() == before
        # An edit by hand is not validated.
        programs = set(up.children("-m roma "))
        document = yaml.safe_load(before)
        document["models"]["twin"] = {"path": str(wrong), "sla": {"response_time": 2}}
        file.write_text(yaml.safe_dump(document))
        await up.until(lambda: "twin@local cannot run here" in up.tail())
        assert set(up.children("-m roma ")) == programs  # nothing else ended
        assert up.get(up.url, "/v1/models/digits")[0] == 200
        assert up.get(up.url, "/v1/models/twin")[0] == 503


async def test_what_takes_a_restart_is_said_and_changes_nothing(file):
    with Up(file) as up:
        await up.ready()
        right = file.read_text()
        file.write_text("models: {")
        await up.until(lambda: "nothing is changed" in up.tail())
        file.write_text(right.replace("cores: 2", "cores: 3"))
        await up.until(lambda: "workers changed: takes a restart" in up.tail())
        # Nor does it change a program that is started again meanwhile.
        (pid,) = up.children(" supervisor ")
        kill(pid)
        await up.until(lambda: up.children(" supervisor ") not in ([], [pid]))
        await up.until(lambda: up.state.get("ticks", 0) >= 1)
        assert up.state["capacity"] == pytest.approx(1.4)
        assert up.get(up.url, "/readyz")[0] == 200
