"""`roma device` as a program: what it refuses, how it begins, how it ends."""

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from roma.cli.device_command import batch_sizes, memory_bytes
from roma.device import program, registry
from roma.device.program import DeviceSettings, check_exposure
from roma.device.registry import RuntimeKind
from roma.device.runtimes.base import RuntimeModel
from roma.device.server import DeviceServerSettings
from roma.domain.actions import BATCHES, PAGE, ActionStatus, Infer, Load
from roma.domain.errors import ConfigError
from tests.protocol.device.conftest import Dispatcher

ROOT = Path(__file__).parents[3]


async def test_a_worker_begins_serves_and_ends_in_order():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roma", "device", "--port", "0"),
        *("--emulate", "resnet18:2", "--name", "here"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        line = (await process.stderr.readline()).decode()
        assert line.startswith("roma device: ready on 127.0.0.1:"), line
        assert line.endswith(": 2 models, 1984 pages\n")
        port = int(line.split(":")[2])
        link = Dispatcher(*await asyncio.open_connection("127.0.0.1", port))
        hello = await link.greet()
        assert hello.worker == "here"
        assert await link.status(Load, "resnet18-0") is ActionStatus.OK
        inputs = {"input": np.zeros(1, np.float32)}
        assert await link.status(Infer, "resnet18-0", inputs=inputs) is ActionStatus.OK
        process.send_signal(signal.SIGTERM)
        assert await link.read() is None
        await link.close()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def _switching():
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_switching")
async def test_a_worker_that_still_measures_can_be_stopped(hand):
    hand.known = lambda name: None
    hand.gate.clear()
    running = asyncio.ensure_future(
        program.run(hand, DeviceSettings(DeviceServerSettings("w", port=0)))
    )
    while not hand.done:
        await asyncio.sleep(0.001)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0)
    hand.gate.set()
    await running
    assert ("close", "") in hand.done


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--emulate resnet50:1 --host 0.0.0.0", "host = 0.0.0.0: must be an address of this"),
        ("--emulate resnet51:1", "model = resnet51: must be one of densenet169"),
        (
            "--emulate resnet50:1 --model m=x",
            "model = m=x: must be absent where the device is emulated",
        ),
        ("--emulate resnet50:1 --memory 2G", "memory = 2G: must be a number with B, KiB"),
        ("--emulate resnet50:1 --memory 1MiB", "memory = 1MiB: must be ≥ 16MiB"),
        ("--emulate resnet50:1 --memory 1GiB --pages 3", "pages, memory: only one"),
        ("--emulate resnet152:1 --pages 2", "models: none can be served"),
        ("--emulate resnet50:1 --batches 1,2", "emulate, batches: an emulated device"),
        (
            "--model m=x --batches 2,4",
            "batches = 2,4: must be different whole numbers from 1 to 64",
        ),
        ("--runtime emulated", "runtime = emulated: must come with --emulate"),
        ("--runtime onnx", "runtime = onnx: must be one of tensorflow, torch, emulated"),
    ],
)
def test_a_wrong_command_line_is_one_line(roma, arguments, words):
    done = roma("device", *arguments.split())
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(words)
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told_before_the_models_are_read(roma, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = roma("device", "--model", f"m={tmp_path}", "--port", str(port))
    (line,) = done.stderr.splitlines()
    assert line == f"127.0.0.1:{port}: cannot be listened on: address already in use"
    assert done.returncode == 2


def test_a_host_that_no_resolver_takes_is_one_line(roma, tmp_path):
    done = roma("device", "--model", f"m={tmp_path}", "--host", "a..b", "--insecure")
    _warning, line = done.stderr.splitlines()
    assert line.startswith("a..b:8700: cannot be listened on: ")
    assert done.returncode == 2


def test_a_worker_that_anybody_may_use_must_be_asked_for():
    check_exposure(DeviceSettings(DeviceServerSettings("w", "::1")))
    check_exposure(DeviceSettings(DeviceServerSettings("w", "0.0.0.0"), insecure=True))
    with pytest.raises(ConfigError, match="without --token-file"):
        check_exposure(DeviceSettings(DeviceServerSettings("w", "worker.example")))


def test_batch_sizes_are_read_in_any_order():
    assert batch_sizes(None) == BATCHES
    assert batch_sizes("32, 1,64 ,3") == (1, 3, 32, 64)


@pytest.mark.parametrize("text", ["", "1,1", "0,1", "1,65", "1,2.5", "1,-2", "1,,2", "1 2", "2"])
def test_batch_sizes_that_make_no_sense(text):
    with pytest.raises(ConfigError, match=r"batches = .*: must be different whole numbers from 1"):
        batch_sizes(text)


def test_memory_is_read_with_its_unit():
    assert [memory_bytes(text) for text in ("3B", "2 KiB", "1.5GiB")] == [3, 2048, 3 * 2**29]


def test_without_a_number_there_are_pages_for_every_model(hand):
    assert program.pages(hand) == 2
    hand.models["m"] = RuntimeModel(PAGE + 1, {})
    assert program.pages(hand) == 3
    hand.memory = 10 * PAGE - 1
    assert program.pages(hand) == 9


def test_models_of_a_folder_have_its_names(tmp_path):
    for name in ("a.pt", "a.pt.json", "b.pt2", "c.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "d").mkdir()
    assert registry.models([], tmp_path, RuntimeKind.TORCH) == {
        "a": tmp_path / "a.pt",
        "b": tmp_path / "b.pt2",
    }
    both = registry.models([f"e={tmp_path}"], tmp_path, RuntimeKind.TENSORFLOW)
    assert both == {"d": tmp_path / "d", "e": tmp_path}


@pytest.mark.parametrize(
    ("named", "folder", "words"),
    [
        (["m"], None, "model = m: must be NAME=PATH"),
        (["m=a", "m=b"], None, "model = m=b: must have another name than m=a"),
        (["m=/nowhere/at/all"], None, "model m: /nowhere/at/all: is not there"),
        ([], None, "models: none is named"),
        ([], Path("/nowhere/at/all"), "models = /nowhere/at/all: cannot be read"),
    ],
)
def test_models_that_are_not_there_are_told(named, folder, words):
    with pytest.raises(ConfigError, match=words):
        registry.models(named, folder, RuntimeKind.TORCH)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (RuntimeKind.TORCH, r"\.pt or \.pt2 \(runtime = torch\)"),
        (RuntimeKind.TENSORFLOW, r"directory of a SavedModel \(runtime = tensorflow\)"),
    ],
)
def test_a_folder_without_models_of_the_runtime_is_told(tmp_path, kind, what):
    (tmp_path / "model.onnx").write_text("")
    with pytest.raises(ConfigError, match=f"^models = {tmp_path}: has no {what}$"):
        registry.models([], tmp_path, kind)


def test_two_files_of_a_folder_are_not_one_model(tmp_path):
    for name in ("m.pt", "m.pt2"):
        (tmp_path / name).write_text("")
    bound = r"m\.pt2: must have another name, without its suffix, than m\.pt$"
    with pytest.raises(ConfigError, match=f"^models = {tmp_path}: {bound}"):
        registry.models([], tmp_path, RuntimeKind.TORCH)


def test_predictability_prints_what_it_measured(roma):
    done = roma(
        *("predictability", "--emulate", "resnet18:1", "--runs", "4", "--threads", "1,2", "--json")
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["model"] == "resnet18-0"
    assert [(row["threads"], row["runs"]) for row in told["rows"]] == [(1, 4), (2, 4)]
    assert all(row["excess"]["p50"] == 0 for row in told["rows"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "0"], "threads = 0: must be numbers from 1 to 64"),
        (["--batch", "3"], "batch = 3: must be one of 1, 2, 4, 8, 16"),
    ],
)
def test_a_wrong_measurement_is_one_line(roma, arguments, words):
    done = roma("predictability", *arguments)
    assert (done.returncode, done.stderr.startswith(words)) == (2, True)
