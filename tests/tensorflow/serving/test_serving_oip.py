"""The Open Inference Protocol's translations, without a server: every datatype there and back."""

import json

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from tritonclient.grpc import service_pb2

from roma.serving import oip_grpc, oip_rest, oip_tensors
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import Code, RequestError
from roma.serving.oip import InferAnswer
from roma.serving.oip_rest import AnswerFormat
from roma.serving.oip_tensors import DATATYPES, Header
from roma.tensors import jsontext

SHAPES = nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
CALL = ServingCall(ServingAction.PREDICT, "m")


@st.composite
def tensors(draw, *, text=False):
    """A header and its array; every bit pattern of the numbers."""
    datatype = draw(st.sampled_from(list(DATATYPES.values())))
    shape = draw(SHAPES)
    head = Header("x", datatype, shape)
    if datatype.name == "BYTES":
        values = st.text(max_size=9).map(str.encode) if text else st.binary(max_size=9)
        listed = draw(st.lists(values, min_size=head.count, max_size=head.count))
        return head, oip_tensors.from_texts(head, listed)
    size = datatype.numpy.itemsize
    if datatype.name == "BOOL":
        return head, draw(nps.arrays(np.bool_, shape))
    return head, draw(nps.arrays(f"<u{size}", shape)).view(datatype.numpy).reshape(shape)


def same(array, expected):
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    if array.dtype == object:
        assert array.tolist() == expected.tolist()
    else:
        assert array.tobytes() == expected.tobytes()


def same_numbers(array, expected):
    """Equal up to the bits of a NaN, which JSON cannot tell."""
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    if array.dtype == object or array.dtype.kind in "biu":
        assert array.tolist() == expected.tolist()
    else:
        wide, other = array.astype(float), expected.astype(float)
        np.testing.assert_array_equal(wide, other)
        np.testing.assert_array_equal(np.signbit(wide[wide == 0]), np.signbit(other[other == 0]))


def request_of(head, **more):
    return {"name": head.name, "datatype": head.datatype.name, "shape": list(head.shape)} | more


@given(tensors(text=True), st.booleans())
def test_json_there_and_back(tensor, nested):
    head, array = tensor
    answer = oip_rest.encode_answer(
        "m", InferAnswer(1, [tensor]), AnswerFormat(None, {}, otherwise=False)
    )
    (output,) = jsontext.parse(answer.body).root["outputs"]
    assert (output["shape"], output["datatype"]) == (list(head.shape), head.datatype.name)
    data = (
        np.array(output["data"], dtype=object).reshape(head.shape).tolist()
        if nested
        else output["data"]
    )
    body = json.dumps({"inputs": [request_of(head, data=data)]}).encode()
    request, _ = oip_rest.decode_request(CALL, body, {})
    ((_, got),) = request.inputs
    same_numbers(got, array)


@given(st.lists(tensors(), max_size=3))
def test_binary_there_and_back(several):
    form = AnswerFormat("7", {}, otherwise=True)
    answer = oip_rest.encode_answer("m", InferAnswer(1, several), form)
    if not several:
        assert "Inference-Header-Content-Length" not in answer.headers
        return
    length = int(answer.headers["Inference-Header-Content-Length"])
    root = orjson.loads(answer.body[:length])
    assert root["id"] == "7"
    # An answer's outputs are written as a request's inputs are.
    head = orjson.dumps({"inputs": root["outputs"]})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    request, _ = oip_rest.decode_request(CALL, head + answer.body[length:], headers)
    for (_, got), (_, expected) in zip(request.inputs, several, strict=True):
        same(got, expected)


@given(st.lists(tensors(), min_size=1, max_size=3), st.booleans())
def test_grpc_there_and_back(several, typed):
    asked, answer = service_pb2.ModelInferRequest(), service_pb2.ModelInferResponse()
    if not typed:
        asked.raw_input_contents.append(b"")
    oip_grpc.encode_answer(InferAnswer(1, several), asked, answer)
    halves = any(head.datatype.name in ("FP16", "BF16") for head, _ in several)
    assert len(answer.raw_output_contents) == (len(several) if halves or not typed else 0)
    message = service_pb2.ModelInferRequest(raw_input_contents=answer.raw_output_contents)
    for output in answer.outputs:
        message.inputs.add().MergeFromString(output.SerializeToString())
    request = oip_grpc.decode_request(message)
    compare = same if answer.raw_output_contents else same_numbers
    for (head, got), (expected_head, expected) in zip(request.inputs, several, strict=True):
        assert head.shape == expected_head.shape
        compare(got, expected)


def one(datatype, shape, data=None, **parameters):
    entry = {"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters}
    return {"inputs": [entry if data is None else entry | {"data": data}]}


BAD = [
    ({}, "inputs = null: expected a list of objects"),
    ({"inputs": [1]}, "inputs = [1]: expected a list of objects"),
    ({"inputs": [{}]}, "an input: name = None: expected 1 to 256 characters"),
    ({"inputs": [{"name": "x" * 257}]}, "expected 1 to 256 characters"),
    ({"inputs": [{"name": "x"}]}, 'Input "x": datatype = None: expected one of BOOL, INT8'),
    (one("FP8", [1], [1]), "Input \"x\": datatype = 'FP8': expected one of BOOL, INT8"),
    (one("FP32", None, [1]), 'Input "x": shape = None: expected at most 63 integers'),
    (one("FP32", [-1], [1]), 'Input "x": shape = [-1]: expected at most 63 integers, none negative'),
    (one("FP32", [1.0], [1]), 'Input "x": shape = [1.0]: expected at most 63 integers'),
    (one("FP32", [1] * 64, [1]), 'Input "x": shape = [1, 1, 1,'),
    (one("FP32", [0, 2**62], []), "expected at most 9223372036854775807 bytes of FP32"),
    (one("FP32", [1]), 'Input "x": expected either data or the parameter binary_data_size'),
    (one("FP32", [1], [1], binary_data_size=4), "expected either data or the parameter binary_data"),
    (one("FP32", [1], binary_data_size=4), "binary_data_size = 4: expected an integer from 0 to 0"),
    (one("FP32", [1], binary_data_size="4"), 'binary_data_size = "4": expected an integer'),
    (one("FP32", [2], [1]), 'Input "x" has 1 values, its shape [2] takes 2'),
    (one("FP32", [10**15], [1]), 'Input "x" has 1 values, its shape [1000000000000000] takes'),
    (one("FP32", [2, 1], [[1, 2]]), 'Input "x" is nested as [1, 2], its shape is [2, 1]'),
    (one("FP32", [2], ["a", "b"]), 'JSON Value: "a" Type: String is not of expected type: float'),
    (one("INT32", [1], [1.5]), "JSON Value: 1.5 Type: Number is not of expected type: int32"),
    (one("INT8", [1], [128]), "JSON Value: 128 Type: Number is not of expected type: int8"),
    (one("UINT16", [1], [65536]), 'Input "x" has a value over 65535'),
    (one("BOOL", [1], [1]), "is not of expected type: bool"),
    (one("BYTES", [1], [1]), "is not of expected type: string"),
    (one("FP32", [1], [1], shared_memory_region="r"),
     'Input "x": parameter shared_memory_region is not supported'),
    (one("FP32", [1], [1]) | {"id": 3}, "id = 3: expected a string"),
    (one("FP32", [1], [1]) | {"outputs": [{}]}, "an output: name = None: expected 1 to 256 characters"),
    (one("FP32", [1], [1]) | {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
     'Output "y": parameter classification is not supported'),
    (one("FP32", [1], [1]) | {"outputs": [{"name": "y", "parameters": {"binary_data": "false"}}]},
     'Output "y": binary_data = "false": expected true or false'),
    (one("FP32", [1], [1]) | {"parameters": {"binary_data_output": 1}},
     "the request: binary_data_output = 1: expected true or false"),
    (one("FP32", [1], [1]) | {"parameters": {"sequence_id": 3}},
     "the request: parameter sequence_id is not supported"),
    (one("FP32", [1], [1]) | {"parameters": {"signature_name": 3}},
     "parameter signature_name = 3: expected a string"),
    (one("FP32", [1], [1]) | {"parameters": []}, "the request: parameters = []: expected an object"),
]  # fmt: skip


@pytest.mark.parametrize(("root", "text"), BAD, ids=[text[:60] for _, text in BAD])
def test_a_bad_body_is_refused(root, text):
    with pytest.raises(RequestError) as refused:
        oip_rest.decode_request(CALL, orjson.dumps(root), {})
    assert text in str(refused.value)
    expected = Code.UNIMPLEMENTED if "not supported" in text else Code.INVALID_ARGUMENT
    assert refused.value.code is expected
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [{"name": %s}]}',
        b'{"inputs": [{"name": "x", "datatype": %s}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": %s}]}',
        b'{"inputs": [], "parameters": {"signature_name": %s}}',
    ],
)
def test_lists_too_deep_for_an_error_text_are_refused(body):
    with pytest.raises(RequestError, match=r"= \[\[\.\.\.: expected"):
        oip_rest.decode_request(CALL, body % (b"[" * 1020 + b"]" * 1020), {})


def test_null_is_as_if_it_were_absent():
    """KServe's own request type writes what it does not have so."""
    root = one("FP32", [1], [1.5]) | {"id": None, "parameters": None, "outputs": None}
    root["inputs"][0]["parameters"] = None
    request, form = oip_rest.decode_request(CALL, orjson.dumps(root), {})
    ((_, array),) = request.inputs
    assert (array.tolist(), request.outputs, form.id) == ([1.5], [], None)
    empty = one("BYTES", [0], binary_data_size=0)
    empty["inputs"][0]["data"] = None
    ((_, array),) = oip_rest.decode_request(CALL, orjson.dumps(empty), {})[0].inputs
    assert array.shape == (0,)


def test_an_id_that_no_answer_can_repeat_is_refused():
    body = b'{"id": "\\ud800", "inputs": []}'
    with pytest.raises(RequestError, match=r"id = .*: expected UTF-8"):
        oip_rest.decode_request(CALL, body, {})


@pytest.mark.parametrize("length", ["0", "-1", "x", "9999", ""])
def test_a_header_length_that_is_none(length):
    with pytest.raises(RequestError, match=r"Inference-Header-Content-Length = .*from 1 to 2, the"):
        oip_rest.decode_request(CALL, b"{}", {"Inference-Header-Content-Length": length})


@pytest.mark.parametrize(
    ("head", "raw", "text"),
    [
        (("FP32", [2]), b"1234567", 'Input "x" has 7 bytes, its shape [2] of FP32 takes 8'),
        (("BYTES", [1]), b"\x01", 'Input "x" ends within element 0'),
        (("BYTES", [1]), b"\x05\0\0\0abc", 'Input "x" ends within element 0'),
        (("BYTES", [3]), b"\x01\0\0\0a", 'Input "x" has 1 values, its shape [3] takes 3'),
        (("BYTES", [10**15]), b"", 'Input "x" has 0 values'),
    ],
)
def test_bad_binary_data(head, raw, text):
    body = orjson.dumps(one(*head, binary_data_size=len(raw)))
    headers = {"Inference-Header-Content-Length": str(len(body))}
    with pytest.raises(RequestError) as refused:
        oip_rest.decode_request(CALL, body + raw, headers)
    assert text in str(refused.value)


def test_binary_data_that_belongs_to_nothing():
    body = orjson.dumps(one("FP32", [1], [1]))
    headers = {"Inference-Header-Content-Length": str(len(body))}
    with pytest.raises(RequestError, match="3 bytes of binary data belong to no input"):
        oip_rest.decode_request(CALL, body + b"abc", headers)


def test_a_boolean_is_any_byte_but_zero():
    head = Header("x", DATATYPES["BOOL"], (3,))
    array = oip_tensors.from_raw(head, memoryview(b"\0\1\xff"))
    assert array.tobytes() == b"\0\1\1"


def test_bytes_that_json_cannot_carry_are_refused():
    head = Header("y", DATATYPES["BYTES"], (1,))
    answer = InferAnswer(1, [(head, oip_tensors.from_texts(head, [b"\xff"]))])
    with pytest.raises(RequestError, match='Output "y" holds bytes that are no UTF-8'):
        oip_rest.encode_answer("m", answer, AnswerFormat(None, {}, otherwise=False))


BAD_CONTENTS = [
    ("FP16", {"fp32_contents": [1]}, 'Input "x" is FP16, which only raw_input_contents carry'),
    ("FP32", {"int_contents": [1]}, 'Input "x" is FP32: expected fp32_contents, got int_contents'),
    ("FP32", {}, 'Input "x" has 0 values, its shape [1] takes 1'),
    ("INT8", {"int_contents": [128]}, 'Input "x" is INT8: expected values from -128 to 127'),
    ("UINT16", {"uint_contents": [2**16]}, 'Input "x" is UINT16: expected values from 0 to 65535'),
]


@pytest.mark.parametrize(("datatype", "contents", "text"), BAD_CONTENTS)
def test_bad_contents(datatype, contents, text):
    message = service_pb2.ModelInferRequest()
    message.inputs.add(name="x", datatype=datatype, shape=[1], contents=contents)
    with pytest.raises(RequestError) as refused:
        oip_grpc.decode_request(message)
    assert str(refused.value) == text


def test_raw_and_typed_contents_exclude_each_other():
    message = service_pb2.ModelInferRequest(raw_input_contents=[b"1234"])
    message.inputs.add(name="x", datatype="FP32", shape=[1], contents={"fp32_contents": [1]})
    with pytest.raises(RequestError, match='Input "x" has contents beside raw_input_contents'):
        oip_grpc.decode_request(message)
    message.raw_input_contents.append(b"1234")
    with pytest.raises(RequestError, match="raw_input_contents has 2 tensors, inputs has 1"):
        oip_grpc.decode_request(message)


@pytest.mark.parametrize(
    ("method", "target", "text", "code"),
    [
        ("GET", "/v2/other", "Not Found", Code.NOT_FOUND),
        ("GET", "/v2/models", "Not Found", Code.NOT_FOUND),
        ("GET", "/v2/models/m/other", "Not Found", Code.NOT_FOUND),
        ("GET", "/v2/models/m/v2/health/ready", "Not Found", Code.NOT_FOUND),
        ("GET", "/v2/models/m/infer", "Malformed request: GET /v2/models/m/infer", 3),
        ("POST", "/v2/models/m", "Malformed request: POST /v2/models/m", 3),
        ("POST", "/v2", "Malformed request: POST /v2", 3),
    ],
)
def test_other_paths_are_refused(method, target, text, code):
    assert oip_rest.owns(target)
    with pytest.raises(RequestError) as refused:
        oip_rest.route(method, target)
    assert (str(refused.value), refused.value.code) == (text, code)
    assert not oip_rest.owns("/v2models")
