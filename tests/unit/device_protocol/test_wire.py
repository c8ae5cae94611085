"""The action protocol: what is encoded is what is decoded, and nothing else is."""

import contextlib
import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roma.device_protocol import (
    DTYPES,
    MAX_PAYLOAD,
    ActionResult,
    Connect,
    Decoder,
    Hello,
    Ping,
    Pong,
    Refused,
    Signature,
    Submit,
    TensorSpec,
    check,
    encode,
)
from roma.device_protocol.headers import LARGEST
from roma.domain.actions import (
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Discard,
    ExecutionPart,
    Infer,
    Load,
    ModelCapabilities,
    Segment,
    Unload,
)
from roma.domain.errors import TensorError, WireError

times = st.floats(-LARGEST, LARGEST)
ids = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
plain_arrays = st.sampled_from(sorted(DTYPES)).flatmap(lambda d: hnp.arrays(np.dtype(d), shapes))
byte_arrays = shapes.flatmap(
    lambda shape: st.lists(
        st.binary(max_size=9), min_size=math.prod(shape), max_size=math.prod(shape)
    ).map(lambda values: as_strings(values, shape))
)
tensors = st.dictionaries(names, plain_arrays | byte_arrays, max_size=4)
latest = times | st.just(math.inf)
segments = st.tuples(ids, ids, ids).filter(lambda n: len(set(n)) == 3).map(sorted)
parts = st.builds(
    ExecutionPart, st.none() | segments.map(lambda n: Segment(*n)), ids, st.booleans()
)
actions = (
    st.builds(Infer, ids, names, st.integers(1, 64), times, latest, st.none() | parts)
    | st.builds(Load, ids, names, times, latest)
    | st.builds(Unload, ids, names)
    | st.builds(Discard, ids, names, ids)
)
specs = st.builds(
    TensorSpec,
    names,
    st.sampled_from([*sorted(DTYPES), "bytes"]),
    st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple),
)
signatures = st.builds(
    Signature, st.lists(specs, max_size=3).map(tuple), st.lists(specs, max_size=3).map(tuple)
)
offers = st.builds(
    ModelCapabilities,
    st.integers(1, 9),
    times,
    st.dictionaries(st.integers(1, 64), times, max_size=5),
    segments=st.integers(1, 99),
)


@st.composite
def hellos(draw):
    models = draw(st.dictionaries(names, st.tuples(offers, st.dictionaries(names, signatures))))
    loaded = tuple(draw(st.lists(st.sampled_from(sorted(models)), unique=True)) if models else ())
    offered = {n: m for n, (m, _) in models.items()}
    offer = Capabilities(draw(st.integers(0, 4096)), offered, loaded, draw(st.integers(1, 9)))
    return Hello(draw(names), offer, {n: s for n, (_, s) in models.items()})


messages = (
    st.builds(Connect, names, names)
    | hellos()
    | st.builds(Refused, names)
    | st.builds(Ping, times)
    | st.builds(Pong, times, times)
    | st.builds(Submit, actions, names, tensors)
    | st.builds(
        ActionResult,
        st.builds(ActionOutcome, ids, st.sampled_from(ActionStatus), times, times, names),
        tensors,
    )
)


def as_strings(values, shape):
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array.reshape(shape)


def wire(message):
    return b"".join(encode(message))


def assert_same(found, sent):
    assert type(found) is type(sent)
    if not isinstance(sent, Submit | ActionResult):
        assert found == sent
        return
    told = (
        (found.inputs, sent.inputs) if isinstance(sent, Submit) else (found.outputs, sent.outputs)
    )
    if isinstance(sent, Submit):
        assert (found.action, found.signature) == (sent.action, sent.signature)
    else:
        assert found.outcome == sent.outcome
    assert list(told[0]) == list(told[1])
    for one, other in zip(told[0].values(), told[1].values(), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        # Bytes, not values: NaN's payload and the sign of zero arrive too.
        assert one.tolist() == other.tolist() if one.dtype == object else True
        assert one.dtype == object or one.tobytes() == other.tobytes()


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_what_is_sent_arrives_whatever_the_pieces(sent, data):
    text = b"".join(map(wire, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    decoder = Decoder()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += decoder.feed(text[begin:end])
    assert len(found) == len(sent)
    for one, other in zip(found, sent, strict=True):
        assert_same(one, other)


def test_a_message_may_come_byte_by_byte():
    sent = Submit(Infer(7, "m", 2, 1.5, math.inf), "s", {"x": np.arange(6.0).reshape(2, 3)})
    decoder = Decoder()
    found = [m for byte in wire(sent) for m in decoder.feed(bytes([byte]))]
    (only,) = found
    assert_same(only, sent)


def test_other_byte_orders_and_layouts_arrive_as_the_same_numbers():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    (found,) = Decoder().feed(wire(Submit(Unload(1, "m"), "", {"x": array})))
    assert found.inputs["x"].dtype == np.dtype("<i4")
    assert found.inputs["x"].tolist() == array.tolist()


def test_received_arrays_are_writable_and_nobody_elses():
    array = np.zeros(3, np.float32)
    (found,) = Decoder().feed(wire(Submit(Unload(1, "m"), "", {"x": array})))
    found.inputs["x"][:] = 1
    assert array.tolist() == [0, 0, 0]


def test_a_token_is_not_shown():
    assert "secret" not in repr(Connect("d", "secret"))


def test_fields_that_are_added_later_are_let_pass():
    (found,) = Decoder().feed(frame({"kind": "ping", "sent": 1, "tensors": [], "more": 1}))
    assert found == Ping(1.0)


def frame(header, payload=b"", *, magic=b"ROM\x01"):
    if isinstance(header, dict):  # `...` stands for a field that is not there
        header = {name: value for name, value in header.items() if value is not ...}
    text = header if isinstance(header, bytes) else orjson.dumps(header)
    return struct.pack("<4sIQ", magic, len(text), len(payload)) + text + payload


SUBMIT = {
    "kind": "submit",
    "action": "infer",
    "id": 1,
    "model": "m",
    "batch": 1,
    "earliest": 0.0,
    "latest": None,
    "signature": "",
}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "this is another protocol"),
        (frame({}, magic=b"ROM\x02"), r"protocol = 2: must be 1"),
        (struct.pack("<4sIQ", b"ROM\x01", 2**31, 0), "header = 2147483648 bytes"),
        (struct.pack("<4sIQ", b"ROM\x01", 2, 2**63), "payload = 9223372036854775808 bytes"),
        (frame(b"{"), "header: Input data was truncated"),
        (frame(b""), "header: Input data was truncated"),
        (frame(b"}"), "header: JSON is malformed"),
        (frame(b'{"kind": "ping", "more": ' + b"[" * 10**6), "header: maximum recursion depth"),
        (frame([]), "header: Expected `object`, got `array`"),
        (frame({"kind": "ping", "sent": 1}), "missing required field `tensors`"),
        (frame({"kind": "pang", "tensors": []}), r"Invalid value 'pang' - at `\$.kind`"),
        (
            frame({"kind": "ping", "tensors": [], "sent": "x"}),
            r"Expected `float`, got `str` - at `\$.sent`",
        ),
        (
            frame({"kind": "ping", "tensors": [], "sent": None}),
            r"Expected `float`, got `null` - at `\$.sent`",
        ),
        (frame({"kind": "ping", "tensors": [], "sent": 1e13}), r"`float` <= 1000000000000.0 - at"),
        (
            frame({"kind": "ping", "sent": 1, "tensors": []}, b"12345678"),
            "payload = 8 bytes: must be 0",
        ),
        (frame(SUBMIT | {"tensors": [], "id": -1}), r"Expected `int` >= 0 - at `\$.id`"),
        (
            frame(SUBMIT | {"tensors": [], "id": 2**63}),
            r"Expected `int` <= 9223372036854775807 - at",
        ),
        (
            frame(SUBMIT | {"tensors": [["x", "bool\n", [1], 8]]}, bytes(8)),
            r"matching regex .* - at",
        ),
        (frame(SUBMIT | {"tensors": [], "id": True}), r"Expected `int`, got `bool` - at `\$.id`"),
        (frame(SUBMIT | {"tensors": [], "batch": 0}), r"Expected `int` >= 1 - at `\$.batch`"),
        (frame(SUBMIT | {"tensors": [], "earliest": None}), r"got `null` - at `\$.earliest`"),
        (
            frame(SUBMIT | {"tensors": [], "action": "jump"}),
            r"Invalid enum value 'jump' - at `\$.action`",
        ),
        (frame({**SUBMIT, "tensors": [], "batch": ...}), "infer: must have a batch"),
        (frame({**SUBMIT, "tensors": [], "latest": ...}), "infer: must have earliest and latest"),
        (frame(SUBMIT | {"tensors": {}}), r"Expected `array`, got `object` - at `\$.tensors`"),
        (
            frame(SUBMIT | {"tensors": [["x", "float32", [1]]]}),
            r"`array` of at least length 4, got 3 - at `\$.tensors\[0\]`",
        ),
        (
            frame(SUBMIT | {"tensors": [["x", "float32", [-1], 0]]}),
            r"`int` >= 0 - at `\$.tensors\[0\]",
        ),
        (frame(SUBMIT | {"tensors": [["x", "float32", [2**40], 0]]}), r"`int` <= 2147483647 - at"),
        (
            frame(SUBMIT | {"tensors": [["x", "float32", [1] * 33, 4]]}, b"1234"),
            "of length <= 32 - at",
        ),
        (frame(SUBMIT | {"tensors": [["x", "float32", [1.0], 4]]}, b"1234"), "got `float` - at"),
        (
            frame(SUBMIT | {"tensors": [["x", "object", [1], 8]]}, bytes(8)),
            r"matching regex .* - at `\$.tensors\[0\]\[1\]`",
        ),
        (frame(SUBMIT | {"tensors": [["x", "float32", [3], 8]]}, bytes(8)), "must be 12"),
        (frame(SUBMIT | {"tensors": [["x", "float32", [2], 16]]}, bytes(8)), "longer than"),
        (frame(SUBMIT | {"tensors": [["x", "int8", [8], 8]] * 2}, bytes(16)), "is there twice"),
        (frame(SUBMIT | {"tensors": [["x", "bool", [8], 8]]}, b"\0" * 7 + b"\2"), "truth value"),
        (frame(SUBMIT | {"tensors": [["x", "bytes", [3], 8]]}, bytes(8)), "too few for 3"),
        (frame(SUBMIT | {"tensors": [["x", "bytes", [2], 8]]}, b"\xff" * 8), "its strings"),
        (frame(SUBMIT | {"tensors": [["x", "int8", [0] + [2**31 - 1] * 4, 0]]}), "tensor x"),
    ],
)
def test_what_is_no_message_is_told(data, words):
    with pytest.raises(WireError, match=words):
        Decoder().feed(data)


@given(messages, st.data())
def test_a_damaged_frame_is_a_message_or_a_wire_error(message, data):
    text = bytearray(wire(message))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        Decoder(max_payload=2**20).feed(text)


def test_a_payload_beyond_the_limit_is_refused_before_it_comes():
    text = wire(Submit(Unload(1, "m"), "", {"x": np.zeros(100, np.uint8)}))
    with pytest.raises(WireError, match=r"payload = 104 bytes: must be ≤ 64"):
        Decoder(max_payload=64).feed(text[:16])


@pytest.mark.parametrize(
    "message",
    [
        Submit(Load(1, "m", math.nan, 1.0)),
        Submit(Load(1, "m", -math.inf, 1.0)),
        Ping(math.inf),
        Submit(Unload(1, "m"), "", {"x": np.array(["text"])}),
        Submit(Unload(1, "m"), "", {"x": np.array([1, None], dtype=object)}),
        Submit(Unload(1, "m"), "", {"x": np.zeros(MAX_PAYLOAD + 1, np.uint8)}),
    ],
    ids=repr,
)
def test_what_cannot_be_sent_is_told(message):
    with pytest.raises(WireError):
        encode(message)


SIGNATURE = Signature((TensorSpec("x", "float32", (-1, 3)), TensorSpec("s", "bytes", (-1,))), ())
GOOD = {"x": np.zeros((2, 3), np.float32), "s": np.array([b"a", b"b"], dtype=object)}


def test_inputs_of_a_signature_pass():
    check(GOOD, SIGNATURE, 2)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": GOOD["x"]}, "input s: is not there: must be s, x"),
        (GOOD | {"z": GOOD["x"]}, "input z: is given: must be s, x"),
        (GOOD | {"x": np.zeros((2, 3))}, "input x: dtype = float64: must be float32"),
        (GOOD | {"x": GOOD["s"]}, "input x: dtype = bytes: must be float32"),
        (GOOD | {"x": np.zeros((2, 4), np.float32)}, r"shape = \[2, 4\]: must be \[-1, 3\]"),
        (GOOD | {"x": np.zeros(2, np.float32)}, r"shape = \[2\]: must be \[-1, 3\]"),
        (GOOD | {"x": np.zeros((3, 3), np.float32)}, r"shape = \[3, 3\]: must have batch 2 first"),
    ],
)
def test_inputs_that_do_not_fit_are_told_by_name(inputs, words):
    with pytest.raises(TensorError, match=words):
        check(inputs, SIGNATURE, 2)
