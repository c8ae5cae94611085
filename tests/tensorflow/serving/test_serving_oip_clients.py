"""The Open Inference Protocol against the real server: tritonclient over HTTP and gRPC, and curl."""

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

NAN, INF = float("nan"), float("inf")


class Http:
    """tritonclient's HTTP client; every tensor as binary data, or every one as JSON."""

    def __init__(self, address, *, binary):
        self.client = tritonclient.http.aio.InferenceServerClient(address)
        self.binary = binary

    def tensor(self, name, datatype, array):
        tensor = tritonclient.http.InferInput(name, list(array.shape), datatype)
        return tensor.set_data_from_numpy(array, binary_data=self.binary)

    def output(self, name):
        return tritonclient.http.InferRequestedOutput(name, binary_data=self.binary)


class Grpc:
    """tritonclient's gRPC client, which sends every tensor raw."""

    binary = True

    def __init__(self, address):
        self.client = tritonclient.grpc.aio.InferenceServerClient(address)

    def tensor(self, name, datatype, array):
        tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
        return tensor.set_data_from_numpy(array)

    def output(self, name):
        return tritonclient.grpc.InferRequestedOutput(name)


KINDS = ["http-json", "http-binary", "grpc"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def triton(serving, kind):
    @asynccontextmanager
    async def start(*names, **options):
        async with serving(*names, grpc_port=0, **options) as one:
            if kind == "grpc":
                client = Grpc(one.server.grpc_address)
            else:
                client = Http(one.url.removeprefix("http://"), binary=kind == "http-binary")
            client.server = one.server
            try:
                yield client
            finally:
                await client.client.close()

    return start


@asynccontextmanager
async def refused(client, code, text):
    """Expect a refusal; `code` is gRPC's name or the HTTP status."""
    with pytest.raises(InferenceServerException) as error:
        yield
    assert error.value.message() == text
    grpc_code, status = code
    expected = f"StatusCode.{grpc_code}" if isinstance(client, Grpc) else str(status)
    assert error.value.status() == expected


async def test_answers_equal_direct_execution(triton, saved_models):
    import tensorflow as tf

    direct = tf.saved_model.load(str(saved_models / "linear/1")).signatures["serving_default"]
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    expected = direct(x=tf.constant(rows))["y"].numpy()
    async with triton("linear") as client:
        result = await client.client.infer("linear", [client.tensor("x", "FP32", rows)])
        # JSON has the shortest digits of each number, so that even there every bit is the same.
        assert result.as_numpy("y").tobytes() == expected.tobytes()
        assert result.as_numpy("y").shape == (5, 3)


VALUES = {
    "FP16": ("float16", np.float16([1.5, NAN, -INF, 6e-8])),
    "FP32": ("float32", np.float32([1.5, NAN, INF, -INF, -0.0, 1e-45])),
    "FP64": ("float64", np.float64([0.1, NAN, INF, -0.0, 5e-324])),
    "BOOL": ("bool", np.array([True, False])),
    **{
        f"{sign.upper()}INT{bits}": (
            f"{sign}int{bits}",
            np.array(
                [np.iinfo(f"{sign}int{bits}").min, np.iinfo(f"{sign}int{bits}").max],
                f"{sign}int{bits}",
            ),
        )
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "BYTES": ("string", np.array([b"", b"a\x00", "é".encode()], dtype=object)),
}


async def test_every_type_and_rank_comes_back(triton, kind):
    async with triton("same") as client:
        for datatype, (signature, values) in VALUES.items():
            flat = values if datatype == "BYTES" else values.astype(signature)
            if kind == "http-json" and datatype == "FP16":
                continue  # tritonclient sends it as binary data only
            for array in (flat, flat[None, :, None], flat[:0], flat[:1].reshape(())):
                result = await client.client.infer(
                    "same",
                    [client.tensor("x", datatype, array)],
                    outputs=[client.output("y")],
                    parameters={"signature_name": signature},
                )
                got = result.as_numpy("y")
                assert got.shape == array.shape, datatype
                if datatype == "BYTES":
                    listed = [one.encode() if isinstance(one, str) else one for one in got.ravel()]
                    assert listed == array.ravel().tolist()
                elif client.binary:
                    assert got.tobytes() == array.tobytes(), datatype
                else:
                    np.testing.assert_array_equal(got, array)


async def test_several_inputs_outputs_versions_and_ids(triton):
    async with triton("two", "half", labels={"half": {"stable": 1}}) as client:
        inputs = [
            client.tensor("n", "INT64", np.array([3])),
            client.tensor("a", "FP32", np.float32([[1, 2]])),
        ]
        result = await client.client.infer("two", inputs, request_id="42")
        assert result.as_numpy("sum").tolist() == [[4, 5]]
        assert result.as_numpy("twice").tolist() == [6]
        answer = result.get_response()
        if isinstance(client, Grpc):
            answer = {"id": answer.id, "model_version": answer.model_version}
        assert (answer["id"], answer["model_version"]) == ("42", "1")
        result = await client.client.infer("two", inputs, outputs=[client.output("twice")])
        assert result.as_numpy("sum") is None
        again = [client.output("twice"), client.output("twice")]
        result = await client.client.infer("two", inputs, outputs=again)
        answer = result.get_response()
        outputs = answer.outputs if isinstance(client, Grpc) else answer["outputs"]
        assert len(outputs) == 1, "a short request for one output many times"
        zero = [client.tensor("x", "FP32", np.zeros(1, np.float32))]
        for version, offset in (("", 3.0), ("1", 1.0), ("stable", 1.0)):
            result = await client.client.infer("half", zero, model_version=version)
            assert result.as_numpy("y").tolist() == [offset]


async def test_errors_say_what_is_wrong(triton):
    bad, missing = ("INVALID_ARGUMENT", 400), ("NOT_FOUND", 404)
    async with triton("half", "two") as client:
        x = client.tensor("x", "FP32", np.zeros(1, np.float32))
        wide = client.tensor("x", "FP32", np.zeros((1, 2), np.float32))
        scalar = client.tensor("x", "FP32", np.zeros((), np.float32))
        long = client.tensor("x", "INT64", np.zeros(1, np.int64))
        other = client.tensor("z", "FP32", np.zeros(1, np.float32))
        for model, inputs, options, code, text in (
            ("no", [x], {}, missing, "Servable not found for request: Latest(no)"),
            ("half", [x], {"model_version": "9"}, missing,
             "Servable not found for request: Specific(half, 9)"),
            ("half", [x], {"model_version": "no"}, bad,
             "Unrecognized servable version label: no"),
            ("half", [x], {"parameters": {"signature_name": "no"}}, bad,
             "model half has no signature 'no'"),
            ("half", [wide], {}, bad, 'Input "x" has shape [1,2], expected [-1]'),
            ("half", [scalar], {}, bad, 'Input "x" has shape [], expected [-1]'),
            ("half", [long], {}, bad, 'Input "x" is INT64, expected FP32'),
            ("half", [x, other], {}, bad, "model half has no input 'z'"),
            ("half", [x, x], {}, bad, 'Input "x" was sent twice'),
            ("two", [], {}, bad, "model two: missing input a, n"),
            ("half", [x], {"outputs": [client.output("no")]}, bad,
             "model half has no output 'no'"),
            ("half", [x], {"sequence_id": 3}, ("UNIMPLEMENTED", 501),
             "the request: parameter sequence_id is not supported"),
        ):  # fmt: skip
            async with refused(client, code, text):
                await client.client.infer(model, inputs, **options)


async def test_health_and_metadata(triton):
    async with triton("two", "half", "broken", labels={"half": {"stable": 1}}) as client:
        assert await client.client.is_server_live()
        assert await client.client.is_server_ready()
        for ready, *which in (
            (True, "half"),
            (True, "half", "1"),
            (False, "half", "2"),
            (False, "broken"),
            (False, "no"),
        ):
            assert await client.client.is_model_ready(*which) is ready
        options = {"as_json": True} if isinstance(client, Grpc) else {}
        server = await client.client.get_server_metadata(**options)
        assert (server["name"], server["extensions"]) == ("roma", ["binary_tensor_data"])
        two = await client.client.get_model_metadata("two", **options)
        tensors = {
            side: [
                (one["name"], one["datatype"], [int(n) for n in one["shape"]]) for one in two[side]
            ]
            for side in ("inputs", "outputs")
        }
        assert tensors == {
            "inputs": [("a", "FP32", [-1, 2]), ("n", "INT64", [-1])],
            "outputs": [("sum", "FP32", [-1, 2]), ("twice", "INT64", [-1])],
        }
        assert (two["name"], two["versions"]) == ("two", ["1"])
        assert two["platform"] == "tensorflow_savedmodel"
        half = await client.client.get_model_metadata("half", "1", **options)
        assert half["versions"] == ["1", "3"]
        text = "Servable not found for request: Latest(no)"
        async with refused(client, ("NOT_FOUND", 404), text):
            await client.client.get_model_metadata("no")


async def test_the_blocking_clients(serving):
    def call(module, address):
        with module.InferenceServerClient(address) as client:
            tensor = module.InferInput("x", [1], "FP32")
            tensor.set_data_from_numpy(np.zeros(1, np.float32))
            return client.infer("half", [tensor]).as_numpy("y").tolist()

    async with serving("half", grpc_port=0) as one:
        url = one.url.removeprefix("http://")
        assert await asyncio.to_thread(call, tritonclient.http, url) == [3]
        assert await asyncio.to_thread(call, tritonclient.grpc, one.server.grpc_address) == [3]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_http_requests(serving, algorithm):
    async with serving("half") as one:
        http = Http(one.url.removeprefix("http://"), binary=True)
        x = np.arange(100_000, dtype=np.float32)
        result = await http.client.infer(
            "half", [http.tensor("x", "FP32", x)], request_compression_algorithm=algorithm
        )
        np.testing.assert_array_equal(result.as_numpy("y"), x * np.float32(0.5) + 3)
        await http.client.close()


async def test_oversize_requests(triton):
    async with triton("half", max_body_bytes=100_000) as client:
        large = client.tensor("x", "FP32", np.zeros(100_000, np.float32))
        with pytest.raises(InferenceServerException) as error:
            await client.client.infer("half", [large])
        codes = ("413", "StatusCode.RESOURCE_EXHAUSTED")
        assert error.value.status() in codes
        x = client.tensor("x", "FP32", np.zeros(1, np.float32))
        assert (await client.client.infer("half", [x])).as_numpy("y").tolist() == [3]


async def test_typed_contents_are_answered_with_typed_contents(serving):
    async with (
        serving("two", "same", grpc_port=0) as one,
        grpc.aio.insecure_channel(one.server.grpc_address) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="two")
        request.inputs.add(
            name="a", datatype="FP32", shape=[1, 2], contents={"fp32_contents": [1, 2]}
        )
        request.inputs.add(name="n", datatype="INT64", shape=[1], contents={"int64_contents": [3]})
        response = await stub.ModelInfer(request)
        assert list(response.raw_output_contents) == []
        first, second = response.outputs
        assert (first.name, list(first.shape), first.contents.fp32_contents) == (
            "sum",
            [1, 2],
            [4, 5],
        )
        assert (second.name, second.contents.int64_contents) == ("twice", [6])
        # BF16, which NumPy and so tritonclient's arrays do not know: raw, bit by bit.
        request = service_pb2.ModelInferRequest(
            model_name="same", raw_input_contents=[b"\xc0\x3f\x80\xff"]
        )
        request.parameters["signature_name"].string_param = "bfloat16"
        request.inputs.add(name="x", datatype="BF16", shape=[2])
        response = await stub.ModelInfer(request)
        assert list(response.raw_output_contents) == [b"\xc0\x3f\x80\xff"]


async def curl(*args):
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-w", "\n%{http_code}", *args, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    body, _, status = out.rpartition(b"\n")
    return int(status), json.loads(body)


async def test_curl(serving):
    async with serving("half", "same", "text") as one:
        body = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
        answer = {
            "model_name": "half",
            "model_version": "3",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [3.5, 4.0]}],
        }
        infer = f"{one.url}/v2/models/half/infer"
        assert await curl(infer, "-d", json.dumps(body)) == (200, answer)
        assert await curl(f"{one.url}/v2/models/half/versions/3/infer", "-d", json.dumps(body)) == (
            200,
            answer,
        )
        assert await curl(infer, "-d", "{") == (
            400,
            {"error": "JSON Parse error: Missing a name for object member. at offset: 1"},
        )
        assert await curl(f"{one.url}/v2/health/live") == (200, {"live": True})
        assert await curl(f"{one.url}/v2/health/ready") == (200, {"ready": True})
        assert await curl(f"{one.url}/v2/models/half/ready") == (
            200,
            {"name": "half", "ready": True},
        )
        status, server = await curl(f"{one.url}/v2")
        assert (status, server.keys()) == (200, {"name", "version", "extensions"})
        late = ("-H", "X-Request-Timeout-Ms: none")
        assert (await curl(infer, *late, "-d", json.dumps(body)))[0] == 400
        # Bytes in JSON: as text, or, beyond the protocol, as TensorFlow Serving has them.
        data = ["é", {"b64": "YWJj"}]
        texts = {"inputs": [{"name": "s", "shape": [2], "datatype": "BYTES", "data": data}]}
        status, answer = await curl(f"{one.url}/v2/models/text/infer", "-d", json.dumps(texts))
        assert status == 200
        assert {one["name"]: one["data"] for one in answer["outputs"]}["same"] == ["é", "abc"]
