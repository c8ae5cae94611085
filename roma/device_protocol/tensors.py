"""Tensors between a dispatcher and a device: signatures, and the encoding of arrays.

A tensor is sent as its bytes, in C order, little endian, eight-byte aligned in the payload; a
tensor of byte strings as their lengths (32 bits each) followed by the strings. Its name, type and
shape are in the frame's header. A received array is a writable view of the payload, which nothing
else uses.

The first dimension of every input and output is the batch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from roma.domain.errors import TensorError, WireError

Array = NDArray[Any]
Chunk = bytes | memoryview

BYTES = "bytes"
"""Type of byte strings; as a NumPy array: `object`, holding `bytes`."""

DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""NumPy's names of the types that are sent unchanged."""

MAX_RANK: Final = 32
MAX_SIDE: Final = 2**31 - 1
_ALIGNMENT = 8
_LENGTH = np.dtype("<u4")


_Dtype = Annotated[str, Meta(pattern=f"^({'|'.join(sorted({*DTYPES, BYTES}))})\\Z")]


class TensorSpec(Struct, frozen=True, array_like=True):
    """A tensor of a signature: `shape` has -1 for a dimension of any size."""

    name: str
    dtype: _Dtype
    """NumPy's name, or BYTES."""
    shape: Annotated[
        tuple[Annotated[int, Meta(ge=-1, le=MAX_SIDE)], ...], Meta(max_length=MAX_RANK)
    ]


class TensorHeader(Struct, frozen=True, array_like=True):
    """A tensor in a frame: `size` bytes of the payload."""

    name: str
    dtype: _Dtype
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_SIDE)], ...], Meta(max_length=MAX_RANK)]
    size: Annotated[int, Meta(ge=0)]


class Signature(Struct, frozen=True):
    """An entry point of a model: its input and output tensors."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def check(inputs: Mapping[str, Array], signature: Signature, batch: int) -> None:
    """Raise TensorError if inputs are not a batch of this size for this signature."""
    specs = {spec.name: spec for spec in signature.inputs}
    for name in inputs.keys() ^ specs.keys():
        found = "is not there" if name in specs else "is given"
        raise TensorError(f"input {name}: {found}: must be {', '.join(sorted(specs)) or 'none'}")
    for name, spec in specs.items():
        array = inputs[name]
        dtype = dtype_of(array)
        if dtype != spec.dtype:
            raise TensorError(f"input {name}: dtype = {dtype}: must be {spec.dtype}")
        shape = array.shape
        if len(shape) != len(spec.shape) or any(
            want not in (-1, got) for got, want in zip(shape, spec.shape, strict=True)
        ):
            raise TensorError(f"input {name}: shape = {list(shape)}: must be {list(spec.shape)}")
        if not shape or shape[0] != batch:
            raise TensorError(f"input {name}: shape = {list(shape)}: must have batch {batch} first")


def dtype_of(array: Array) -> str:
    """Return the protocol's name of an array's type, whatever its byte order."""
    return BYTES if array.dtype == np.object_ else str(array.dtype.name)


def bytes_of(array: Array) -> int:
    """Return the memory of an array in bytes, including its strings."""
    strings = sum(map(len, array.flat)) if array.dtype == np.object_ else 0
    return array.nbytes + strings


def pack(tensors: Mapping[str, Array]) -> tuple[list[TensorHeader], list[Chunk], int]:
    """Return tensors as the header describes them, their payload and its length.

    Arrays that already have the layout of the payload are not copied. Raises WireError for a type
    that cannot be sent.
    """
    described: list[TensorHeader] = []
    chunks: list[Chunk] = []
    total = 0
    for name, array in tensors.items():
        dtype = dtype_of(array)
        if dtype == BYTES:
            parts = _packed_strings(name, array)
        elif dtype in DTYPES:
            little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
            parts = [little.reshape(-1).view(np.uint8).data] if little.size else []
        else:
            raise WireError(f"tensor {name}: dtype = {dtype}: cannot be sent")
        size = sum(map(len, parts))
        padding = -size % _ALIGNMENT
        described.append(TensorHeader(name, dtype, array.shape, size))
        chunks += parts
        if padding:
            chunks.append(bytes(padding))
        total += size + padding
    return described, chunks, total


def unpack(described: Sequence[TensorHeader], payload: bytearray) -> dict[str, Array]:
    """Return the tensors of a payload as views of it; raises WireError if they do not fit."""
    found: dict[str, Array] = {}
    start = 0
    for item in described:
        name, end = item.name, start + item.size
        if name in found or end > len(payload):
            raise WireError(f"tensor {name}: is there twice, or longer than the payload")
        found[name] = _unpacked(name, item.dtype, item.shape, memoryview(payload)[start:end])
        start = end + -end % _ALIGNMENT
    if start != len(payload):
        raise WireError(f"payload = {len(payload)} bytes: must be {start}, by its tensors")
    return found


def _unpacked(name: str, dtype: str, shape: Sequence[int], data: memoryview) -> Array:
    count = math.prod(shape)
    if dtype == BYTES:
        array = _unpacked_strings(name, count, data)
    else:
        kind = np.dtype(dtype).newbyteorder("<")
        if count * kind.itemsize != len(data):
            raise WireError(
                f"tensor {name}: {len(data)} bytes: must be {count * kind.itemsize}, by its shape"
            )
        array = np.frombuffer(data, kind)
        if dtype == "bool" and (array.view(np.uint8) > 1).any():
            raise WireError(f"tensor {name}: holds a truth value that is neither 0 nor 1")
    try:
        return array.reshape(shape)
    except ValueError as error:  # nothing in it, and sides whose product NumPy cannot count
        raise WireError(f"tensor {name}: shape = {list(shape)}: {error}") from None


def _packed_strings(name: str, array: Array) -> list[Chunk]:
    values = array.ravel().tolist()
    if not all(isinstance(value, bytes) for value in values):
        raise WireError(f"tensor {name}: holds something else than bytes")
    return [np.array([len(value) for value in values], _LENGTH).tobytes(), *values]


def _unpacked_strings(name: str, count: int, data: memoryview) -> Array:
    head = count * _LENGTH.itemsize
    if head > len(data):
        raise WireError(f"tensor {name}: {len(data)} bytes: too few for {count} strings")
    ends = np.cumsum(np.frombuffer(data[:head], _LENGTH), dtype=np.uint64).tolist()
    if head + (ends[-1] if ends else 0) != len(data):
        raise WireError(f"tensor {name}: {len(data)} bytes: must be {head} and its strings'")
    array: Array = np.empty(count, dtype=np.object_)
    begin = 0
    for i, end in enumerate(ends):
        array[i] = bytes(data[head + begin : head + end])
        begin = end
    return array
