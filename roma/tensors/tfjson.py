"""Predict requests and answers in TensorFlow Serving's two JSON layouts.

*Row*: `{"instances": [one item per example]}` is answered `{"predictions": [...]}`.
*Columnar*: `{"inputs": tensor | {name: tensor}}` is answered `{"outputs": ...}`.
A single input or output needs no name; several are objects of names.

No TensorFlow here: a signature and a parsed body become NumPy arrays, NumPy arrays become bytes.
Source: https://www.tensorflow.org/tfx/serving/api_rest#predict_api and
tensorflow_serving/util/json_tensor.cc.
"""

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import orjson

from roma.tensors.arrays import (
    NUMPY_TYPES,
    Array,
    ServingSignature,
    ServingTensorSpec,
    decode,
    decode_item,
    from_leaves,
    is_b64,
    is_bytes,
    is_finite,
    plain,
    shape_text,
)
from roma.tensors.errors import RequestError
from roma.tensors.jsontext import Document, preview

DEFAULT_SIGNATURE = "serving_default"


class Layout(Enum):
    """Layout of a request, which its answer uses too."""

    ROW = "predictions"
    COLUMNAR = "outputs"


def signature_name(document: Document) -> str:
    """Return the signature that a body asks for; raises RequestError."""
    name = document.root.get("signature_name", "")
    if not isinstance(name, str):
        raise RequestError(
            f"JSON Value: {preview(document.root)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name or DEFAULT_SIGNATURE


def decode_predict(
    document: Document, signature: ServingSignature
) -> tuple[dict[str, Array], Layout]:
    """Return the input arrays, by name, of a predict body; raises RequestError.

    Types are checked, shapes are not: as in TensorFlow Serving, the graph refuses wrong shapes.
    """
    root = document.root
    if not signature.inputs:
        raise RequestError(f"Failed to get input map for signature: {signature.name}")
    if "instances" in root and "inputs" in root:
        raise RequestError(
            f"JSON Value: {preview(root)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist "
        )
    if "instances" in root:
        arrays = _decode_rows(root, signature, exact_types=document.has_booleans)
        layout = Layout.ROW
    elif "inputs" in root:
        arrays = _decode_columns(root["inputs"], signature, exact_types=document.has_booleans)
        layout = Layout.COLUMNAR
    else:
        raise RequestError("Missing 'inputs' or 'instances' key")
    return arrays, layout


def encode_predict(outputs: Mapping[str, Array], layout: Layout) -> bytes:
    """Return the answer's body; raises RequestError if the outputs have no such layout."""
    if not outputs:
        raise RequestError("Cannot convert empty tensor map to JSON")
    # Make arrays contiguous, because orjson refuses others. ascontiguousarray would also turn a
    # scalar into a list.
    arrays = {name: np.asarray(array, order="C") for name, array in outputs.items()}
    for array in arrays.values():
        if array.dtype.type not in NUMPY_TYPES.values():
            raise RequestError(f"Failed to write JSON value for tensor type: {array.dtype}")
    if layout is Layout.ROW:
        _check_batch(arrays)
    finite = all(is_finite(array) for array in arrays.values())
    columns: dict[str, Any] = {
        name: array
        if finite and array.ndim and array.dtype != np.object_
        # The standard library writes NaN, Infinity and -Infinity as TensorFlow Serving does.
        else plain(array, as_bytes=is_bytes(name, array))
        for name, array in arrays.items()
    }
    value: Any
    if len(columns) == 1:
        (value,) = columns.values()
    elif layout is Layout.ROW:
        value = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    else:
        value = columns
    answer = {layout.value: value}
    if finite:
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_rows(
    root: dict[str, Any], signature: ServingSignature, *, exact_types: bool
) -> dict[str, Array]:
    rows = root["instances"]
    if not isinstance(rows, list):
        raise RequestError(f"JSON Value: {preview(root)} Expecting 'instances' to be an list/array")
    if not rows:
        raise RequestError(f"JSON Value: {preview(root)} No values in 'instances' array")
    specs = signature.inputs
    if len(specs) > 1 and (not isinstance(rows[0], dict) or is_b64(rows[0])):
        raise RequestError(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    if _is_named(rows[0]):
        _check_names(rows, specs)
        return {
            name: _stack([row[name] for row in rows], spec, f" key: {name}", exact_types)
            for name, spec in specs.items()
        }
    for number, row in enumerate(rows):
        if _is_named(row):
            raise RequestError(
                f"Expecting value/list but got object at item {number} of input list"
            )
    ((name, spec),) = specs.items()
    return {name: _stack(rows, spec, "", exact_types)}


def _stack(items: list[Any], spec: ServingTensorSpec, key: str, exact_types: bool) -> Array:
    """Return the items as one array with the batch first; all items must have the same shape."""
    try:
        return decode(items, spec, exact_types=exact_types)
    except RequestError:
        pass  # found again below, item by item, with the number of the item that is wrong
    leaves: list[Any] = []
    first: tuple[int, ...] | None = None
    for number, item in enumerate(items):
        try:
            shape, values = decode_item(item, spec)
            first = shape if first is None else first
            _check_same(shape, first)
        except RequestError as error:
            raise RequestError(
                f"Failed to process element: {number}{key} of 'instances' list. "
                f"Error: {error.code.name}: {error}"
            ) from None
        leaves.extend(values)
    return from_leaves(leaves, (len(items), *(first or ())), spec)


def _check_same(shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape != first:
        size, expected = math.prod(shape), math.prod(first)
        if size != expected:
            raise RequestError(f"Expecting tensor size: {expected} but got: {size}")
        raise RequestError(f"Expecting shape {shape_text(first)} but got: {shape_text(shape)}")


def _check_names(rows: list[Any], specs: Mapping[str, ServingTensorSpec]) -> None:
    for number, row in enumerate(rows):
        if not _is_named(row):
            raise RequestError(f"Expecting object but got list at item {number} of input list")
        if row.keys() == specs.keys():
            continue
        start = f"Failed to process element: {number}"
        for name in row:
            if name not in specs:
                raise RequestError(
                    f"{start} key: {name} of 'instances' list. Error: INVALID_ARGUMENT: "
                    f"JSON object: does not have named input: {name}"
                )
        raise RequestError(
            f"{start} of 'instances' list. JSON object: {preview(row)} "
            f"keys must be equal to: {','.join(sorted(specs))}"
        )


def _decode_columns(
    value: Any, signature: ServingSignature, *, exact_types: bool
) -> dict[str, Array]:
    specs = signature.inputs
    if not _is_named(value):
        if len(specs) > 1:
            raise RequestError(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        ((name, spec),) = specs.items()
        return {name: decode(value, spec, exact_types=exact_types)}
    for name in specs:
        if name not in value:
            raise RequestError(f"Missing named input: {name} in 'inputs' object.")
    return {
        name: decode(value[name], spec, exact_types=exact_types) for name, spec in specs.items()
    }


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not is_b64(value)


def _check_batch(arrays: Mapping[str, Array]) -> None:
    batch: int | None = None
    for name, array in arrays.items():
        if not array.ndim:
            raise RequestError(f"Tensor name: {name} has no shape information ")
        batch = array.shape[0] if batch is None else batch
        if array.shape[0] != batch:
            raise RequestError(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} "
                f"expecting: {batch}"
            )
