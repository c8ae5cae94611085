"""A tensor of the Open Inference Protocol: its header, and its raw bytes <-> NumPy array.

Raw tensors are little-endian and in row-major order; each element of BYTES is preceded by its
length in four bytes. No TensorFlow here, no JSON and no protobuf.

Sources: https://github.com/kserve/open-inference-protocol (specification/protocol) and Triton's
docs/protocol/extension_binary_data.md.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from roma.serving.errors import RequestError
from roma.tensors.arrays import MAX_RANK, Array


@dataclass(frozen=True, slots=True)
class Datatype:
    """One of the protocol's types: TensorFlow's name for it, and NumPy's."""

    name: str
    tensorflow: str
    numpy: "np.dtype[Any]"


def _datatype(name: str, tensorflow: str, numpy: Any) -> tuple[str, Datatype]:
    return name, Datatype(name, tensorflow, np.dtype(numpy))


DATATYPES: Mapping[str, Datatype] = dict(
    [
        _datatype("BOOL", "bool", np.bool_),
        *(_datatype(f"INT{n}", f"int{n}", f"<i{n // 8}") for n in (8, 16, 32, 64)),
        *(_datatype(f"UINT{n}", f"uint{n}", f"<u{n // 8}") for n in (8, 16, 32, 64)),
        _datatype("FP16", "half", "<f2"),
        _datatype("BF16", "bfloat16", ml_dtypes.bfloat16),
        _datatype("FP32", "float", "<f4"),
        _datatype("FP64", "double", "<f8"),
        _datatype("BYTES", "string", np.object_),
    ]
)
BY_TENSORFLOW = {datatype.tensorflow: datatype for datatype in DATATYPES.values()}
MAX_BYTES = 2**63 - 1
"""Most bytes that a shape may ask for: sizes that NumPy and TensorFlow can multiply."""

MAX_NAME = 256
"""Most characters of a tensor's name."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one input: its name, datatype and shape."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values in the shape."""
        return math.prod(self.shape)


def name_of(value: Any, what: str) -> str:
    """Check a tensor's name, which error texts quote in full; raises RequestError."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
        raise RequestError(f"{what}: name = {brief(value)}: expected 1 to {MAX_NAME} characters")
    return value


def header(name: Any, datatype: Any, shape: Any) -> Header:
    """Check an input's name, datatype and shape, and return its header; raises RequestError."""
    name = name_of(name, "an input")
    known = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if known is None:
        expected = ", ".join(DATATYPES)
        text = f'Input "{name}": datatype = {brief(datatype)}: expected one of {expected}'
        raise RequestError(text)
    sizes = shape if isinstance(shape, list | tuple) else None
    if sizes is None or len(sizes) > MAX_RANK or not all(_is_size(size) for size in sizes):
        raise RequestError(
            f'Input "{name}": shape = {brief(shape)}: expected at most {MAX_RANK} integers, '
            "none negative"
        )
    # An empty size counts as 1: NumPy refuses other sizes whose product overflows.
    if math.prod(max(size, 1) for size in sizes) * known.numpy.itemsize > MAX_BYTES:
        text = f'Input "{name}": shape = {brief(shape)}: expected at most {MAX_BYTES} bytes'
        raise RequestError(f"{text} of {known.name}")
    return Header(name, known, tuple(sizes))


def from_raw(head: Header, raw: memoryview) -> Array:
    """Return the array in raw bytes, without a copy where possible.

    Raises RequestError if their number does not fit the shape.
    """
    if head.datatype.numpy == np.object_:
        return _from_lengths(head, raw)
    expected = head.count * head.datatype.numpy.itemsize
    if len(raw) != expected:
        raise RequestError(
            f'Input "{head.name}" has {len(raw)} bytes, its shape {list(head.shape)} of '
            f"{head.datatype.name} takes {expected}"
        )
    if head.datatype.numpy == np.bool_:  # NumPy's booleans must be the bytes 0 and 1
        array: Array = np.frombuffer(raw, np.uint8) != 0
    else:
        # TensorFlow needs aligned numbers; parts of a message may start anywhere.
        array = np.require(np.frombuffer(raw, head.datatype.numpy), requirements=["A"])
    return array.reshape(head.shape)


def to_raw(array: Array) -> bytes:
    """Return an array's raw bytes."""
    if array.dtype != np.object_:
        return array.tobytes()
    parts: list[bytes] = []
    for value in array.ravel():
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def from_texts(head: Header, values: Sequence[bytes]) -> Array:
    """Return an array of bytes; raises RequestError if their number does not fit the shape."""
    check_count(head, len(values))
    array: Array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array.reshape(head.shape)


def check_count(head: Header, count: int) -> None:
    """Refuse a number of values that does not fit the shape; raises RequestError."""
    if count != head.count:
        raise RequestError(
            f'Input "{head.name}" has {count} values, its shape {list(head.shape)} takes '
            f"{head.count}"
        )


def _from_lengths(head: Header, raw: memoryview) -> Array:
    values: list[bytes] = []
    place = 0
    while place < len(raw):
        begin = place + _LENGTH.size
        length = _LENGTH.unpack_from(raw, place)[0] if begin <= len(raw) else 0
        place = begin + length
        if place > len(raw):
            raise RequestError(f'Input "{head.name}" ends within element {len(values)}')
        values.append(bytes(raw[begin:place]))
    return from_texts(head, values)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def brief(value: Any) -> str:
    """Return the beginning of a value, for an error text."""
    try:
        text = repr(value)
    except RecursionError:  # orjson takes lists that are nested more deeply
        return "[[..."
    return text if len(text) <= 80 else f"{text[:80]}..."
