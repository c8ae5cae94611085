"""The reader of models' names against protobuf's own parser, on its messages and on any bytes."""

import time

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import example, given
from hypothesis import strategies as st
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tritonclient.grpc import service_pb2 as oip

from dispatcher.live.grpc import wire
from dispatcher.live.grpc.methods import METHODS
from dispatcher.live.grpc.responses import RefusedCall
from dispatcher.live.http.routes import GrpcRoute
from tests.support.protobuf import agrees, truth

SPECIFIED = (
    predict_pb2.PredictRequest,
    classification_pb2.ClassificationRequest,
    regression_pb2.RegressionRequest,
    get_model_metadata_pb2.GetModelMetadataRequest,
    get_model_status_pb2.GetModelStatusRequest,
)
NAMED = (oip.ModelInferRequest, oip.ModelReadyRequest, oip.ModelMetadataRequest)

INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def specs(draw):
    spec = ModelSpec(name=draw(st.text(max_size=20)), signature_name=draw(st.text(max_size=5)))
    match draw(st.integers(0, 2)):
        case 0:
            spec.version.value = draw(INT64)
        case 1:
            spec.version_label = draw(st.text(max_size=5))
    return spec


def tag(number, kind):
    return varint(number << 3 | kind)


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def chunk(number, data):
    return tag(number, 2) + varint(len(data)) + data


def fields(inside):
    """Serialised fields, sound and unsound, in any order, of small numbers."""
    number = st.integers(1, 6)
    return st.lists(
        st.one_of(
            st.builds(chunk, number, inside),
            st.builds(lambda n, v: tag(n, 0) + varint(v), number, st.integers(0, 2**64 - 1)),
            st.builds(lambda n, v: tag(n, 5) + v, number, st.binary(min_size=4, max_size=4)),
            st.builds(lambda n, v: tag(n, 1) + v, number, st.binary(min_size=8, max_size=8)),
            st.builds(lambda n, v: tag(n, 3) + v + tag(n, 4), number, inside),
            st.builds(tag, st.integers(0, 40), st.integers(0, 7)),
            st.binary(max_size=3),
        ),
        max_size=5,
    ).map(b"".join)


NAMES = st.one_of(st.text(max_size=8).map(str.encode), st.binary(max_size=3))
MESSAGES = fields(st.one_of(NAMES, fields(st.one_of(NAMES, fields(NAMES)))))


@given(specs(), st.sampled_from(SPECIFIED))
def test_what_protobuf_writes_is_read(spec, request):
    assert wire.model_spec(request(model_spec=spec).SerializeToString()) == truth(spec)


@given(st.sampled_from(SPECIFIED), st.booleans())
def test_whether_there_is_a_spec_is_read(request, is_given):
    message = request(model_spec=ModelSpec()) if is_given else request()
    assert wire.model_spec(message.SerializeToString()).is_given is is_given


@given(st.lists(specs(), min_size=2, max_size=4))
def test_specs_merge_as_protobuf_merges_them(several):
    data = b"".join(predict_pb2.PredictRequest(model_spec=s).SerializeToString() for s in several)
    parsed = predict_pb2.PredictRequest.FromString(data)
    assert wire.model_spec(data) == truth(parsed.model_spec)


@given(
    st.lists(st.one_of(INT64.map(lambda v: Int64Value(value=v)), st.text(max_size=3)), max_size=5)
)
def test_a_version_and_a_label_clear_each_other(choices):
    data = b"".join(
        ModelSpec(version_label=c).SerializeToString()
        if isinstance(c, str)
        else ModelSpec(version=c).SerializeToString()
        for c in choices
    )
    request = chunk(1, data)
    parsed = predict_pb2.PredictRequest.FromString(request)
    assert wire.model_spec(request) == truth(parsed.model_spec)


@given(st.lists(specs(), max_size=4))
def test_tasks_are_read(several):
    request = inference_pb2.MultiInferenceRequest()
    for spec in several:
        request.tasks.add(method_name="x").model_spec.CopyFrom(spec)
    assert wire.task_specs(request.SerializeToString()) == [truth(s) for s in several]


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from(NAMED))
def test_names_are_read(name, version, kind):
    field = "name" if kind is not oip.ModelInferRequest else "model_name"
    number = "version" if field == "name" else "model_version"
    request = kind(**{field: name, number: version})
    assert wire.name_and_version(request.SerializeToString()) == (name, version)


@given(specs(), st.sampled_from(SPECIFIED), st.sampled_from(["v", "v" * 63]))
def test_a_variants_name_replaces_the_models(spec, kind, variant):
    request = kind(model_spec=spec)
    found = kind.FromString(wire.with_spec_name(request.SerializeToString(), variant))
    request.model_spec.name = variant
    assert found == request


@given(st.lists(specs(), max_size=4), st.binary(max_size=300))
def test_a_variants_name_replaces_that_of_every_task(several, inputs):
    request = inference_pb2.MultiInferenceRequest()
    request.input.example_list.examples.add().features.feature["x"].bytes_list.value.append(inputs)
    for spec in several:
        request.tasks.add(method_name="x").model_spec.CopyFrom(spec)
    written = wire.with_task_names(request.SerializeToString(), "variant")
    for task in request.tasks:
        task.model_spec.name = "variant"
    assert inference_pb2.MultiInferenceRequest.FromString(written) == request


@given(st.text(max_size=200), st.lists(st.binary(max_size=200)))
def test_a_variants_name_replaces_the_name_beside_tensors(name, tensors):
    request = oip.ModelInferRequest(model_name=name, raw_input_contents=tensors)
    found = oip.ModelInferRequest.FromString(wire.with_name(request.SerializeToString(), "variant"))
    request.model_name = "variant"
    assert found == request


# GetModelStatusRequest and ModelReadyRequest have no other fields: what protobuf refuses, it
# refuses for what is read here too, but for the text of signature_name.


@given(MESSAGES)
@example(chunk(1, chunk(2, tag(1, 0) + varint(5)) + chunk(2, b"")))
@example(chunk(1, chunk(2, tag(1, 0) + varint(5)) + chunk(4, b"x") + chunk(2, b"")))
@example(tag(1, 3) + tag(2, 4))
@example(tag(7, 4))
@example(b"\x0b\x00\x0d\x00\x00\x00\x00\x0c")
@example(b"\x0b\x03\x04\x0c")
@example(b"\x0b\x04\x0c")
@example(b"\x80" * 10 + b"\x01")
@example(tag(1, 0) + b"\xff" * 9 + b"\x7f")
@example(b"\x8a\x80\x80\x80\x80\x00\x00")
@example(b"\x8a\x80\x80\x80\x00\x00")
@example(b"\x0a\x82\x80\x80\x80\x00\x0a\x00")
@example(b"\x0a\x82\x80\x80\x80\x80\x00\x0a\x00")
def test_any_bytes_are_read_as_protobuf_reads_them(data):
    assert agrees(data)


@given(MESSAGES)
def test_any_bytes_have_protobufs_name_and_version(data):
    try:
        parsed = oip.ModelReadyRequest.FromString(data)
        expected = parsed.name, parsed.version
    except DecodeError:
        expected = None
    try:
        found = wire.name_and_version(data)
    except wire.Malformed:
        found = None
    assert found == expected


@given(st.sampled_from([m for m in METHODS.values() if hasattr(m, "route")]), st.binary())
def test_any_bytes_give_a_route_or_a_refusal(method, data):
    try:
        route = method.route(data)
    except RefusedCall:
        return
    assert isinstance(route, GrpcRoute)
    assert route.model


def test_a_large_message_is_stepped_over():
    tensor = b"\x08\x01" * (16 * 2**20)  # sixteen million fields, if anybody looked
    data = chunk(2, tensor) + chunk(1, chunk(1, b"m"))
    assert wire.model_spec(data).name == "m"


def test_more_fields_than_anybody_needs_are_refused_before_they_are_read():
    data = chunk(1, chunk(1, b"m")) + tag(9, 0) * 2 * 10**6
    began = time.process_time()
    with pytest.raises(wire.Malformed, match="more than 10000 fields"):
        wire.model_spec(data)
    assert time.process_time() - began < 1  # of a reading of a minute


def test_what_the_gateway_writes_is_protobuf():
    assert oip.ServerLiveResponse.FromString(wire.truth(1, value=True)).live
    assert not oip.ServerReadyResponse.FromString(wire.truth(1, value=False)).ready
    data = wire.text(1, "roma") + wire.text(2, "1.0") + wire.text(3, "ä") + wire.text(3, "b")
    parsed = oip.ServerMetadataResponse.FromString(data)
    assert (parsed.name, parsed.version, list(parsed.extensions)) == ("roma", "1.0", ["ä", "b"])


@pytest.mark.parametrize(
    ("path", "request_", "text"),
    [
        ("/tensorflow.serving.PredictionService/Predict", b"", "Missing ModelSpec"),
        ("/tensorflow.serving.PredictionService/Predict", b"\xff", "cannot be read"),
        ("/tensorflow.serving.PredictionService/MultiInference", b"", "has no name specified"),
        (
            "/tensorflow.serving.PredictionService/MultiInference",
            chunk(1, chunk(1, chunk(1, b"a"))) + chunk(1, chunk(1, chunk(1, b"b"))),
            "one model: a, not b",
        ),
        ("/inference.GRPCInferenceService/ModelInfer", b"", "names no model"),
    ],
)
def test_a_request_without_a_model_is_told_what_it_lacks(path, request_, text):
    with pytest.raises(RefusedCall, match=text):
        METHODS[path].route(request_)
