"""TensorFlow Serving's gRPC API: tensorflow-serving-api's stubs against the real server."""

from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from roma.serving.errors import ListenError
from roma.serving.server import ModelServer, ServerSettings

NAN, INF = float("nan"), float("inf")
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


class Stubs:
    """tensorflow-serving-api's stubs on one channel, and its messages."""

    def __init__(self, channel, server):
        from tensorflow_serving.apis import (
            classification_pb2,
            get_model_metadata_pb2,
            get_model_status_pb2,
            inference_pb2,
            model_service_pb2_grpc,
            predict_pb2,
            prediction_service_pb2_grpc,
            regression_pb2,
        )

        self.server, self.channel = server, channel
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.PredictRequest = predict_pb2.PredictRequest
        self.Classification = classification_pb2.ClassificationRequest
        self.Regression = regression_pb2.RegressionRequest
        self.Multi = inference_pb2.MultiInferenceRequest
        self.Metadata = get_model_metadata_pb2.GetModelMetadataRequest
        self.SignatureDefMap = get_model_metadata_pb2.SignatureDefMap
        self.Status = get_model_status_pb2.GetModelStatusRequest

    def request(self, model="", inputs=None, outputs=(), **spec):
        import tensorflow as tf

        request = self.PredictRequest(output_filter=outputs)
        fill(request.model_spec, model, **spec)
        for name, value in (inputs or {}).items():
            proto = value if hasattr(value, "tensor_shape") else tf.make_tensor_proto(value)
            request.inputs[name].CopyFrom(proto)
        return request

    async def predict(self, *args, **options):
        import tensorflow as tf

        response = await self.prediction.Predict(self.request(*args, **options))
        return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def fill(spec, model, signature="", version=None, label=None):
    spec.name, spec.signature_name = model, signature
    if version is not None:
        spec.version.value = version
    if label is not None:
        spec.version_label = label


@pytest.fixture
def stubs(serving):
    @asynccontextmanager
    async def start(*names, **options):
        async with (
            serving(*names, grpc_port=0, **options) as client,
            grpc.aio.insecure_channel(client.server.grpc_address) as channel,
        ):
            yield Stubs(channel, client.server)

    return start


@asynccontextmanager
async def refused(code, text):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        yield
    assert (error.value.code().name, error.value.details()) == (code, text)


def bits(array):
    return array.tolist() if array.dtype == object else array.tobytes()


async def test_predict_equals_direct_execution(stubs, saved_models):
    import tensorflow as tf

    direct = tf.saved_model.load(str(saved_models / "linear/1")).signatures["serving_default"]
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    expected = direct(x=tf.constant(rows))["y"].numpy()
    async with stubs("linear") as server:
        answer = await server.predict("linear", {"x": rows})
        assert answer["y"].dtype == np.float32
        assert bits(answer["y"]) == bits(expected)
        # Values in the field of their type instead of bytes: what Go and Java clients send.
        typed = tensor("float32", rows.shape, float_val=rows.ravel().tolist())
        assert bits((await server.predict("linear", {"x": typed}))["y"]) == bits(expected)
        # Answers are in the field of their type, which clients read without make_ndarray.
        response = await server.prediction.Predict(server.request("linear", {"x": rows}))
        assert list(response.outputs["y"].float_val) == expected.ravel().tolist()


VALUES = {
    "float16": [1.5, NAN, -INF, 6e-8],
    "bfloat16": [1.5, NAN, INF, -3e38],
    "float32": [1.5, NAN, INF, -INF, -0.0, 1e-45],
    "float64": [0.1, NAN, INF, -0.0, 5e-324],
    "bool": [True, False],
    "int8": [-128, 127],
    "int16": [-(2**15), 2**15 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "uint8": [0, 255],
    "uint16": [0, 2**16 - 1],
    "uint32": [0, 2**32 - 1],
    "uint64": [0, 2**64 - 1],
    "string": [b"", b"\xff\x00\x00", "é".encode()],
}


async def test_every_type_and_rank_comes_back_bit_by_bit(stubs):
    import tensorflow as tf

    async with stubs("same") as server:
        for name, values in VALUES.items():
            dtype = tf.as_dtype(name)
            flat = np.array(values, dtype=object if name == "string" else dtype.as_numpy_dtype)
            for array in (flat, flat[None, :, None], flat[:0], flat[0]):
                sent = tf.make_tensor_proto(array, dtype=dtype, shape=np.shape(array))
                got = (await server.predict("same", {"x": sent}, signature=name))["y"]
                assert got.shape == np.shape(array), name
                assert bits(got) == bits(np.asarray(array, dtype=flat.dtype)), name


async def test_the_answer_names_model_signature_and_version(stubs):
    async with stubs("half", "two", labels={"half": {"stable": 1}}) as server:
        for spec, version, offset in (
            ({}, 3, 3.0),
            ({"version": 1}, 1, 1.0),
            ({"label": "stable"}, 1, 1.0),
        ):
            request = server.request("half", {"x": np.zeros(1, np.float32)}, **spec)
            response = await server.prediction.Predict(request)
            assert response.outputs["y"].float_val == [offset]
            echoed = response.model_spec
            assert (echoed.name, echoed.version.value) == ("half", version)
            assert echoed.signature_name == "serving_default"
        total = await server.predict("two", {"x": np.float32([1, 2])}, signature="total")
        assert total["total"].shape == ()
        assert total["total"] == 3


async def test_an_output_filter_chooses_what_is_answered(stubs):
    async with stubs("two") as server:
        inputs = {"a": np.ones((1, 2), np.float32), "n": np.array([3])}
        assert (await server.predict("two", inputs)).keys() == {"sum", "twice"}
        answer = await server.predict("two", inputs, outputs=["twice"])
        assert {name: array.tolist() for name, array in answer.items()} == {"twice": [6]}
        known = "Outputs expected to be in the set {sum,twice}."
        text = f"output tensor alias not found in signature: no {known}"
        async with refused("INVALID_ARGUMENT", text):
            await server.predict("two", inputs, outputs=["no"])
        async with refused("INVALID_ARGUMENT", "duplicate output tensor alias: sum"):
            await server.predict("two", inputs, outputs=["sum", "sum"])


async def test_a_signature_without_inputs(stubs):
    async with stubs("count") as server:
        assert (await server.predict("count"))["y"].tolist() == [1, 2, 3]


def tensor(dtype, shape, **values):
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    proto = tensor_pb2.TensorProto(dtype=tf.as_dtype(dtype).as_datatype_enum, **values)
    proto.tensor_shape.SetInParent()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


async def test_refusals_have_tensorflow_servings_code_and_text(stubs):
    x = np.zeros(1, np.float32)
    size = "input size does not match signature: "
    unknown = "Unrecognized servable version label: no"
    table = [
        (("",), {}, "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (("no",), {}, "NOT_FOUND", "Servable not found for request: Latest(no)"),
        (("half",), {"version": 9}, "NOT_FOUND", "Servable not found for request: Specific(half, 9)"),
        (("half",), {"label": "no"}, "INVALID_ARGUMENT", unknown),
        (("half",), {"signature": "no"}, "FAILED_PRECONDITION",
         'Serving signature key "no" not found.'),
        (("half",), {}, "INVALID_ARGUMENT",
         f"{size}0!=1 len({{}}) != len({{x}}). Sent extra: {{}}. Missing but required: {{x}}."),
        (("half", {"x": x, "z": x}), {}, "INVALID_ARGUMENT",
         f"{size}2!=1 len({{x,z}}) != len({{x}}). Sent extra: {{z}}. Missing but required: {{}}."),
        (("half", {"z": x}), {}, "INVALID_ARGUMENT",
         "input tensor alias not found in signature: z. Inputs expected to be in the set {x}."),
        (("half", {"x": np.zeros(1, np.int64)}), {}, "INVALID_ARGUMENT",
         'Input "x" is DT_INT64, expected DT_FLOAT'),
        (("half", {"x": tensor("float32", [3], tensor_content=b"12345")}), {}, "INVALID_ARGUMENT",
         "tensor parsing error: x"),
        (("half", {"x": tensor("float32", [-1], float_val=[1])}), {}, "INVALID_ARGUMENT",
         "tensor parsing error: x: its shape is [-1]"),
        # 80 bytes that would become 8 TB.
        (("half", {"x": tensor("float32", [2 * 10**12], float_val=[1])}), {}, "INVALID_ARGUMENT",
         "tensor parsing error: x: shape [2000000000000] takes more than 67108864 bytes, "
         "but few values were sent"),
        (("two", {"x": tensor("float32", [0, 2**62, 4])}), {"signature": "total"},
         "INVALID_ARGUMENT", "tensor parsing error: x: shape [0,4611686018427387904,4] takes more "
         "than 67108864 bytes, but few values were sent"),
        # Strings too: each missing one is a copy of the last.
        (("same", {"x": tensor("string", [3 * 10**6])}), {"signature": "string"},
         "INVALID_ARGUMENT", "tensor parsing error: x: shape [3000000] takes more "
         "than 67108864 bytes, but few values were sent"),
        (("same", {"x": tensor("string", [70], string_val=[b"a" * 2**20])}),
         {"signature": "string"}, "INVALID_ARGUMENT", "tensor parsing error: x: shape [70] takes more "
         "than 67108864 bytes, but few values were sent"),
        (("same", {"x": tensor("float16", [1], half_val=[70000])}), {"signature": "float16"},
         "INVALID_ARGUMENT", "tensor parsing error: x"),
        (("same", {"x": tensor("float16", [1], half_val=[-1])}), {"signature": "float16"},
         "INVALID_ARGUMENT", "tensor parsing error: x"),
        (("log", {"x": tensor("float32", [2, 2], float_val=[1] * 5)}), {}, "INVALID_ARGUMENT",
         "tensor parsing error: x"),
    ]  # fmt: skip
    async with stubs("half", "two", "log", "same") as server:
        for args, options, code, text in table:
            async with refused(code, text):
                await server.predict(*args, **options)
        async with refused("INVALID_ARGUMENT", "Missing ModelSpec"):
            await server.prediction.Predict(server.PredictRequest())
        # TensorFlow's own refusal has its code, and its words up to a limit.
        with pytest.raises(grpc.aio.AioRpcError, match="Incompatible shapes") as error:
            await server.predict("two", {"a": np.ones((3, 2), np.float32), "n": np.array([1, 2])})
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # A header carries the text, so that it has an end, whatever it is made of.
        for name in ("n" * 5000, "\U0001f600" * 1000):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await server.predict(name)
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
            end = "...TRUNCATED"
            assert len(error.value.details().removesuffix(end).encode()) in range(1021, 1025)
            assert error.value.details().endswith(end)


async def test_bytes_that_are_no_message_are_refused(stubs):
    async with stubs("half") as server:
        call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        text = "The request is no tensorflow.serving.PredictRequest message"
        async with refused("INVALID_ARGUMENT", text):
            await call(b"\xff\xff\xff")
        other = server.channel.unary_unary("/tensorflow.serving.PredictionService/Other")
        async with refused("UNIMPLEMENTED", "Method not found!"):
            await other(b"")


async def test_missing_values_repeat_the_last_one(stubs):
    async with stubs("log") as server:
        few = tensor("float32", [3], float_val=[1])
        assert (await server.predict("log", {"x": few}))["y"].tolist() == [0, 0, 0]


def add_examples(request, *values, context=None):
    listed = request.input.example_list
    if context is not None:
        listed = request.input.example_list_with_context
        listed.context.features.feature["shared"].float_list.value.append(context)
    for value in values:
        listed.examples.add().features.feature["x"].float_list.value.append(value)
    return request


async def test_classify_and_regress(stubs):
    async with stubs("examples", "half") as server:
        request = server.Classification()
        fill(request.model_spec, "examples")
        response = await server.prediction.Classify(add_examples(request, 0.5, 0.25, context=0.25))
        classes = [
            [(one.label, one.score) for one in row.classes]
            for row in response.result.classifications
        ]
        assert classes == [[("low", 0.25), ("high", 0.75)], [("low", 0.5), ("high", 0.5)]]
        echoed = response.model_spec
        assert (echoed.signature_name, echoed.version.value) == ("serving_default", 1)

        request = server.Regression()
        fill(request.model_spec, "examples", signature="half")
        response = await server.prediction.Regress(add_examples(request, 3.0, 5.0))
        assert [one.value for one in response.result.regressions] == [1.5, 2.5]
        assert response.model_spec.signature_name == "half"

        # Each example is computed with a copy of the context.
        large = add_examples(server.Classification(), *[0.5] * 300, context=0.25)
        fill(large.model_spec, "examples")
        features = large.input.example_list_with_context.context.features.feature
        features["text"].bytes_list.value.append(b"a" * 2**20)
        with pytest.raises(grpc.aio.AioRpcError, match=r"for 300 examples: .* at most 268435456"):
            await server.prediction.Classify(large)
        empty = server.Classification()
        fill(empty.model_spec, "examples")
        async with refused("INVALID_ARGUMENT", "Input is empty."):
            await server.prediction.Classify(empty)
        async with refused("INVALID_ARGUMENT", "Expected one output Tensor."):
            fill(request.model_spec, "examples")
            await server.prediction.Regress(request)
        async with refused("INVALID_ARGUMENT", "No signature was found with the name: no"):
            fill(request.model_spec, "examples", signature="no")
            await server.prediction.Regress(request)


def tasks(server, *wanted, values=(0.5,), model="examples"):
    request = add_examples(server.Multi(), *values)
    for signature, method in wanted:
        task = request.tasks.add(method_name=method)
        fill(task.model_spec, model, signature=signature)
    return request


async def test_multi_inference_equals_direct_execution(stubs, saved_models):
    import tensorflow as tf

    values = np.random.default_rng(5).random(7, np.float32).tolist()
    both = (("", CLASSIFY), ("half", REGRESS))
    direct = tf.saved_model.load(str(saved_models / "examples/1")).signatures
    async with stubs("examples") as server:
        request = tasks(server, *both, values=values)
        examples = [one.SerializeToString() for one in request.input.example_list.examples]
        classes = direct["serving_default"](inputs=tf.constant(examples))
        halves = direct["half"](inputs=tf.constant(examples))["outputs"].numpy()
        first, second = (await server.prediction.MultiInference(request)).results
    answered = first.classification_result.classifications
    scores = np.array([[one.score for one in row.classes] for row in answered], np.float32)
    assert bits(scores) == bits(classes["scores"].numpy())
    labels = [[one.label.encode() for one in row.classes] for row in answered]
    assert labels == classes["classes"].numpy().tolist()
    regressed = [one.value for one in second.regression_result.regressions]
    assert regressed == halves.ravel().tolist()
    for spec, signature in ((first.model_spec, "serving_default"), (second.model_spec, "half")):
        assert (spec.name, spec.signature_name, spec.version.value) == ("examples", signature, 1)


async def test_multi_inference_names_what_is_wrong(stubs):
    async with stubs("examples") as server:
        for request, code, text in (
            (tasks(server, ("", CLASSIFY), ("", CLASSIFY)), "INVALID_ARGUMENT",
             "Duplicate evaluation of signature: serving_default"),
            (tasks(server, ("no", CLASSIFY)), "INVALID_ARGUMENT",
             "Requested signature not found in model graph: no"),
            (tasks(server, ("", "other")), "UNIMPLEMENTED",
             "Unsupported signature method_name: other"),
            (tasks(server, ("", CLASSIFY), model="no"), "NOT_FOUND",
             "Servable not found for request: Latest(no)"),
        ):  # fmt: skip
            async with refused(code, text):
                await server.prediction.MultiInference(request)


async def test_multi_inference_without_tasks(stubs):
    nameless = refused("INVALID_ARGUMENT", "ModelSpec has no name specified.")
    async with stubs("examples") as server, nameless:
        await server.prediction.MultiInference(server.Multi())


async def test_metadata_has_the_models_own_signatures(stubs, saved_models):
    from tensorflow.python.tools import saved_model_utils

    graph = saved_model_utils.get_meta_graph_def(str(saved_models / "two/1"), "serve")
    async with stubs("two") as server:
        request = server.Metadata(metadata_field=["signature_def"])
        fill(request.model_spec, "two")
        response = await server.prediction.GetModelMetadata(request)
        assert (response.model_spec.name, response.model_spec.version.value) == ("two", 1)
        signatures = server.SignatureDefMap()
        assert response.metadata["signature_def"].Unpack(signatures)
        assert signatures.signature_def.keys() == graph.signature_def.keys()
        default = graph.signature_def["serving_default"]
        assert signatures.signature_def["serving_default"].inputs == default.inputs
        for fields, text in (
            ([], "GetModelMetadataRequest must specify at least one metadata_field"),
            (["no"], "Metadata field no is not supported"),
        ):
            request = server.Metadata(metadata_field=fields)
            fill(request.model_spec, "two")
            async with refused("INVALID_ARGUMENT", text):
                await server.prediction.GetModelMetadata(request)


async def test_status(stubs):
    async with stubs("half", "broken", labels={"half": {"stable": 1}}) as server:

        async def status(name, **spec):
            request = server.Status()
            fill(request.model_spec, name, **spec)
            response = await server.models.GetModelStatus(request)
            return [
                (one.version, one.State.Name(one.state), one.status.error_code)
                for one in response.model_version_status
            ]

        assert await status("half") == [(3, "AVAILABLE", 0), (1, "AVAILABLE", 0)]
        assert await status("half", version=1) == [(1, "AVAILABLE", 0)]
        assert await status("half", label="stable") == [(1, "AVAILABLE", 0)]
        ((version, state, code),) = await status("broken")
        assert (version, state) == (1, "END")
        assert code
        async with refused("NOT_FOUND", "Could not find any versions of model no"):
            await status("no")
        async with refused("NOT_FOUND", "Could not find version 9 of model half"):
            await status("half", version=9)
        async with refused("INVALID_ARGUMENT", "Missing ModelSpec"):
            await server.models.GetModelStatus(server.Status())


async def test_large_compressed_and_oversize_messages(stubs):
    large = np.arange(1_500_000, dtype=np.float32)  # 6 MB, more than gRPC's own limit
    async with stubs("half", max_body_bytes=8_000_000) as server:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        address = server.server.grpc_address
        for compression in (None, grpc.Compression.Gzip):
            async with grpc.aio.insecure_channel(
                address, options=options, compression=compression
            ) as channel:
                one = Stubs(channel, server.server)
                answer = (await one.predict("half", {"x": large}))["y"]
                np.testing.assert_array_equal(answer, large * np.float32(0.5) + 3)
                # Compressed it is 10 kB: its length is what it becomes.
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await one.predict("half", {"x": np.zeros(2_000_001, np.float32)})
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "8000000" in error.value.details()
        assert (await server.predict("half", {"x": large[:1]}))["y"].tolist() == [3]


async def test_a_taken_port_is_one_clear_line(stubs, saved_models):
    async with stubs("half") as server:
        port = int(server.server.grpc_address.rpartition(":")[2])
        paths = {"half": saved_models / "half"}
        second = ModelServer(ServerSettings(paths, port=0, grpc_port=port))
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            await second.start()
