"""`roma models add | remove | scale` on a deployment that runs: the others notice nothing."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml

from roma.config import schema
from roma.deploy.replicas import scaler
from roma.domain.replicas import StartReplica, StopReplica
from roma.tools.demo import inputs
from tests.support.up import Up, kill, several_workers, write_config


@pytest.fixture
def file(tmp_path, demo_models):
    return write_config(
        tmp_path, {"digits": demo_models["digits"]}, name=f"models-{os.getpid()}", response_time=2.0
    )


def scratch(up):
    """Return the directory of the files that the programs of a deployment read."""
    (pid,) = up.children(" dispatcher ")
    argv = (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    return Path(argv[argv.index("dispatcher") + 1]).parent


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
        said = ["--path", demo_models["digits"], "--response-time", "10", "--max", "1.4"]
        assert "twin is served" in await up.models("add", "twin", *said)
        twin = await up.load({"twin": 20}, {"twin": bodies}, 2, sla=10.0)
        assert twin.total.answered == twin.total.sent, (twin.total.reasons, up.tail())
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


async def test_replicas_start_stop_and_move_without_a_lost_request(file, demo_models):
    bodies = [body for body, _ in inputs.digits_held_out()]
    several_workers(file, replicas=1)
    over = asyncio.Event()

    async def load(up):
        """Ask until it is over, however long a busy machine takes to start replicas."""
        found = []
        while not over.is_set():
            report = await up.load({"digits": 20}, {"digits": bodies}, 3, sla=2.0)
            found.append(report.total)
        return found

    with Up(file) as up:
        await up.ready()
        one = set(up.children("-m roma serve-model"))
        asking = asyncio.create_task(load(up))
        assert "digits is served by 2" in await up.models("scale", "digits", "2")
        await up.until(lambda: served(up, "digits@other") > 10)
        # As an autoscaler would: the first goes, so that the model has moved.
        deployed = scaler(file, schema.load(file))
        await deployed.carry_out([StopReplica("digits", "local")])
        await up.until(lambda: not one & set(up.children("-m roma serve-model")))
        await deployed.carry_out([StartReplica("digits", "local")])
        await up.until(lambda: len(up.children("-m roma serve-model")) == 2)
        assert "digits is served by 1" in await up.models("scale", "digits", "1")
        await up.until(lambda: len(up.children("-m roma serve-model")) == 1)
        over.set()
        for total in await asking:
            assert (total.failed, total.lost, total.rejected) == (0, 0, 0)


def served(up, executable):
    """Return how many requests an executable has answered, 0 if the dispatcher does not know it."""
    text = up.get(up.admin, "/metrics")[1].decode()
    line = f'roma_executable_executions_total{{executable="{executable}"}} '
    return sum(float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line))


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


async def test_why_a_model_cannot_be_served_is_told_wherever_somebody_asks(
    file, demo_models, tmp_path
):
    wrong = tmp_path / "wrong"
    (wrong / "1").mkdir(parents=True)
    (wrong / "1" / "saved_model.pb").write_bytes(b"this is no model")
    with Up(file) as up:
        await up.ready()
        said = ["--path", str(wrong), "--response-time", "2"]
        # It says so itself before it ends, and the launcher afterwards.
        with pytest.raises(AssertionError, match=r"twin cannot be served: twin@local(:| ended)"):
            await up.models("add", "twin", *said)
        ended = "ready: 1 of 2 models; unavailable: twin@local ended (1): "
        await up.until(lambda: ended in up.log.read_text())
        log = up.log.read_text()
        assert "ready: 1 model\n" in log
        assert "absl::InitializeLog" not in log
        assert "ClientConnectorError" not in log
        assert "twin:" in file.read_text()
        # While it is tried again it may look like one that loads.
        await up.until(lambda: version(up)["state"] == "END")
        why = version(up)["status"]["error_message"]
        assert str(wrong) in why
        await up.until(lambda: row(up)["why"] == f"unavailable: {why}")
        assert row(up)["state"] == "down"
        assert why in await told(up, "status")
        metrics = up.get(up.admin, "/metrics")[1].decode()
        assert 'roma_model_ready{model="twin"} 0.0' in metrics
        assert 'roma_model_ready{model="digits"} 1.0' in metrics
        assert 'roma_executable_fault_info{executable="twin@local",reason="twin@local ' in metrics
        assert up.get(up.url, "/readyz")[0] == 200
        # Put right, it is served without a restart of anything else.
        shutil.rmtree(wrong)
        shutil.copytree(demo_models["digits"], wrong)
        await up.until(lambda: up.get(up.url, "/v1/models/twin")[0] == 200)
        await up.until(lambda: row(up)["state"] == "idle")
        await up.until(lambda: "ready: 2 models" in up.tail())
        assert "twin is gone" in await up.models("remove", "twin")


def version(up):
    """Return the state of twin as TensorFlow Serving's API has it."""
    _, body = up.get(up.url, "/v1/models/twin")
    (found,) = json.loads(body)["model_version_status"]
    return found


def row(up):
    """Return the row of twin on the page."""
    status, body = up.get(up.admin, "/control/v1/dashboard")
    models = json.loads(body)["models"] if status == 200 else []
    return next((m for m in models if m["model"] == "twin"), {"why": "", "state": ""})


async def told(up, command):
    """Return what a command prints of the deployment, without line breaks."""
    argv = [sys.executable, "-m", "roma", command, "--config", str(up.file)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().replace("\n", "")


async def test_what_a_cleaner_of_tmp_deletes_is_written_again_and_any_name_comes(file, demo_models):
    with Up(file) as up:
        await up.ready()
        # As YAML 1.1 reads it, a text; as we do, a number.
        said = ["--path", demo_models["digits"], "--response-time", "10"]
        assert "1e5 is served" in await up.models("add", "1e5", *said)
        directory = scratch(up)
        shutil.rmtree(directory)
        await up.until((directory / "faults.json").exists)
        (pid,) = up.children(" dispatcher ")
        kill(pid)
        await up.until(lambda: up.children(" dispatcher ") not in ([], [pid]))
        await up.ready()


async def test_what_takes_a_restart_is_said_and_changes_nothing(file):
    with Up(file) as up:
        await up.ready()
        right = file.read_text()
        file.write_text("models: {")
        await up.until(lambda: "nothing is changed" in up.tail())
        file.write_text(right.replace("cores: 2", "cores: 3"))
        await up.until(lambda: "workers.0.cores changed: takes a restart" in up.tail())
        # Nor does it change a program that is started again meanwhile.
        (pid,) = up.children(" supervisor ")
        kill(pid)
        await up.until(lambda: up.children(" supervisor ") not in ([], [pid]))
        await up.until(lambda: up.state.get("ticks", 0) >= 1)
        assert up.state["capacity"] == pytest.approx(1.4)
        file.unlink()
        await up.until(lambda: "nothing is changed: " + str(file) in up.tail())
        file.write_text(right)
        up.process.send_signal(signal.SIGHUP)
        await up.until(lambda: f"SIGHUP: reading {file}" in up.tail())
        assert up.get(up.url, "/readyz")[0] == 200
