"""Classify and regress: `examples` and `context` in, labels and scores or values out.

A request's examples become serialised `tf.train.Example` protos. As in TensorFlow Serving, the
names of a signature's tensors, not its method_name, make it one for classification or regression:
`inputs` in; `classes` and/or `scores`, or `outputs`, out.

Source: https://www.tensorflow.org/tfx/serving/api_rest#classify_and_regress_api,
json_tensor.cc (`FillClassifyRegressRequestFromJson`), classifier.cc and regressor.cc.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from roma.serving.errors import RequestError
from roma.tensors.arrays import Array, ServingSignature, decode_b64, encode_text, is_b64, plain
from roma.tensors.jsontext import Document, preview, type_name

INPUT = "inputs"
Kind = Literal["bytes", "float", "int64"]
Feature = tuple[Kind | None, list[Any]]
"""A feature: the kind of its values (None if it has none), and the values."""

Features = dict[str, Feature]

MAX_CONTEXT_BYTES = 2**28
"""Most bytes of a request's context times its examples: a small body must not fill the memory."""


def decode_examples(document: Document) -> tuple[Features, list[Features]]:
    """Return the context and the examples of a body; raises RequestError."""
    root = document.root
    context = _features(root["context"]) if "context" in root else {}
    examples = root.get("examples")
    problem = None
    if "examples" not in root:
        problem = "When method is classify, key 'examples' is expected and was not found"
    elif not isinstance(examples, list):
        problem = "Expecting 'examples' value to be an list/array"
    elif not examples:
        problem = "'examples' value is an empty array"
    if problem:
        raise RequestError(f"JSON Value: {preview(root)} {problem}")
    return context, [_features(example) for example in examples or []]


def check_context(size: int, count: int) -> None:
    """Refuse a context of `size` bytes beside `count` examples; raises RequestError."""
    if size * count > MAX_CONTEXT_BYTES:
        raise RequestError(
            f"context of {size} bytes for {count} examples: each is computed with a copy of it, "
            f"expected at most {MAX_CONTEXT_BYTES} bytes in all"
        )


def check_classify(signature: ServingSignature) -> None:
    """Refuse a signature that cannot classify; raises RequestError."""
    _check_input(signature, "classification")
    outputs = signature.outputs
    if len(outputs) not in (1, 2):
        raise RequestError(f"Expected one or two output Tensors, found {len(outputs)}")
    if not outputs.keys() & {"classes", "scores"}:
        raise RequestError(
            'Expected classification signature outputs to contain at least one of "classes" or '
            f'"scores". Signature was: {signature.name} with outputs {listed(outputs)}'
        )


def check_regress(signature: ServingSignature) -> None:
    """Refuse a signature that cannot regress; raises RequestError."""
    _check_input(signature, "regression")
    if len(signature.outputs) != 1:
        raise RequestError("Expected one output Tensor.")
    if "outputs" not in signature.outputs:
        raise RequestError(
            f"No regression outputs found in SignatureDef: {signature.name} "
            f"with outputs {listed(signature.outputs)}"
        )


def read_classes(outputs: Mapping[str, Array], count: int) -> tuple[Array | None, Array | None]:
    """Return the labels and the scores of `count` examples; raises RequestError.

    `classes` is a string array and `scores` a float array, both [count, classes]; one may be
    missing.
    """
    classes, scores = outputs.get("classes"), outputs.get("scores")
    for name, array, dtype in (("classes", classes, np.object_), ("scores", scores, np.float32)):
        if array is not None:
            _check_output(name, array, dtype, count, ranks=(2,))
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise RequestError(
            "Tensors class and score should match in dim_size(1). "
            f"Got {classes.shape[1]} vs. {scores.shape[1]}"
        )
    return classes, scores


def read_values(outputs: Mapping[str, Array], count: int) -> Array:
    """Return one value per example; raises RequestError.

    `outputs` is a float array, [count] or [count, 1].
    """
    array = outputs["outputs"]
    _check_output("outputs", array, np.float32, count, ranks=(1, 2))
    if array.size != count:
        raise RequestError(f"Expected output batch size to be {count}.  Got: {array.size}")
    return array.ravel()


def encode_classes(classes: Array | None, scores: Array | None) -> bytes:
    """Return the answer's body: per example, [label, score] of every class."""
    shape = next(array.shape for array in (classes, scores) if array is not None)
    labels: Any = np.full(shape, "").tolist() if classes is None else plain(classes)
    values: Any = np.zeros(shape).tolist() if scores is None else plain(scores)
    return _results([list(zip(*row, strict=True)) for row in zip(labels, values, strict=True)])


def encode_values(values: Array) -> bytes:
    """Return the answer's body: one value per example."""
    return _results(plain(values))


def _check_input(signature: ServingSignature, kind: str) -> None:
    if len(signature.inputs) != 1:
        raise RequestError("Expected one input Tensor.")
    if INPUT not in signature.inputs:
        raise RequestError(
            f"No {kind} inputs found in SignatureDef: {signature.name} "
            f"with inputs {listed(signature.inputs)}"
        )
    if signature.inputs[INPUT].dtype != "string":
        dtype = signature.inputs[INPUT].dtype
        raise RequestError(f'Input "{INPUT}" takes {dtype}, not serialised examples')


def _check_output(
    name: str, array: Array, dtype: type, count: int, *, ranks: tuple[int, ...]
) -> None:
    if array.ndim not in ranks:
        raise RequestError(f"Output {name} has rank {array.ndim}, expected one of {ranks}")
    if array.dtype != dtype:
        wanted = "DT_STRING" if dtype is np.object_ else "DT_FLOAT"
        raise RequestError(f"Expected {name} Tensor of {wanted}. Got: {array.dtype}")
    if array.shape[0] != count:
        raise RequestError(f"Expected {name} output batch size of {count}. Got: {array.shape[0]}")


def _features(example: Any) -> Features:
    if not isinstance(example, dict):
        raise RequestError(f"Example must be JSON object but got JSON {type_name(example)}")
    return {_name(name): _feature(name, content) for name, content in example.items()}


def _name(name: str) -> str:
    try:
        name.encode()  # a protobuf map takes no other keys
    except UnicodeEncodeError:
        raise RequestError(f"Feature name is not UTF-8: {preview(name)}") from None
    return name


def _feature(name: str, content: Any) -> Feature:
    kind: Kind | None = None
    values = []
    for value in content if isinstance(content, list) else [content]:
        own, converted = _element(name, value)
        if kind not in (None, own):
            raise RequestError(f"Unexpected element type in feature: {name} expecting type: {kind}")
        kind = own
        values.append(converted)
    return kind, values


def _element(name: str, value: Any) -> tuple[Kind, Any]:
    match value:
        case bool():
            return "int64", int(value)
        case int() if value >= 2**63:
            raise RequestError(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
        case int():
            return "int64", value
        case float():
            return "float", value
        case str():
            return "bytes", encode_text(value)
        case dict() if is_b64(value):
            return "bytes", decode_b64(value)
    raise RequestError(f"Feature: {name} has element with unexpected JSON type: {type_name(value)}")


def listed(tensors: Iterable[str]) -> str:
    """Return the names of tensors as TensorFlow Serving's texts have them."""
    return "{" + ",".join(sorted(tensors)) + "}"


def _results(results: list[Any]) -> bytes:
    # Not orjson: scores may be NaN.
    return json.dumps({"results": results}, ensure_ascii=False, separators=(",", ":")).encode()
