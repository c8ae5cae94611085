"""Real PyTorch models, exported and scripted, over the socket as by hand; on a GPU where one is."""

import copy
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from threadpoolctl import threadpool_info

from roma.device import predictability, registry
from roma.device.profile import measure
from roma.device.program import pages
from roma.device.registry import RuntimeKind
from roma.device.runtimes.torch import TorchRuntime, save_sample
from roma.domain.actions import BATCHES, ActionStatus, Infer, Load, Unload
from roma.domain.errors import ConfigError, LaunchError, RomaError, TensorError
from roma.serving.server import ModelServer, ServerSettings

TORCH = RuntimeKind.TORCH


class Net(torch.nn.Module):
    """Weights that two layers share, a buffer, integers, two outputs."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("table", torch.arange(10, dtype=torch.float64))

    def forward(self, x: torch.Tensor, index: torch.Tensor):
        y = torch.relu(self.second(self.norm(self.first(x))))
        return y, self.table[index]


DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]

SIGNATURE = {
    "inputs": [["x", "float32", [-1, 8]], ["index", "int64", [-1]]],
    "outputs": [["y", "float32", [-1, 8]], ["row", "float64", [-1]]],
}


@pytest.fixture(scope="session")
def net():
    torch.manual_seed(1)
    return Net().eval()


@pytest.fixture(scope="session")
def files(tmp_path_factory, net):
    root = tmp_path_factory.mktemp("torch")
    example = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, example, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, root / "exported.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(net), str(root / "scripted.pt"))
    (root / "scripted.pt.json").write_bytes(orjson.dumps(SIGNATURE))
    return {path.stem: path for path in root.glob("*.pt*") if path.suffix != ".json"}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def runtime(files, device):
    return TorchRuntime(files, device)


def some(batch):
    numbers = np.random.default_rng(batch)
    return {"x": numbers.random((batch, 8), np.float32), "index": numbers.integers(0, 10, batch)}


def executed(runtime, name, inputs):
    outputs = runtime.execute(name, "serving_default", runtime.stage(name, inputs))
    return runtime.fetch(name, "serving_default", outputs)


def by_hand(net, inputs, device):
    there = copy.deepcopy(net).to(device)
    with torch.inference_mode():
        y, row = there(*(torch.from_numpy(array).to(device) for array in inputs.values()))
    return [y.cpu().numpy(), row.cpu().numpy()]


def test_what_a_model_takes_is_read_from_it(runtime):
    for name, outputs in (("exported", ["output_0", "output_1"]), ("scripted", ["y", "row"])):
        model = runtime.models[name]
        signature = model.signatures["serving_default"]
        assert [(s.name, s.dtype, s.shape) for s in signature.inputs] == [
            ("x", "float32", (-1, 8)),
            ("index", "int64", (-1,)),
        ]
        assert [(s.name, s.dtype) for s in signature.outputs] == list(
            zip(outputs, ["float32", "float64"], strict=True)
        )


def test_shared_weights_are_there_once(runtime):
    # Each tensor has 512 bytes at least: weight, two biases, four of the norm, its count, the table.
    assert {model.weights for model in runtime.models.values()} == {9 * 512}


@pytest.mark.parametrize("name", ["exported", "scripted"])
async def test_outputs_are_those_of_direct_execution(working, runtime, net, device, name):
    offers = await measure(runtime, 10, runs=1)
    assert offers[name].any_batch
    async with working(runtime, pages(runtime), offers=offers) as connect:
        link = await connect()
        assert await link.status(Load, name) is ActionStatus.OK
        for batch in (*BATCHES, 7):
            inputs = some(batch)
            result = await link.did(Infer, name, batch=batch, inputs=inputs)
            assert result.outcome.status is ActionStatus.OK, result.outcome
            for found, expected in zip(
                result.outputs.values(), by_hand(net, inputs, device), strict=True
            ):
                assert found.dtype == expected.dtype
                assert found.tobytes() == expected.tobytes()
        assert await link.status(Unload, name) is ActionStatus.OK
        assert await link.status(Infer, name, inputs=some(1)) is ActionStatus.NOT_LOADED
        assert await link.status(Load, name) is ActionStatus.OK
        assert await link.status(Infer, name, inputs=some(1)) is ActionStatus.OK


@pytest.mark.parametrize("name", ["exported", "scripted"])
def test_a_loaded_model_uses_its_own_copy_of_the_weights(runtime, net, device, name):
    """LOAD and UNLOAD are for real: what is loaded does not see host memory change."""
    inputs = some(4)
    runtime.load(name)
    host = runtime._models[name].host
    before = host.clone()
    host.zero_()
    loaded = executed(runtime, name, inputs)
    for found, expected in zip(loaded.values(), by_hand(net, inputs, device), strict=True):
        assert found.tobytes() == expected.tobytes()
    runtime.unload(name)
    if device == "cpu":  # a kernel of a GPU does not read host memory
        unloaded = executed(runtime, name, inputs)
        assert not any(array.any() for array in unloaded.values())
    host.copy_(before)
    runtime.load(name)
    again = executed(runtime, name, inputs)
    for found, expected in zip(again.values(), loaded.values(), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_steps_of_several_models_at_once_are_those_of_one_alone(runtime, net, device):
    """Each step has its own stream on a GPU: what one hands to the next is there by then."""
    expected = {b: by_hand(net, some(b), device) for b in (1, 4, 16)}
    faults = []

    def go(name):
        for i in range(60):
            batch = (1, 4, 16)[i % 3]
            for found, wanted in zip(
                executed(runtime, name, some(batch)).values(), expected[batch], strict=True
            ):
                if found.tobytes() != wanted.tobytes():
                    faults.append((name, batch, found, wanted))

    for name in ("exported", "scripted"):
        runtime.load(name)
    threads = [threading.Thread(target=go, args=(name,)) for name in ("exported", "scripted") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_thread_that_executes_has_as_many_threads_as_it_was_told(tmp_path, count):
    runtime = TorchRuntime({"m": save_sample(tmp_path / "m.pt2")}, threads=count)
    runtime.load("m")
    found = []

    def execute():
        runtime.execute("m", "serving_default", [torch.zeros(1, 512)])
        found.extend(
            pool["num_threads"]
            for pool in threadpool_info()
            if Path(pool["filepath"]).is_relative_to(Path(torch.__file__).parent)
        )

    thread = threading.Thread(target=execute)
    thread.start()
    thread.join()
    assert set(found) == {count}


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "mps", "meta"])
def test_a_device_that_is_not_there_is_told(files, device):
    with pytest.raises(ConfigError, match=f"device = {device}: must be"):
        TorchRuntime(files, device)


def test_a_script_must_say_what_it_takes(files, tmp_path):
    alone = tmp_path / "alone.pt"
    alone.write_bytes(files["scripted"].read_bytes())
    with pytest.raises(LaunchError, match=r"model m: .*alone.pt.json"):
        TorchRuntime({"m": alone})


def test_what_is_no_model_is_told_by_name(tmp_path):
    file = tmp_path / "m.pt2"
    file.write_bytes(b"no model")
    with pytest.raises(LaunchError, match=r"model m: .*m.pt2: cannot be loaded"):
        TorchRuntime({"m": file})


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([["y", "float32", [-1, 8]]], "outputs = 2: must be 1, as the .json says"),
        (
            [["y", "int64", [-1, 8]], ["row", "float64", [-1]]],
            r"output y = float32 \[1, 8\]: must be int64 \[-1, 8\]",
        ),
        ([["y", "float32", [-1]], ["row", "float64", [-1]]], "output y = float32"),
    ],
)
def test_outputs_that_are_not_what_the_json_says_are_told(tmp_path, files, outputs, words):
    path = tmp_path / "m.pt"
    path.write_bytes(files["scripted"].read_bytes())
    told = {**SIGNATURE, "outputs": outputs}
    path.with_name("m.pt.json").write_bytes(orjson.dumps(told))
    runtime = TorchRuntime({"m": path})
    runtime.load("m")
    inputs = {"x": np.zeros((1, 8), np.float32), "index": np.zeros(1, np.int64)}
    staged = runtime.stage("m", inputs)
    with pytest.raises(RomaError, match=words) as told:
        runtime.fetch("m", "", runtime.execute("m", "", staged))
    assert not isinstance(told.value, TensorError)  # the client's inputs are not at fault


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.zeros((1, 8), np.float32), "index": np.array([99])}, "index 99 is out of bounds"),
        ({"x": np.zeros((65, 8), np.float32), "index": np.zeros(65, np.int64)}, "Guard failed"),
    ],
    ids=["index", "size"],
)
def test_inputs_that_pytorch_refuses_are_the_clients_fault(files, inputs, words):
    runtime = TorchRuntime({"exported": files["exported"]})
    runtime.load("exported")
    with pytest.raises(TensorError, match=words):
        runtime.execute("exported", "", runtime.stage("exported", inputs))


def test_the_sample_model_runs(tmp_path):
    runtime = registry.make(TORCH, registry.save_sample(TORCH, tmp_path), "cpu", 1)
    (row,) = predictability.run(runtime, registry.SAMPLE, batch=4, runs=3)
    assert row.runs == 3


async def test_tensorflow_is_refused_where_pytorch_is(tmp_path):
    """A program with PyTorch in it that embeds the model server, or a device for SavedModels."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    server = ModelServer(ServerSettings({"m": tmp_path / "m"}, port=0))
    with pytest.raises(LaunchError, match="TensorFlow cannot be imported: PyTorch is in this"):
        await server.start()
    with pytest.raises(LaunchError, match="TensorFlow cannot be imported: PyTorch is in this"):
        registry.save_sample(RuntimeKind.TENSORFLOW, tmp_path)
    with pytest.raises(LaunchError, match="TensorFlow cannot be imported: PyTorch is in this"):
        registry.make(RuntimeKind.TENSORFLOW, {"m": tmp_path / "m"}, "cpu", 1)
    assert "tensorflow" not in sys.modules
