"""TensorFlow Serving's inference messages, computed by one loaded model; no service, no socket.

Each function takes a request's message and fills an empty response. The gRPC methods use them, and
so do a model's own warm-up requests. They raise RequestError with TensorFlow Serving's texts.

Source: tensorflow_serving/servables/tensorflow/{predict_util, classifier, regressor,
multi_inference, util}.cc (2.19).
"""

from collections.abc import Collection

import numpy as np

from roma.serving import examples, inference
from roma.serving.errors import Code, RequestError
from roma.serving.messages import Message
from roma.serving.session import LoadedModel
from roma.serving.tensorproto import decode, encode
from roma.tensors.arrays import Array
from roma.tensors.tfjson import DEFAULT_SIGNATURE

_CLASSIFY, _REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def predict(model: LoadedModel, request: Message, response: Message, most_bytes: int) -> None:
    """Compute a signature's outputs; no tensor of the request may take more than `most_bytes`."""
    name = signature_name(request.model_spec)
    signature = model.signatures.get(name)
    if signature is None:
        text = f'Serving signature key "{name}" not found.'
        raise RequestError(text, Code.FAILED_PRECONDITION)
    _check_inputs(request.inputs.keys(), signature.inputs.keys())
    inputs = {
        alias: decode(tensor, signature.inputs[alias], most_bytes)
        for alias, tensor in request.inputs.items()
    }
    wanted = list(request.output_filter)
    _check_filter(wanted, signature.outputs.keys())
    outputs = model.run(name, inputs)
    for alias in wanted or outputs:
        encode(outputs[alias], signature.outputs[alias], response.outputs[alias])


def classify(model: LoadedModel, request: Message, response: Message) -> None:
    """Classify examples."""
    _fill_classes(model, request.model_spec, _rows(request.input), response.result)


def regress(model: LoadedModel, request: Message, response: Message) -> None:
    """Compute a value for each example."""
    _fill_values(model, request.model_spec, _rows(request.input), response.result)


def infer_tasks(model: LoadedModel, request: Message, response: Message) -> None:
    """Compute a MultiInferenceRequest's tasks over its examples, one after the other."""
    _check_tasks(request.tasks, model)
    rows = _rows(request.input)
    for task in request.tasks:
        result = response.results.add()
        if task.method_name == _CLASSIFY:
            _fill_classes(model, task.model_spec, rows, result.classification_result)
        else:
            _fill_values(model, task.model_spec, rows, result.regression_result)


def signature_name(spec: Message) -> str:
    """Return the signature that a ModelSpec asks for."""
    return spec.signature_name or DEFAULT_SIGNATURE


def _rows(source: Message) -> Array:
    """Return an Input's examples, serialised, shape [examples]; raises RequestError."""
    kind = source.WhichOneof("kind")
    listed = getattr(source, kind) if kind else None
    if listed is None or not listed.examples:
        raise RequestError("Input is empty.")
    # Concatenated messages merge, so a context is prepended to every example.
    context = b"" if kind == "example_list" else listed.context.SerializeToString()
    examples.check_context(len(context), len(listed.examples))
    rows = np.empty(len(listed.examples), dtype=np.object_)
    rows[:] = [context + example.SerializeToString() for example in listed.examples]
    return rows


def _fill_classes(model: LoadedModel, spec: Message, rows: Array, result: Message) -> None:
    labels, scores = inference.classify(model, signature_name(spec), rows)
    shape = next(array.shape for array in (labels, scores) if array is not None)
    for row in range(shape[0]):
        classes = result.classifications.add().classes
        for column in range(shape[1]):
            one = classes.add()
            if labels is not None:
                one.label = _text(labels[row, column])
            if scores is not None:
                one.score = float(scores[row, column])


def _fill_values(model: LoadedModel, spec: Message, rows: Array, result: Message) -> None:
    for value in inference.regress(model, signature_name(spec), rows).tolist():
        result.regressions.add(value=value)


def _text(label: bytes) -> str:
    # The field is a string, which must be UTF-8; C++ only warns.
    return label.decode("utf-8", "replace")


def _check_inputs(sent: Collection[str], wanted: Collection[str]) -> None:
    extra, missing = sorted(set(sent) - set(wanted)), sorted(set(wanted) - set(sent))
    if len(sent) != len(wanted):
        raise RequestError(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({examples.listed(sent)}) != len({examples.listed(wanted)}). "
            f"Sent extra: {examples.listed(extra)}. "
            f"Missing but required: {examples.listed(missing)}."
        )
    if extra:
        raise RequestError(
            f"input tensor alias not found in signature: {extra[0]}. "
            f"Inputs expected to be in the set {examples.listed(wanted)}."
        )


def _check_filter(asked: list[str], outputs: Collection[str]) -> None:
    seen: set[str] = set()
    for alias in asked:
        if alias not in outputs:
            raise RequestError(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {examples.listed(outputs)}."
            )
        if alias in seen:
            raise RequestError(f"duplicate output tensor alias: {alias}")
        seen.add(alias)


def _check_tasks(tasks: Collection[Message], model: LoadedModel) -> None:
    seen: set[str] = set()
    for task in tasks:
        if not task.model_spec.name:
            raise RequestError("Found ModelSpec with an empty model name.")
        if len({other.model_spec.name for other in tasks}) > 1:
            raise RequestError(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name."
            )
        name = signature_name(task.model_spec)
        if name in seen:
            raise RequestError(f"Duplicate evaluation of signature: {name}")
        seen.add(name)
        if name not in model.signatures:
            raise RequestError(f"Requested signature not found in model graph: {name}")
        if task.method_name not in (_CLASSIFY, _REGRESS):
            text = f"Unsupported signature method_name: {task.method_name}"
            raise RequestError(text, Code.UNIMPLEMENTED)
