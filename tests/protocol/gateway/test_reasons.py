"""Why model servers cannot run: from the file of a launcher to whoever asks a dispatcher."""

import asyncio

import pytest

from dispatcher.core import Dispatcher
from dispatcher.live import app as dispatcher_app
from dispatcher.live.admin import metrics
from dispatcher.live.unavailable import Reasons
from dispatcher.schedulers.registry import CPU, GPU
from roma.config import schema, start_failures
from roma.domain.errors import ConfigError, LaunchError
from roma.domain.events import ExecutorAdded, ExecutorReady
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla


@pytest.fixture
def core():
    """Return a core with model m on two workers, v and w."""
    core = Dispatcher([ModelSpec("m", Sla(0.5), 1.0)], gpu=GPU["roma"], cpu=CPU["round_robin"])
    for name in ("m@v", "m@w"):
        core.handle(ExecutorAdded(ExecutorSpec(name, Device.CPU, ("m",))), now=0.0)
    return core


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "faults.json"
    start_failures.write({}, file)
    return file


def told(core, reasons):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in metrics.collect_reasons(core, reasons)
        for sample in metric.samples
    }


def test_what_a_launcher_writes_is_told_of_what_is_not_live(core, file):
    watched = start_failures.watched(file)
    reasons = Reasons(core, watched)
    assert told(core, reasons) == {("roma_model_ready", "m"): 0.0}
    start_failures.write({"m@w": "m@w cannot run here: no such file", "gone@w": "old"}, file)
    assert watched.look()
    assert reasons.of("m@w") == "m@w cannot run here: no such file"
    assert (reasons.of("m@v"), reasons.of("gone@w")) == ("", "")
    assert reasons.of_model("m") == ""  # m@v may still load
    assert told(core, reasons) == {
        ("roma_model_ready", "m"): 0.0,
        ("roma_executable_fault_info", "m@w", "m@w cannot run here: no such file"): 1.0,
    }
    reasons.note("m@v", reported={"m": "model m is not available: no such op"})
    assert reasons.of("m@v") == "m@v: model m is not available: no such op"
    assert reasons.of_model("m") == f"{reasons.of('m@v')}; {reasons.of('m@w')}"
    core.handle(ExecutorReady("m@w"), now=0.0)
    assert (reasons.of("m@w"), reasons.of_model("m")) == ("", "")
    assert told(core, reasons)["roma_model_ready", "m"] == 1.0


def test_why_a_server_elsewhere_is_not_reached_is_logged_once(core, caplog):
    reasons = Reasons(core)
    for why in ("refused", "refused", "no route", None, "no route"):
        reasons.note("m@w", unreached=why)
    reasons.note("gone@w", unreached="refused")
    core.handle(ExecutorReady("m@v"), now=0.0)
    reasons.note("m@v", unreached="refused")  # its loss is logged by whoever notices it
    assert caplog.messages == [
        f"executable m@w: {why}" for why in ("refused", "no route", "no route")
    ]
    assert reasons.for_operators("m@w") == "m@w: no route"


@pytest.mark.parametrize("text", ["", "[]", '{"m@w": 1}'])
def test_a_file_that_holds_something_else_is_refused_by_name(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"faults = .*faults\.json: "):
        start_failures.watched(file)


def test_nobody_launches_where_there_is_no_file():
    assert start_failures.watched(None) is None


def test_a_program_leaves_its_reason_in_one_line_of_bounded_length(tmp_path, monkeypatch):
    file = tmp_path / "m@w.fault"
    monkeypatch.delenv(start_failures.FAULT_FILE, raising=False)
    start_failures.leave(LaunchError("nobody asks"))
    assert start_failures.left(file) == ""
    monkeypatch.setenv(start_failures.FAULT_FILE, str(file))
    start_failures.leave(LaunchError("two\n  lines"))
    assert start_failures.left(file) == "two lines"
    start_failures.leave(LaunchError("x" * 10_000))
    assert len(start_failures.left(file)) == start_failures.MOST
    monkeypatch.setenv(start_failures.FAULT_FILE, str(tmp_path / "none" / "f"))
    start_failures.leave(LaunchError("no place"))  # it is said on standard error all the same


async def test_operators_are_told_why_a_server_started_elsewhere_is_not_reached(harness):
    await harness.open(start=False)
    (executor,) = harness.core.executors
    name, reasons = executor.spec.name, harness.service.reasons
    await harness.until(lambda: reasons.for_operators(name))
    assert reasons.for_operators(name).startswith(f"{name}: cannot connect to 127.0.0.1:")
    assert (
        told(harness.core, reasons)["roma_executable_fault_info", name, reasons.for_operators(name)]
        == 1
    )
    # It may come at any moment: clients are told to come again.
    assert (reasons.of(name), reasons.of_model("m")) == ("", "")
    (server,) = harness.backends
    server.available = False
    await server.start()
    loading = f"{name}: model m is not available (LOADING)"
    await harness.until(lambda: reasons.for_operators(name) == loading)
    server.available = True
    await harness.until(lambda: executor.live)
    assert reasons.for_operators(name) == ""


async def test_nothing_follows_the_file_of_a_program_whose_keys_cannot_be_read(file, tmp_path):
    loaded = schema.parse(
        f"""
models: {{m: {{sla: {{response_time: 1}}}}}}
workers:
  - {{name: w, backend: static, cores: 1, executables: [{{url: "http://127.0.0.1:2", model: m}}]}}
gateway: {{keys: {tmp_path}/absent.yaml}}
"""
    )
    with pytest.raises(ConfigError, match=r"gateway\.keys: .*absent\.yaml: cannot be read"):
        async with dispatcher_app.running(loaded, faults_file=file):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
