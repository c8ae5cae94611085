"""Tensors of TensorFlow Serving's gRPC API: TensorProto -> NumPy array -> TensorProto.

Requests may hold their values as bytes (`tensor_content`) or in the field of their type. Answers
use the field of their type, as TensorFlow Serving's do, because clients read that.
Source: tensorflow/core/framework/{tensor.proto, tensor.cc}.
"""

import math

import numpy as np

from roma.serving.errors import RequestError
from roma.serving.messages import Message
from roma.tensors.arrays import Array, ServingTensorSpec

_FIELDS = {
    "float": "float_val",
    "double": "double_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "int64": "int64_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "string": "string_val",
    "half": "half_val",
    "bfloat16": "half_val",
}
STRING_BYTES = 24
"""Bytes of a string in a TensorFlow tensor, beside a copy of its text (tsl/platform/ctstring.h)."""

_BITS = ("half", "bfloat16")
"""Types whose field holds bit patterns."""


def decode(tensor: Message, spec: ServingTensorSpec, most_bytes: int) -> Array:
    """Return a tensor as an array of the type in `spec`; raises RequestError.

    The graph checks its shape, as in TensorFlow Serving. A few bytes may represent a huge tensor,
    because missing values repeat the last one; more than `most_bytes` are refused.
    """
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow.core.framework import types_pb2  # noqa: PLC0415

    wanted = _type(spec)
    if tensor.dtype != wanted.as_datatype_enum:
        known = tensor.dtype in types_pb2.DataType.values()
        sent = types_pb2.DataType.Name(tensor.dtype) if known else tensor.dtype
        expected = types_pb2.DataType.Name(wanted.as_datatype_enum)
        raise RequestError(f'Input "{spec.name}" is {sent}, expected {expected}')
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        raise RequestError(f"tensor parsing error: {spec.name}: its shape is {_shape(tensor)}")
    # An empty size counts as 1: NumPy refuses other sizes whose product overflows.
    count = math.prod(max(size, 1) for size in sizes)
    if count > _sent(tensor, spec) and count * _size(tensor, wanted.size) > most_bytes:
        raise RequestError(
            f"tensor parsing error: {spec.name}: shape {_shape(tensor)} takes more than "
            f"{most_bytes} bytes, but few values were sent"
        )
    try:
        array: Array = np.asarray(tf.make_ndarray(tensor))
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        # Not TensorFlow's own text, which may quote all values.
        raise RequestError(f"tensor parsing error: {spec.name}") from error
    return array


def encode(array: Array, spec: ServingTensorSpec, tensor: Message) -> None:
    """Write an array into an empty TensorProto."""
    import tensorflow as tf  # noqa: PLC0415

    if spec.dtype not in _FIELDS:
        tensor.CopyFrom(tf.make_tensor_proto(array))
        return
    tensor.dtype = _type(spec).as_datatype_enum
    tensor.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    values = array.ravel()
    if spec.dtype in _BITS:
        values = values.view(np.uint16)
    getattr(tensor, _FIELDS[spec.dtype]).extend(values.tolist())


def _type(spec: ServingTensorSpec) -> Message:
    import tensorflow as tf  # noqa: PLC0415

    return tf.dtypes.as_dtype(spec.dtype)


def _sent(tensor: Message, spec: ServingTensorSpec) -> int:
    """Return the size of a tensor's content: bytes of `tensor_content`, or values in its field."""
    field = _FIELDS.get(spec.dtype)
    return len(tensor.tensor_content) or (len(getattr(tensor, field)) if field else 0)


def _size(tensor: Message, size: int) -> int:
    """Return the bytes of one of a tensor's missing values; TensorFlow says 0 for a string."""
    texts = tensor.string_val
    return size or STRING_BYTES + (len(texts[-1]) if texts else 0)


def _shape(tensor: Message) -> str:
    if tensor.tensor_shape.unknown_rank:
        return "unknown"
    return "[" + ",".join(str(dim.size) for dim in tensor.tensor_shape.dim) + "]"
