"""TensorFlow Serving's JSON rules, as tables; no TensorFlow is imported."""

import json
import re
import subprocess
import sys
import tracemalloc
from collections import Counter

import numpy as np
import orjson
import pytest

from roma.serving.errors import Code, RequestError
from roma.tensors import jsontext, tfjson
from roma.tensors.arrays import ServingSignature, ServingTensorSpec
from roma.tensors.tfjson import Layout

NAN, INF = float("nan"), float("inf")


def signature(**inputs):
    specs = {name: ServingTensorSpec(name, dtype, shape) for name, (dtype, shape) in inputs.items()}
    return ServingSignature("serving_default", specs, {})


ONE = signature(x=("float", (-1, 2)))
VECTOR = signature(x=("float", (-1,)))
SCALAR = signature(x=("float", ()))
DEEP = signature(x=("float", None))
INT = signature(n=("int32", (-1,)))
WIDE = signature(n=("int64", (-1,)))
UNSIGNED = signature(n=("uint64", (-1,)))
SMALL = signature(n=("int8", (-1,)))
FLAGS = signature(b=("bool", (-1,)))
TEXT = signature(s=("string", (-1,)))
TEXTS = signature(s=("string", (-1, -1)))
HALF = signature(h=("half", (-1,)))
TWO = signature(a=("float", (-1, 2)), n=("int64", (-1,)))
NONE = signature()


def decode(body, entry):
    return tfjson.decode_predict(jsontext.parse(body.encode()), entry)


GOOD = [
    ("rows", ONE, '{"instances": [[1, 2.5], [3, 4]]}', {"x": [[1, 2.5], [3, 4]]}),
    ("columns", ONE, '{"inputs": [[1, 2.5]]}', {"x": [[1, 2.5]]}),
    ("single name in a row", ONE, '{"instances": [{"x": [1, 2]}]}', {"x": [[1, 2]]}),
    ("single name in columns", ONE, '{"inputs": {"x": [[1, 2]]}}', {"x": [[1, 2]]}),
    ("one number per row", VECTOR, '{"instances": [1, 2, 3]}', {"x": [1, 2, 3]}),
    ("scalar column", SCALAR, '{"inputs": 7}', {"x": 7}),
    ("no rows in columns", VECTOR, '{"inputs": []}', {"x": []}),
    ("empty rows", DEEP, '{"instances": [[], []]}', {"x": [[], []]}),
    ("half_plus_two's missing 1", signature(x=("float", (-1, 1))), '{"instances": [1, 2]}',
     {"x": [1, 2]}),
    ("any rank", DEEP, '{"inputs": [[[1], [2]]]}', {"x": [[[1], [2]]]}),
    ("literals", VECTOR, '{"instances": [NaN, Infinity, -Infinity]}', {"x": [NAN, INF, -INF]}),
    ("RapidJSON's literals", VECTOR, '{"instances": [Inf, -Inf, -NaN]}', {"x": [INF, -INF, NAN]}),
    ("overflow to inf", VECTOR, '{"instances": [1e300, -1e300]}', {"x": [INF, -INF]}),
    ("text after the root", VECTOR, '{"instances": [1]} and more', {"x": [1]}),
    ("integers", WIDE, '{"instances": [-9223372036854775808, 9223372036854775807]}',
     {"n": [-(2**63), 2**63 - 1]}),
    ("unsigned", UNSIGNED, '{"instances": [18446744073709551615, 0]}', {"n": [2**64 - 1, 0]}),
    ("booleans", FLAGS, '{"instances": [true, false]}', {"b": [True, False]}),
    ("a key named true", VECTOR, '{"true": 1, "instances": [1]}', {"x": [1]}),
    ("text", TEXT, '{"instances": ["a", "é", ""]}', {"s": [b"a", "é".encode(), b""]}),
    ("Inf within text", TEXT, '{"instances": ["Inf \\" NaN"], "x": Inf}', {"s": [b'Inf " NaN']}),
    ("bytes", TEXT, '{"instances": [{"b64": "/wAA"}]}', {"s": [b"\xff\x00\x00"]}),
    ("bytes without padding", TEXT, '{"instances": [{"b64": "YQ"}]}', {"s": [b"a"]}),
    ("one object of bytes", signature(s=("string", ())), '{"inputs": {"b64": "YQ=="}}',
     {"s": b"a"}),
    ("bytes under a name", TEXT, '{"instances": [{"s": {"b64": "YQ=="}}]}', {"s": [b"a"]}),
    ("text and bytes in lists", TEXTS, '{"instances": [["a", {"b64": "Yg=="}]]}',
     {"s": [[b"a", b"b"]]}),
    ("two inputs in rows", TWO, '{"instances": [{"a": [1, 2], "n": 3}, {"n": 4, "a": [5, 6]}]}',
     {"a": [[1, 2], [5, 6]], "n": [3, 4]}),
    ("two inputs in columns", TWO, '{"inputs": {"a": [[1, 2]], "n": [3], "more": 0}}',
     {"a": [[1, 2]], "n": [3]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "body", "expected"), [g[1:] for g in GOOD], ids=[g[0] for g in GOOD]
)
def test_a_good_body_gives_the_arrays_it_says(entry, body, expected):
    arrays, layout = decode(body, entry)
    assert layout is (Layout.ROW if '"instances"' in body else Layout.COLUMNAR)
    assert arrays.keys() == expected.keys()
    types = {"float": np.float32, "int64": np.int64, "uint64": np.uint64, "bool": np.bool_}
    for name, array in arrays.items():
        dtype = types.get(entry.inputs[name].dtype, np.object_)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.array(expected[name], dtype=dtype))


BAD = [
    (ONE, "", "JSON Parse error: The document is empty"),
    (ONE, "  ", "JSON Parse error: The document is empty. at offset: 2"),
    (ONE, "instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
    (ONE, '{"instances": [1, 2}', "JSON Parse error: Missing a comma or ] after an array element."),
    (ONE, '{"instances": [1] "x"}', "JSON Parse error: Missing a comma or } after an object"),
    (ONE, "{1: 2}", "JSON Parse error: Missing a name for object member. at offset: 1"),
    (ONE, '{"é" 2}', "Missing a colon after a name of object member. at offset: 6"),
    (ONE, '{"instances', "JSON Parse error: Missing a closing quotation mark in string."),
    (ONE, '{"x": 1e999}', "JSON Parse error: Number too big to be stored in double."),
    (ONE, "[" * 5000, "JSON Parse error: "),
    (TEXT, '{"instances": ["\\ud800"]}', "The surrogate pair in string is invalid."),
    (ONE, "[1]", "JSON Value: [1] Is not object"),
    (ONE, "{}", "Missing 'inputs' or 'instances' key"),
    (ONE, '{"instances": [1], "inputs": [1]}', "expecting only one of 'inputs' or 'instances'"),
    (ONE, '{"instances": 3}', 'JSON Value: {"instances": 3} Expecting \'instances\' to be an list'),
    (ONE, '{"instances": []}', "No values in 'instances' array"),
    (NONE, '{"instances": [1]}', "Failed to get input map for signature: serving_default"),
    (ONE, '{"instances": [["a", "b"]]}',
     "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: "
     'JSON Value: "a" Type: String is not of expected type: float (input "x")'),
    (ONE, '{"instances": [["1", "2"]]}', 'JSON Value: "1" Type: String is not of expected'),
    (ONE, '{"instances": [[1, true]]}', "JSON Value: true Type: True is not of expected type"),
    (ONE, '{"inputs": [[1, null]]}', "JSON Value: null Type: Null is not of expected type"),
    (ONE, '{"instances": [{"x": [{"b64": "YQ=="}, 1]}]}', "Type: Object is not of expected type"),
    (INT, '{"instances": [1.0]}', "JSON Value: 1.0 Type: Number is not of expected type: int32"),
    (INT, '{"instances": [1, 2147483648]}', "Failed to process element: 1 of 'instances' list."),
    (WIDE, '{"inputs": [9223372036854775808]}', "is not of expected type: int64"),
    (UNSIGNED, '{"inputs": [-1]}', "JSON Value: -1 Type: Number is not of expected type: uint64"),
    (SMALL, '{"inputs": [300]}', "is not of expected type: int8"),
    (FLAGS, '{"inputs": [1]}', "is not of expected type: bool"),
    (TEXT, '{"instances": [1]}', "JSON Value: 1 Type: Number is not of expected type: string"),
    (TEXT, '{"instances": [{"b64": "*"}]}', "Unable to base64 decode"),
    (TEXT, '{"inputs": {"s": [{"b65": ""}]}}', "not formatted correctly for base64 data"),
    (ONE, '{"instances": [[1, 2], [3]]}',
     "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
     "Expecting tensor size: 2 but got: 1"),
    (DEEP, '{"instances": [[[1, 2]], [[1], [2]]]}', "Expecting shape [1,2] but got: [2,1]"),
    (DEEP, '{"inputs": [[1, 2], [3]]}',
     "Encountered list at unexpected size: 1 at level: 1 expected size: 2"),
    (DEEP, '{"inputs": [1, [2]]}', "Encountered list at unexpected level: 1 expected < 1"),
    (DEEP, '{"inputs": [[1], 2]}', "JSON Value: 2 found at incorrect level: 2 in the JSON DOM."),
    (DEEP, f'{{"inputs": {"[" * 500}{"]" * 500}}}', "Encountered more than 63 nested lists"),
    (ONE, '{"instances": [{"y": [1, 2]}]}',
     "Failed to process element: 0 key: y of 'instances' list. Error: INVALID_ARGUMENT: "
     "JSON object: does not have named input: y"),
    (TWO, '{"instances": [{"a": [1, 2]}]}', "keys must be equal to: a,n"),
    (TWO, '{"instances": [{"a": [1, 2], "n": 3}, {"a": [1], "n": 3}]}',
     "Failed to process element: 1 key: a of 'instances' list."),
    (TWO, '{"instances": [[1, 2]]}', "instances is a plain list, but expecting list of objects"),
    (TWO, '{"instances": [{"a": [1, 2], "n": 3}, 4]}', "Expecting object but got list at item 1"),
    (VECTOR, '{"instances": [1, {"x": 2}]}', "Expecting value/list but got object at item 1"),
    (TWO, '{"inputs": [1]}', "inputs is a plain value/list, but expecting an object"),
    (TWO, '{"inputs": {"a": [[1, 2]]}}', "Missing named input: n in 'inputs' object."),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "body", "text"), BAD, ids=[b[1][:60] for b in BAD])
def test_a_bad_body_is_refused_in_tensorflow_servings_words(entry, body, text):
    with pytest.raises(RequestError) as refused:
        decode(body, entry)
    assert text in str(refused.value)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert len(str(refused.value)) < 700, "an error quotes only the beginning of a value"


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": ["%s" 1]}' % (b"a" * 2**18),
        b'{"inputs": [Inf, "%s", 1 2]}' % (b"a" * 2**18),
    ],
)
def test_a_long_string_in_a_bad_body_takes_no_memory_for_a_way_back(body):
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="Missing a comma or ] after an array element"):
            jsontext.parse(body)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("item", [1, [1], [[1, 1]]], ids=["flat", "rows", "deep"])
def test_a_long_string_among_numbers_is_refused_and_does_not_stretch_them(item):
    items = json.dumps([item] * 1001)
    place = items.rindex("1")
    text = json.dumps("a" * 2**12)
    document = jsontext.parse(f'{{"inputs": {items[:place]}{text}{items[place + 1 :]}}}'.encode())
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="Type: String is not of expected type: float"):
            tfjson.decode_predict(document, DEEP)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_string_that_never_ends_is_looked_at_once():
    text = '"' + r"\"" * 1000
    (match,) = jsontext.STRING_OR_LITERAL.finditer(text)
    assert match[0] == text
    with pytest.raises(RequestError, match=r"Invalid escape character in string. at offset: 17"):
        jsontext.parse(b'{"inputs": ["-NaN\\q')


def test_a_missing_comma_names_the_bracket_that_is_open():
    for body, closing in (
        ('{"a": [{"b": "]"} 1', "] after an array element. at offset: 18"),
        ('{"a": {"b": [1, "{"] 1', "} after an object member. at offset: 21"),
        ('{"a": [1', "] after an array element. at offset: 8"),
        ('{"a": 1', "} after an object member. at offset: 7"),
    ):
        with pytest.raises(RequestError, match=re.escape(f"Missing a comma or {closing}")):
            jsontext.parse(body.encode())


def test_a_fault_behind_many_rows_is_found_in_few_steps():
    # The gateway of planned devices reads bodies of 64 KiB in its event loop.
    document = jsontext.parse(b'{"instances": [' + b"[]," * 1000 + b"1]}")
    calls = Counter()
    sys.setprofile(lambda _frame, event, _arg: calls.update([event]))
    try:
        with pytest.raises(RequestError, match="Failed to process element: 1000"):
            tfjson.decode_predict(document, VECTOR)
    finally:
        sys.setprofile(None)
    assert calls["call"] < 10 * 1000


def test_a_type_that_json_cannot_carry_is_unimplemented():
    with pytest.raises(RequestError, match="to type: half") as refused:
        decode('{"inputs": [1]}', HALF)
    assert refused.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    "numbers",
    # Half of the integers have another float than their doubles have.
    [np.linspace(-1e9, 1e9, 24), 2**60 + 2**36 + np.arange(-12, 12)],
    ids=["doubles", "integers"],
)
def test_the_whole_array_path_and_the_walk_agree(numbers):
    body = orjson.dumps({"instances": numbers.reshape(2, 3, 4).tolist()})
    fast, _ = tfjson.decode_predict(jsontext.parse(body), DEEP)
    # A boolean anywhere in the body forces the walk.
    slow, _ = tfjson.decode_predict(jsontext.parse(body[:-1] + b',"walk":true}'), DEEP)
    np.testing.assert_array_equal(fast["x"], slow["x"])
    assert fast["x"].dtype == slow["x"].dtype


def test_bytes_that_are_no_utf8_reach_the_model_unchanged():
    arrays, _ = tfjson.decode_predict(jsontext.parse(b'{"inputs": ["\xff\xfe"]}'), TEXT)
    assert arrays["s"].tolist() == [b"\xff\xfe"]


def test_signature_name():
    assert tfjson.signature_name(jsontext.parse(b"{}")) == "serving_default"
    assert tfjson.signature_name(jsontext.parse(b'{"signature_name": ""}')) == "serving_default"
    assert tfjson.signature_name(jsontext.parse(b'{"signature_name": "b"}')) == "b"
    with pytest.raises(RequestError, match="'signature_name' key must be a string value"):
        tfjson.signature_name(jsontext.parse(b'{"signature_name": 100}'))


f32 = np.float32


def texts(*values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


ENCODED = [
    ("one output", {"y": np.array([[2.5, 3], [0.2, 1e20]], f32)}, Layout.ROW,
     '{"predictions":[[2.5,3.0],[0.2,1e+20]]}'),
    ("one output in columns", {"y": np.array([1, 2])}, Layout.COLUMNAR, '{"outputs":[1,2]}'),
    ("scalar", {"y": np.array(0.1, f32)}, Layout.COLUMNAR, '{"outputs":0.1}'),
    ("two outputs", {"a": np.array([[1.5], [2]], f32), "n": np.array([3, 4])}, Layout.ROW,
     '{"predictions":[{"a":[1.5],"n":3},{"a":[2.0],"n":4}]}'),
    ("two outputs in columns", {"a": np.array([1.5], f32), "n": np.array(3)}, Layout.COLUMNAR,
     '{"outputs":{"a":[1.5],"n":3}}'),
    ("not finite", {"y": np.array([NAN, INF, -INF, 0.2], f32)}, Layout.ROW,
     '{"predictions":[NaN,Infinity,-Infinity,0.2]}'),
    ("not finite beside others", {"a": np.array([NAN]), "s": texts("é".encode())}, Layout.ROW,
     '{"predictions":[{"a":NaN,"s":"é"}]}'),
    ("booleans", {"y": np.array([True, False])}, Layout.ROW, '{"predictions":[true,false]}'),
    ("text", {"y": texts(b"a", "é".encode())}, Layout.ROW, '{"predictions":["a","é"]}'),
    ("bytes by name", {"y_bytes": texts(b"\xff\x00", b"")}, Layout.ROW,
     '{"predictions":[{"b64":"/wA="},{"b64":""}]}'),
    ("numbers named bytes", {"y_bytes": np.array([1])}, Layout.ROW, '{"predictions":[1]}'),
    ("no rows", {"y": np.zeros((0, 3), f32)}, Layout.ROW, '{"predictions":[]}'),
    ("not contiguous", {"y": np.array([[1, 2], [3, 4]]).T}, Layout.ROW,
     '{"predictions":[[1,3],[2,4]]}'),
    ("largest", {"y": np.array([2**64 - 1], np.uint64)}, Layout.ROW,
     '{"predictions":[18446744073709551615]}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "layout", "text"), [e[1:] for e in ENCODED], ids=[e[0] for e in ENCODED]
)
def test_outputs_become_this_text(outputs, layout, text):
    assert tfjson.encode_predict(outputs, layout).decode() == text


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"y": np.array(1.0)}, "Tensor name: y has no shape information "),
        (
            {"a": np.zeros(2), "b": np.zeros(3)},
            "Tensor name: b has inconsistent batch size: 3 expecting: 2",
        ),
        ({"y": np.zeros(1, np.float16)}, "Failed to write JSON value for tensor type: float16"),
    ],
)
def test_outputs_without_a_row_layout_are_refused(outputs, text):
    with pytest.raises(RequestError, match=text):
        tfjson.encode_predict(outputs, Layout.ROW)


def test_float32_keeps_its_value_through_the_slow_encoder():
    numbers = np.random.default_rng(1).standard_normal(1000).astype(f32)
    numbers[7] = NAN
    body = tfjson.encode_predict({"y": numbers}, Layout.ROW)
    again = np.array(json.loads(body)["predictions"], f32)
    np.testing.assert_array_equal(again, numbers)
    assert len(body) < 1000 * 15, "shortest digits, not those of a double"


def test_importing_the_server_imports_neither_tensorflow_nor_grpc():
    call = (
        "import sys, roma.serving, roma.serving.server\n"
        "print({'tensorflow', 'grpc', 'tritonclient', 'google.protobuf'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
