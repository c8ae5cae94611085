"""A tensor: JSON value -> NumPy array -> JSON value, by TensorFlow Serving's rules.

Decoding has two paths. Rectangular numbers are passed to NumPy as a whole. Everything else (text,
bytes, and values that NumPy rejects or converts wrongly) is walked value by value, which finds the
exact fault and its text. The walk defines the result; the whole-array path only computes the same
array faster.

Source: tensorflow_serving/util/json_tensor.cc; error texts are copied from it, with the name of the
tensor added.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from roma.tensors.errors import Code, RequestError
from roma.tensors.jsontext import preview, type_name

Array = NDArray[Any]

MAX_RANK = 63
"""Most dimensions: NumPy's limit is 64, and a row adds the batch. TensorFlow's limit is 254."""

BYTES_SUFFIX = "_bytes"
"""Suffix of the name of a string output that holds bytes, which is encoded as `{"b64": …}`."""


@dataclass(frozen=True, slots=True)
class ServingTensorSpec:
    """A signature's description of one tensor.

    `dtype` is TensorFlow's name (`float`, `int64`, `string`…). `shape` has -1 for a dimension of
    any size and is None for any rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ServingSignature:
    """An entry point of a model: the tensors it takes and gives, by name."""

    name: str
    inputs: Mapping[str, ServingTensorSpec]
    outputs: Mapping[str, ServingTensorSpec]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits(dtype: type) -> Callable[[Any], bool]:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def accepts(value: Any) -> bool:
        # RapidJSON does not accept 1.0 as an integer. TensorFlow Serving reads 300 into an int8 as
        # 44; that is refused here.
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return accepts


_INTEGERS = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint32": np.uint32,
    "uint64": np.uint64,
}
NUMPY_TYPES: Mapping[str, type] = {
    "float": np.float32,
    "double": np.float64,
    "bool": np.bool_,
    "string": np.object_,
    **_INTEGERS,
}
"""Types that TensorFlow Serving can read from JSON and write as JSON."""

_ACCEPTS: Mapping[str, Callable[[Any], bool]] = {
    "float": _is_number,
    "double": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    **{name: _fits(dtype) for name, dtype in _INTEGERS.items()},
}
_PLAIN: Mapping[str, frozenset[type]] = {
    "float": frozenset({int, float}),
    "double": frozenset({int, float}),
    "bool": frozenset({bool}),
}
"""Types of JSON values that are accepted whatever the value."""

_KINDS = {"float": "fiu", "double": "fiu", "bool": "b", **dict.fromkeys(_INTEGERS, "iu")}


def decode(value: Any, spec: ServingTensorSpec, *, exact_types: bool) -> Array:
    """Return a JSON value as an array of the type in `spec`, in the value's own shape.

    `exact_types` must be true if a boolean may be among the values. Raises RequestError.
    """
    array = None if exact_types else _decode_whole(value, spec)
    if array is None:
        shape, leaves = decode_item(value, spec)
        array = from_leaves(leaves, shape, spec)
    return array


def decode_item(value: Any, spec: ServingTensorSpec) -> tuple[tuple[int, ...], list[Any]]:
    """Walk a JSON value; return its shape and its leaves in row-major order."""
    if spec.dtype not in _ACCEPTS:
        text = f"Conversion of JSON Value: {preview(value)} to type: {spec.dtype}"
        raise RequestError(_named(text, spec), Code.UNIMPLEMENTED)
    shape = []
    inner = value
    while isinstance(inner, list):
        shape.append(len(inner))
        if not inner:
            break
        inner = inner[0]
    if len(shape) > MAX_RANK:
        raise RequestError(_named(f"Encountered more than {MAX_RANK} nested lists", spec))
    leaves: list[Any] = []
    _walk(value, 0, tuple(shape), spec, leaves)
    return tuple(shape), leaves


def from_leaves(leaves: list[Any], shape: tuple[int, ...], spec: ServingTensorSpec) -> Array:
    """Return the array of `shape` that holds `leaves`, which `decode_item` has checked."""
    array: Array = np.empty(len(leaves), dtype=NUMPY_TYPES[spec.dtype])
    with np.errstate(over="ignore"):  # 1e300 is inf as a float, here as in C++
        array[:] = leaves
    return array.reshape(shape)


def check_shape(array: Array, spec: ServingTensorSpec) -> None:
    """Refuse an array that the signature does not allow; raises RequestError.

    For the Open Inference Protocol and for planned devices: TensorFlow Serving's own APIs leave
    shapes to the graph.
    """
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape) or any(
        want not in (-1, got) for got, want in zip(array.shape, spec.shape, strict=True)
    ):
        raise RequestError(
            f'Input "{spec.name}" has shape {shape_text(array.shape)}, '
            f"expected {shape_text(spec.shape)}"
        )


def is_bytes(spec_name: str, array: Array) -> bool:
    """Return whether a string output holds bytes, by TensorFlow Serving's naming rule."""
    return array.dtype == np.object_ and spec_name.endswith(BYTES_SUFFIX)


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite: orjson turns NaN and infinities into null."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def plain(array: Array, *, as_bytes: bool = False) -> Any:
    """Return an array as nested lists of JSON values; bytes as text or as `{"b64": …}`."""
    if array.dtype == np.object_:
        convert = _b64 if as_bytes else _text
        texts = np.empty(array.size, dtype=np.object_)
        texts[:] = [convert(value) for value in array.ravel()]
        return texts.reshape(array.shape).tolist()
    if array.dtype == np.float32:
        return _shortest(array).tolist()
    return array.tolist()


def _decode_whole(value: Any, spec: ServingTensorSpec) -> Array | None:
    """Return the array if NumPy alone converts it correctly, else None."""
    if spec.dtype not in _KINDS or _may_hold_text(value):
        return None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # ragged, or too deep
        return None
    if array.dtype.kind not in _KINDS[spec.dtype] or not array.size:
        return None
    target = NUMPY_TYPES[spec.dtype]
    if spec.dtype in _INTEGERS:
        bounds = np.iinfo(target)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    else:  # a large integer is rounded to a double first, as by RapidJSON and the walk
        array = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        return array.astype(target)


def _may_hold_text(value: Any) -> bool:
    """Return whether text is among the leaves: NumPy would make every number as long as it."""
    leaves: Iterable[Any] = value if isinstance(value, list) else (value,)
    inner = value
    for _ in range(MAX_RANK):
        if not (isinstance(inner, list) and inner and isinstance(inner[0], list)):
            break
        leaves, inner = chain.from_iterable(leaves), inner[0]
    try:
        return str in map(type, leaves)
    except TypeError:  # ragged
        return True


def _walk(
    value: Any, level: int, shape: tuple[int, ...], spec: ServingTensorSpec, leaves: list[Any]
) -> None:
    if not isinstance(value, list):
        if level != len(shape):
            text = f"JSON Value: {preview(value)} found at incorrect level: {level + 1}"
            text += f" in the JSON DOM. Expected at level: {len(shape)}"
            raise RequestError(_named(text, spec))
        leaves.append(_leaf(value, spec))
        return
    if level >= len(shape):
        text = f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        raise RequestError(_named(text, spec))
    if len(value) != shape[level]:
        text = f"Encountered list at unexpected size: {len(value)} at level: {level}"
        raise RequestError(_named(f"{text} expected size: {shape[level]}", spec))
    begin = 0
    if level + 1 == len(shape) and spec.dtype in _PLAIN:
        # Millions of numbers with something else behind them: a look at each, not a call.
        plain = _PLAIN[spec.dtype]
        odd = (i for i, item in enumerate(value) if type(item) not in plain)
        begin = next(odd, len(value))
        leaves += value[:begin]
    for item in value[begin:]:
        _walk(item, level + 1, shape, spec, leaves)


def _leaf(value: Any, spec: ServingTensorSpec) -> Any:
    if isinstance(value, dict) and spec.dtype == "string":
        return decode_b64(value)
    if not _ACCEPTS[spec.dtype](value):
        text = f"JSON Value: {preview(value)} Type: {type_name(value)}"
        raise RequestError(_named(f"{text} is not of expected type: {spec.dtype}", spec))
    return encode_text(value) if isinstance(value, str) else value


def is_b64(value: Any) -> bool:
    """Return whether a JSON value represents bytes: an object with one string, under `b64`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def decode_b64(value: Any) -> bytes:
    """Return the bytes that `{"b64": …}` represents; raises RequestError."""
    if not is_b64(value):
        raise RequestError(f"JSON Value: {preview(value)} not formatted correctly for base64 data")
    # Like absl::Base64Unescape: white space and missing padding are accepted.
    text = "".join(value["b64"].split())
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("Unable to base64 decode") from None


def encode_text(text: str) -> bytes:
    """Return a JSON string's bytes; raises RequestError for half a surrogate pair."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        reason = "The surrogate pair in string is invalid."
        raise RequestError(f"JSON Parse error: {reason}") from None


def _b64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _text(value: bytes) -> str:
    # TensorFlow Serving copies invalid UTF-8 unchanged, which makes the JSON invalid.
    return value.decode("utf-8", "replace")


def _shortest(array: Array) -> Array:
    """Return float32 numbers as the doubles with the same shortest text: 0.2, not 0.20000000298."""
    finite = np.isfinite(array)
    flat = np.where(finite, array, np.float32(0)).ravel()
    doubles = np.array(orjson.loads(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)), float)
    doubles = doubles.reshape(array.shape)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        doubles[~finite] = array[~finite]
    return doubles


def _named(text: str, spec: ServingTensorSpec) -> str:
    return f'{text} (input "{spec.name}")'


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as TensorFlow Serving's texts have it."""
    return "[" + ",".join(map(str, shape)) + "]"
