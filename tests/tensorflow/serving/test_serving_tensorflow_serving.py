"""Behaviour of TensorFlow Serving beside well-formed requests, on which its own tests rely."""

import asyncio
import shutil
import socket
import stat
import sys
import tempfile
import weakref
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from roma.config.sockets import for_grpc
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import ListenError, ModelDirectoryError, ModelLoadError
from roma.serving.metrics import Meter
from roma.serving.server import ModelServer, ServerSettings
from roma.serving.versions import find
from roma.tools.demo.ports import free_ports
from tests.support.waiting import until
from tests.tensorflow.serving.test_serving_predict_grpc import (
    Stubs,
    fill,
    refused,
    stubs,
    tensor,
)

__all__ = ["stubs"]

METRICS = "/monitoring/prometheus/metrics"
LARGEST = 2**64 - 1


# Shapes


async def test_the_graph_decides_about_shapes(serving):
    async with serving("half", "linear") as client:
        half, linear = "/v1/models/half:predict", "/v1/models/linear:predict"
        square = [[1.0, 2.0], [3.0, 4.0]]
        answer = [[3.5, 4.0], [4.5, 5.0]]
        assert await client.post(half, {"instances": square}) == (200, {"predictions": answer})
        assert await client.post(half, {"inputs": square}) == (200, {"outputs": answer})
        assert await client.post(half, {"inputs": 1.0}) == (200, {"outputs": 3.5})
        status, refusal = await client.post(linear, {"instances": square})
        assert status == 400
        assert "Matrix size-incompatible: In[0]: [2,2], In[1]: [4,3]" in refusal["error"]


async def test_the_graph_decides_about_shapes_over_grpc(stubs):
    square = np.array([[1, 2], [3, 4]], np.float32)
    async with stubs("half", "linear") as server:
        answer = await server.predict("half", {"x": square})
        assert answer["y"].tolist() == [[3.5, 4.0], [4.5, 5.0]]
        with pytest.raises(grpc.aio.AioRpcError, match="Matrix size-incompatible") as error:
            await server.predict("linear", {"x": square})
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="few values were sent"):
            await server.predict("half", {"x": tensor("float32", [2**40], float_val=[1])})


# Versions


async def test_a_number_beyond_every_version_is_no_fault_of_the_server(serving, saved_models):
    odd = saved_models / f"half/{LARGEST}"
    odd.mkdir()  # TensorFlow Serving takes it for no version
    try:
        async with serving("half", grpc_port=0) as client:
            status, answer = await client.get("/v1/models/half")
            assert [v["version"] for v in answer["model_version_status"]] == ["3"]
            text = f"Failed to convert version: {LARGEST} to numeric."
            for path in (f"half/versions/{LARGEST}", f"half/versions/{LARGEST}/metadata"):
                assert await client.get(f"/v1/models/{path}") == (400, {"error": text})
            path = f"/v1/models/half/versions/{LARGEST}:predict"
            assert await client.post(path, {"instances": [1]}) == (400, {"error": text})
            status, answer = await client.get(f"/v2/models/half/versions/{LARGEST}")
            assert (status, "version label" in answer["error"]) == (400, True)
            status, _ = await client.get(f"/v2/models/half/versions/{2**63 - 1}")
            assert status == 404
            async with grpc.aio.insecure_channel(client.server.grpc_address) as channel:
                server = Stubs(channel, client.server)
                # The same bits, as the protocol's int64 has them.
                missing = "Servable not found for request: Specific(half, -1)"
                async with refused("NOT_FOUND", missing):
                    await server.predict("half", {"x": np.zeros(1, np.float32)}, version=-1)
                async with refused("NOT_FOUND", "Could not find version -1 of model half"):
                    request = server.Status()
                    fill(request.model_spec, "half", version=-1)
                    await server.models.GetModelStatus(request)
    finally:
        odd.rmdir()


async def test_a_rest_body_may_be_larger_than_any_message(serving):
    async with serving("half", grpc_port=0, max_body_bytes=2**31) as client:
        assert (await client.post("/v1/models/half:predict", {"instances": [2]}))[0] == 200


# Metrics


async def test_metrics_count_what_became_of_requests(serving):
    async with serving("half", "log", grpc_port=0) as client:
        for body in ({"instances": [1]}, {"instances": [2]}, {"instances": ["a"]}):
            await client.post("/v1/models/half:predict", body)
        await client.post('/v1/models/a"b:predict', {"instances": [1]})  # there is no such model
        data = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
        await client.post("/v2/models/log/infer", data)
        async with grpc.aio.insecure_channel(client.server.grpc_address) as channel:
            await Stubs(channel, client.server).predict("log", {"x": np.ones(1, np.float32)})
        async with client.session.get(client.url + METRICS) as answer:
            assert (answer.status, answer.content_type) == (200, "text/plain")
            text = await answer.text()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    counts = {tuple(s.labels.values()): s.value for s in families[COUNT].samples}
    assert counts == {("half", "INVALID_ARGUMENT"): 1, ("half", "OK"): 2, ("log", "OK"): 2}
    latencies = families[":tensorflow:serving:request_latency"].samples
    found = {tuple(s.labels.values()): s.value for s in latencies if s.name.endswith("_count")}
    assert found == {
        ("half", "predict", "REST"): 2,
        ("log", "ModelInfer", "REST"): 1,
        ("log", "Predict", "GRPC"): 1,
    }
    # As Prometheus wants a histogram: cumulative, and whole at the last bound.
    buckets = [
        s.value for s in latencies if s.labels.get("le") and s.labels["model_name"] == "half"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2


def test_a_sum_of_days_counts_milliseconds():
    meter = Meter()
    for seconds in (86_400.0, 0.001):
        meter.count("m", "predict", "REST", "OK", seconds)
    families = text_string_to_metric_families(meter.text().decode())
    samples = [s for f in families for s in f.samples if s.name.endswith("latency_sum")]
    assert [s.value for s in samples] == [86_400_001_000.0]


COUNT = ":tensorflow:serving:request_count"


# gRPC on a Unix socket


@pytest.fixture
def path():
    """A short path: the kernel takes 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        yield Path(directory, "grpc%41.sock")  # gRPC's own addresses escape bytes so


async def test_grpc_on_a_unix_socket(serving, saved_models, path):
    one = {"x": np.ones(1, np.float32)}
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # and its file stays
    async with serving("half", grpc_socket=path) as client:
        assert client.server.grpc_address is None
        assert f" and grpc+unix://{path}: half/3" in client.server.ready_line()
        assert stat.S_ISSOCK(path.stat().st_mode)
        async with grpc.aio.insecure_channel(for_grpc(path)) as channel:
            assert (await Stubs(channel, client.server).predict("half", one))["y"] == [3.5]
        models = {"half": saved_models / "half"}
        second = ModelServer(ServerSettings(models, port=0, grpc_socket=path))
        with pytest.raises(ListenError, match=f"cannot listen on {path}: Address already in use"):
            await second.start()
        assert await second.stop() is False
        assert path.exists()
    assert not path.exists()


async def test_grpc_on_a_port_and_a_socket(serving, path):
    async with serving("half", grpc_port=0, grpc_socket=path) as client:
        for address in (client.server.grpc_address, for_grpc(path)):
            async with grpc.aio.insecure_channel(address) as channel:
                answer = await Stubs(channel, client.server).predict(
                    "half", {"x": np.ones(1, np.float32)}
                )
                assert answer["y"] == [3.5]


async def test_a_grpc_socket_without_a_place_is_refused(saved_models, tmp_path):
    models = {"half": saved_models / "half"}
    server = ModelServer(ServerSettings(models, port=0, grpc_socket=tmp_path / "no/g.sock"))
    with pytest.raises(ListenError, match=r"no/g\.sock: No such file or directory"):
        await server.start()


# HandleReloadConfigRequest


@asynccontextmanager
async def reloading(stubs, *names, **options):
    from tensorflow_serving.apis import model_management_pb2

    async with stubs(*names, allow_reload=True, **options) as server:

        def configure(*models, **fields):
            request = model_management_pb2.ReloadConfigRequest(**fields)
            request.config.model_config_list.SetInParent()
            for name, base, *more in models:
                config = request.config.model_config_list.config.add(name=name, base_path=str(base))
                for change in more:
                    change(config)
            return server.models.HandleReloadConfigRequest(request)

        server.configure = configure
        yield server


async def versions(server, name):
    request = server.Status()
    fill(request.model_spec, name)
    response = await server.models.GetModelStatus(request)
    return {one.version: one.State.Name(one.state) for one in response.model_version_status}


async def test_a_reload_serves_these_models_and_no_others(stubs, saved_models):
    one = {"x": np.ones(1, np.float32)}
    half, log = ("half", saved_models / "half"), ("log", saved_models / "log")
    async with reloading(stubs, "half", "linear") as server:
        found = server.server._models.find
        kept = found(ServingCall(ServingAction.PREDICT, "half"))
        response = await server.configure(half, log, metric_names=["/any"])
        assert response.status.error_code == 0
        assert [(m.name, m.int64_value_increase) for m in response.metric] == [("/any", 0)]
        # It answers from now on; what was there and stays was not loaded again.
        assert (await server.predict("log", one))["y"] == [0]
        assert found(ServingCall(ServingAction.PREDICT, "half")) == kept
        async with refused("NOT_FOUND", "Servable not found for request: Latest(linear)"):
            await server.predict("linear", {"x": np.ones((1, 4), np.float32)})
        # None at all, and back again.
        await server.configure()
        async with refused("NOT_FOUND", "Could not find any versions of model half"):
            await versions(server, "half")
        await server.configure(half)
        assert (await server.predict("half", one))["y"] == [3.5]


async def test_a_model_that_goes_answers_its_last_call_and_is_freed(stubs, tmp_path):
    async with reloading(stubs, "gate") as server:
        found = server.server._models.find(ServingCall(ServingAction.PREDICT, "gate"))[1]
        model, found = weakref.ref(found), None
        call = asyncio.create_task(server.predict("gate", {"folder": str(tmp_path)}))
        await until((tmp_path / "begun").exists)
        await server.configure()
        assert model() is not None
        (tmp_path / "open").touch()
        assert (await call)["waited"]
        await until(lambda: model() is None)


async def test_the_command_line_says_so(saved_models, path):
    from tensorflow_serving.apis import model_management_pb2

    (port,) = free_ports(1)
    argv = ["serve-model", f"--model=half={saved_models / 'half'}", f"--port={port}"]
    argv += [f"--grpc-socket={path}", "--allow-reload"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "roma", *argv, stderr=asyncio.subprocess.PIPE
    )
    try:
        while b"ready on" not in await process.stderr.readline():
            assert process.returncode is None
        async with grpc.aio.insecure_channel(for_grpc(path)) as channel:
            request = model_management_pb2.ReloadConfigRequest()
            request.config.model_config_list.SetInParent()
            await Stubs(channel, None).models.HandleReloadConfigRequest(request)
    finally:
        process.kill()
        await process.communicate()


async def test_a_reload_takes_over_policies_and_labels(stubs, saved_models):
    base = saved_models / "half"

    def all_(config):
        config.model_version_policy.all.SetInParent()

    def specific(config):
        config.model_version_policy.specific.versions.extend([1, 2, 7])

    def latest(config):
        config.model_version_policy.latest.num_versions = 2

    def labelled(config):
        config.version_labels["stable"] = 1

    async with reloading(stubs, "half") as server:
        for change, expected in (
            (all_, {1, 2, 3}),
            (specific, {1, 2}),
            (latest, {2, 3}),
            (labelled, {1, 3}),
        ):
            await server.configure(("half", base, change))
            assert await versions(server, "half") == dict.fromkeys(expected, "AVAILABLE")
        one = {"x": np.ones(1, np.float32)}
        assert (await server.predict("half", one, label="stable"))["y"] == [1.5]


async def test_a_reload_that_cannot_be_changes_nothing(stubs, saved_models):
    from tensorflow_serving.apis import model_management_pb2

    half = ("half", saved_models / "half")

    def platform(config):
        config.model_platform = "torch"

    def gone(config):
        config.model_version_policy.specific.versions.append(7)

    async with reloading(stubs, "half") as server:
        for models, text in (
            ([half, half], "Illegal to list model half multiple times in config list"),
            ([("half", "here")], "Expected model half to have an absolute path or URI; "
             "got base_path()=here"),
            ([("", "/x")], "ModelConfig: name is empty"),
            ([(*half, platform)], "model half: model_platform = torch: must be tensorflow"),
            ([("none", saved_models / "none")], f"{saved_models / 'none'}: No such file or directory"),
            ([(*half, gone)],
             f"{half[1]}: holds none of the versions that its policy names"),
        ):  # fmt: skip
            async with refused("INVALID_ARGUMENT", text):
                await server.configure(*models)
        text = (
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        )
        async with refused("INVALID_ARGUMENT", text):
            empty = model_management_pb2.ReloadConfigRequest()
            await server.models.HandleReloadConfigRequest(empty)
        assert await versions(server, "half") == {3: "AVAILABLE"}


async def test_a_model_that_a_reload_cannot_load_ends_alone(stubs, saved_models):
    half, broken = ("half", saved_models / "half"), ("broken", saved_models / "broken")
    async with reloading(stubs, "half") as server:
        with pytest.raises(grpc.aio.AioRpcError, match="broken version 1: ") as error:
            await server.configure(half, broken)
        assert error.value.code() is grpc.StatusCode.UNKNOWN
        assert await versions(server, "half") == {3: "AVAILABLE"}
        assert await versions(server, "broken") == {1: "END"}


async def test_a_version_that_cannot_be_loaded_leaves_the_one_before_it(
    stubs, saved_models, tmp_path
):
    base, one = tmp_path / "half", {"x": np.ones(1, np.float32)}
    shutil.copytree(saved_models / "half" / "1", base / "1")
    async with reloading(stubs, "log") as server:
        await server.configure(("half", base))
        shutil.copytree(saved_models / "broken" / "1", base / "2")
        with pytest.raises(grpc.aio.AioRpcError, match="half version 2: "):
            await server.configure(("half", base))
        assert await versions(server, "half") == {2: "END", 1: "AVAILABLE"}
        assert (await server.predict("half", one))["y"] == [1.5]
        # Its successor takes its place as soon as there is one.
        shutil.rmtree(base / "2")
        shutil.copytree(saved_models / "half" / "2", base / "2")
        await server.configure(("half", base))
        assert await versions(server, "half") == {2: "AVAILABLE"}


async def test_a_version_that_moved_and_cannot_be_loaded_leaves_the_one_before_it(
    stubs, saved_models, tmp_path
):
    one = {"x": np.ones(1, np.float32)}
    base = shutil.copytree(saved_models / "half" / "1", tmp_path / "half" / "1").parent
    async with reloading(stubs, "log") as server:
        await server.configure(("half", base))
        with pytest.raises(grpc.aio.AioRpcError, match="half version 1: "):
            await server.configure(("half", saved_models / "broken"))
        assert await versions(server, "half") == {1: "AVAILABLE"}
        assert (await server.predict("half", one))["y"] == [1.5]
        await server.configure(("half", saved_models / "log"))  # another model, version 1 too
        assert (await server.predict("half", one))["y"] == [0]


async def test_of_versions_that_moved_only_one_that_cannot_be_loaded_leaves_its_former_one(
    stubs, saved_models, tmp_path
):
    def all_(config):
        config.model_version_policy.all.SetInParent()

    former, new = tmp_path / "former", tmp_path / "new"
    shutil.copytree(saved_models / "half" / "1", former / "1")
    shutil.copytree(saved_models / "broken" / "1", new / "1")
    shutil.copytree(saved_models / "half" / "2", new / "2")
    async with reloading(stubs, "log") as server:
        await server.configure(("half", former))
        with pytest.raises(grpc.aio.AioRpcError, match="half version 1: "):
            await server.configure(("half", new, all_))
        assert await versions(server, "half") == {1: "AVAILABLE", 2: "AVAILABLE"}
        one = {"x": np.ones(1, np.float32)}
        assert (await server.predict("half", one, version=1))["y"] == [1.5]


async def test_a_label_that_cannot_move_keeps_its_version(stubs, saved_models, tmp_path):
    """Also beside another version, which takes the place of all others."""
    base = tmp_path / "half"
    shutil.copytree(saved_models / "half" / "1", base / "1")

    def stable(version):
        def change(config):
            config.version_labels["stable"] = version

        return change

    def two(config):
        config.model_version_policy.latest.num_versions = 2

    def second(config):
        config.model_version_policy.specific.versions.append(2)

    async with reloading(stubs, "log") as server:
        await server.configure(("half", base, stable(1)))
        shutil.copytree(saved_models / "half" / "2", base / "2")
        shutil.copytree(saved_models / "broken" / "1", base / "3")
        with pytest.raises(grpc.aio.AioRpcError, match="half version 3: "):
            await server.configure(("half", base, two, stable(3)))
        one = {"x": np.ones(1, np.float32)}
        assert (await server.predict("half", one))["y"] == [2.5]
        assert (await server.predict("half", one, label="stable"))["y"] == [1.5]
        # With the label the version goes, too.
        await server.configure(("half", base, second))
        assert await versions(server, "half") == {2: "AVAILABLE"}


def test_a_base_path_with_a_nul_is_a_fault_of_the_path():
    with pytest.raises(ModelDirectoryError, match="embedded null byte"):
        find(Path("/x\0"))


async def test_who_was_not_started_for_it_reloads_nothing(stubs):
    from tensorflow_serving.apis import model_management_pb2

    text = (
        "HandleReloadConfigRequest: the server serves what it was started with, for it was started "
        "without --allow-reload"
    )
    async with stubs("half") as server:
        async with refused("UNIMPLEMENTED", text):
            request = model_management_pb2.ReloadConfigRequest()
            request.config.model_config_list.SetInParent()
            await server.models.HandleReloadConfigRequest(request)
        assert await versions(server, "half") == {3: "AVAILABLE"}


# Warm-up


def record(path, *logs):
    """Write a model's warm-up requests as TensorFlow Serving's documents say."""
    import tensorflow as tf

    file = path / "assets.extra/tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for log in logs:
            writer.write(log if isinstance(log, bytes) else log.SerializeToString())


@pytest.fixture
def logs():
    """Make PredictionLogs."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    class Logs:
        empty = prediction_log_pb2.PredictionLog

        def predict(self, signature="", **inputs):
            log = self.empty()
            request = log.predict_log.request
            fill(request.model_spec, "any", signature=signature)
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            return log

        def examples(self, kind, signature=""):
            log = self.empty()
            request = getattr(log, kind).request
            if kind == "multi_inference_log":
                task = request.tasks.add(method_name="tensorflow/serving/classify")
                fill(task.model_spec, "any", signature=signature)
            else:
                fill(request.model_spec, "any", signature=signature)
            feature = request.input.example_list.examples.add().features.feature["x"]
            feature.float_list.value.append(0.5)
            return log

        def session(self):
            log = self.empty()
            log.session_run_log.SetInParent()
            return log

    return Logs()


@asynccontextmanager
async def copied(saved_models, tmp_path, name, *logs):
    """Yield a server over a copy of a model that has these warm-up requests, once it has loaded."""
    shutil.copytree(saved_models / name, tmp_path / name)
    record(tmp_path / name / "1", *logs)
    server = ModelServer(ServerSettings({name: tmp_path / name}, port=0))
    await server.start()
    try:
        await server.loading
        yield server
    finally:
        assert not await server.stop()


async def test_warm_up_requests_are_computed_before_a_model_answers(saved_models, tmp_path, logs):
    # The graph writes a file for each request.
    (tmp_path / "open").touch()
    request = logs.predict(folder=str(tmp_path))
    async with copied(saved_models, tmp_path, "gate", logs.empty(), request):
        assert (tmp_path / "begun").exists()


async def test_every_kind_of_example_warms_up(saved_models, tmp_path, logs):
    requests = [
        logs.examples("classify_log"),
        logs.examples("regress_log", "half"),
        logs.examples("multi_inference_log"),
    ]
    async with copied(saved_models, tmp_path, "examples", *requests) as server:
        assert server._models.available() == ["examples/1"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda logs: [logs.predict(x=np.ones(1, np.int64))], "record 1: Input .x. is DT_INT64"),
        (lambda logs: [logs.empty(), logs.examples("regress_log")],
         "record 2: Expected one input Tensor|record 2: No regression inputs"),
        (lambda logs: [logs.session()],
         "record 1: Unsupported log_type for warmup: session_run_log"),
        (lambda _: [b"\xff"], r"record 1: it is no tensorflow\.serving\.PredictionLog"),
        (lambda logs: [logs.empty()] * 1001, "record 1001: expected at most 1000 records"),
    ],
)  # fmt: skip
async def test_a_bad_warm_up_record_ends_the_model(saved_models, tmp_path, logs, make, text):
    with pytest.raises(ModelLoadError, match=f"tf_serving_warmup_requests: {text}"):
        async with copied(saved_models, tmp_path, "log", *make(logs)):
            pass


async def test_a_warm_up_file_that_is_damaged_ends_the_model(saved_models, tmp_path, logs):
    shutil.copytree(saved_models / "log", tmp_path / "log")
    record(tmp_path / "log/1", logs.predict(x=np.ones(1, np.float32)))
    file = tmp_path / "log/1/assets.extra/tf_serving_warmup_requests"
    file.write_bytes(file.read_bytes()[:-1])
    server = ModelServer(ServerSettings({"log": tmp_path / "log"}, port=0))
    await server.start()
    with pytest.raises(ModelLoadError, match=r"log version 1: (truncated|corrupted) record"):
        await server.loading
    assert not await server.stop()
