"""TensorFlow Serving's gRPC API: protobuf messages in and out of the same calls as its REST API.

    PredictionService   Predict, Classify, Regress, MultiInference, GetModelMetadata
    ModelService        GetModelStatus; HandleReloadConfigRequest is UNIMPLEMENTED

The messages are those of the package tensorflow-serving-api, whose import brings TensorFlow: it is
done in the threads that answer. Differences from TensorFlow Serving: inputs are checked against
the signature's types and shapes, as in REST; a status call honours a version label; the tasks of
a MultiInference are computed one after the other.

Source: tensorflow_serving/servables/tensorflow/{predict_util, classifier, regressor,
multi_inference, get_model_metadata_impl, util}.cc and model_servers/{server_core,
get_model_status_impl}.cc (2.19); error texts are theirs.
"""

from collections.abc import Callable, Collection

import numpy as np

from roma.serving import inference, session
from roma.serving.api import Action, Call
from roma.serving.errors import Code, RequestError
from roma.serving.models import Models
from roma.serving.rpc import Message, Method, parse
from roma.serving.session import LoadedModel
from roma.serving.tensorproto import decode, encode
from roma.tensors.arrays import Array
from roma.tensors.tfjson import DEFAULT_SIGNATURE

METADATA_FIELD = "signature_def"
_CLASSIFY, _REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def load_messages() -> None:
    """Import the messages, which also makes them known to reflection; takes seconds at first."""
    session.import_tensorflow()
    from tensorflow_serving.apis import (  # noqa: F401, PLC0415
        model_service_pb2,
        prediction_service_pb2,
    )


def _predict(models: Models, request: bytes, most_bytes: int) -> bytes:
    from tensorflow_serving.apis import predict_pb2  # noqa: PLC0415

    message = parse(predict_pb2.PredictRequest(), request)
    number, model = models.find(_call(Action.PREDICT, message))
    name = _signature_name(message.model_spec)
    signature = model.signatures.get(name)
    if signature is None:
        text = f'Serving signature key "{name}" not found.'
        raise RequestError(text, Code.FAILED_PRECONDITION)
    _check_inputs(message.inputs.keys(), signature.inputs.keys())
    inputs = {
        alias: decode(tensor, signature.inputs[alias], most_bytes)
        for alias, tensor in message.inputs.items()
    }
    wanted = list(message.output_filter)
    _check_filter(wanted, signature.outputs.keys())
    response = predict_pb2.PredictResponse()
    outputs = model.run(name, inputs)
    for alias in wanted or outputs:
        encode(outputs[alias], signature.outputs[alias], response.outputs[alias])
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _classify(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import classification_pb2  # noqa: PLC0415

    message = parse(classification_pb2.ClassificationRequest(), request)
    number, model = models.find(_call(Action.CLASSIFY, message))
    response = classification_pb2.ClassificationResponse()
    _fill_classes(model, message.model_spec, _rows(message.input), response.result)
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _regress(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import regression_pb2  # noqa: PLC0415

    message = parse(regression_pb2.RegressionRequest(), request)
    number, model = models.find(_call(Action.REGRESS, message))
    response = regression_pb2.RegressionResponse()
    _fill_values(model, message.model_spec, _rows(message.input), response.result)
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _multi_inference(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import inference_pb2  # noqa: PLC0415

    message = parse(inference_pb2.MultiInferenceRequest(), request)
    # The first task says which version; without a task there is no name, which is refused.
    first = message.tasks[0] if message.tasks else inference_pb2.InferenceTask()
    number, model = models.find(_call_of(Action.CLASSIFY, first.model_spec))
    _check_tasks(message.tasks, model)
    rows = _rows(message.input)
    response = inference_pb2.MultiInferenceResponse()
    for task in message.tasks:
        result = response.results.add()
        if task.method_name == _CLASSIFY:
            _fill_classes(model, task.model_spec, rows, result.classification_result)
        else:
            _fill_values(model, task.model_spec, rows, result.regression_result)
        _echo(task.model_spec, number, result.model_spec)
    return _bytes(response)


def _metadata(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import get_model_metadata_pb2  # noqa: PLC0415

    message = parse(get_model_metadata_pb2.GetModelMetadataRequest(), request)
    call = _call(Action.METADATA, message)
    if not message.metadata_field:
        raise RequestError("GetModelMetadataRequest must specify at least one metadata_field")
    for field in message.metadata_field:
        if field != METADATA_FIELD:
            raise RequestError(f"Metadata field {field} is not supported")
    number, model = models.find(call)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in model.signature_defs.items():
        signatures.signature_def[name].CopyFrom(definition)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = call.model
    response.model_spec.version.value = number
    response.metadata[METADATA_FIELD].Pack(signatures)
    return _bytes(response)


def _status(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import get_model_status_pb2  # noqa: PLC0415

    message = parse(get_model_status_pb2.GetModelStatusRequest(), request)
    if not message.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    response = get_model_status_pb2.GetModelStatusResponse()
    states = get_model_status_pb2.ModelVersionStatus.State
    for version in models.status(_call_of(Action.STATUS, message.model_spec)):
        response.model_version_status.add(
            version=version.number,
            state=states.Value(version.state.value),
            status={"error_code": int(version.code), "error_message": version.message},
        )
    return _bytes(response)


def _reload(_models: Models, _request: bytes, _most_bytes: int) -> bytes:
    raise RequestError(
        "HandleReloadConfigRequest is not supported: the server serves what it was started with",
        Code.UNIMPLEMENTED,
    )


def _call(action: Action, message: Message) -> Call:
    if not message.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    return _call_of(action, message.model_spec)


def _call_of(action: Action, spec: Message) -> Call:
    if not spec.name and action is not Action.STATUS:
        raise RequestError("ModelSpec has no name specified.")
    match spec.WhichOneof("version_choice"):
        case "version":
            return Call(action, spec.name, version=spec.version.value)
        case "version_label":
            return Call(action, spec.name, label=spec.version_label)
    return Call(action, spec.name)


def _signature_name(spec: Message) -> str:
    return spec.signature_name or DEFAULT_SIGNATURE


def _echo(asked: Message, number: int, answered: Message) -> None:
    answered.name = asked.name
    answered.signature_name = _signature_name(asked)
    answered.version.value = number


def _rows(source: Message) -> Array:
    """Return an Input's examples, serialised, shape [examples]; raises RequestError."""
    kind = source.WhichOneof("kind")
    listed = getattr(source, kind) if kind else None
    if listed is None or not listed.examples:
        raise RequestError("Input is empty.")
    # Concatenated messages merge, so that a context is the beginning of every example.
    context = b"" if kind == "example_list" else listed.context.SerializeToString()
    rows = np.empty(len(listed.examples), dtype=np.object_)
    rows[:] = [context + example.SerializeToString() for example in listed.examples]
    return rows


def _fill_classes(model: LoadedModel, spec: Message, rows: Array, result: Message) -> None:
    labels, scores = inference.classify(model, _signature_name(spec), rows)
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
    for value in inference.regress(model, _signature_name(spec), rows).tolist():
        result.regressions.add(value=value)


def _text(label: bytes) -> str:
    # The field is a string, which must be UTF-8; C++ only warns.
    return label.decode("utf-8", "replace")


def _check_inputs(sent: Collection[str], wanted: Collection[str]) -> None:
    extra, missing = sorted(set(sent) - set(wanted)), sorted(set(wanted) - set(sent))
    if len(sent) != len(wanted):
        raise RequestError(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({_set(sent)}) != len({_set(wanted)}). "
            f"Sent extra: {_set(extra)}. Missing but required: {_set(missing)}."
        )
    if extra:
        raise RequestError(
            f"input tensor alias not found in signature: {extra[0]}. "
            f"Inputs expected to be in the set {_set(wanted)}."
        )


def _check_filter(asked: list[str], outputs: Collection[str]) -> None:
    seen: set[str] = set()
    for alias in asked:
        if alias not in outputs:
            raise RequestError(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {_set(outputs)}."
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
        name = _signature_name(task.model_spec)
        if name in seen:
            raise RequestError(f"Duplicate evaluation of signature: {name}")
        seen.add(name)
        if name not in model.signatures:
            raise RequestError(f"Requested signature not found in model graph: {name}")
        if task.method_name not in (_CLASSIFY, _REGRESS):
            text = f"Unsupported signature method_name: {task.method_name}"
            raise RequestError(text, Code.UNIMPLEMENTED)


def _set(names: Collection[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"


def _bytes(message: Message) -> bytes:
    return bytes(message.SerializeToString())


_PREDICTION, _MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"


def _method(
    service: str,
    name: str,
    answer: Callable[[Models, bytes, int], bytes],
    *,
    computes: bool = False,
) -> Method:
    def with_messages(models: Models, request: bytes, most_bytes: int) -> bytes:
        load_messages()  # a call may come before the first model is loaded
        return answer(models, request, most_bytes)

    return Method(service, name, with_messages, computes)


METHODS = (
    _method(_PREDICTION, "Predict", _predict, computes=True),
    _method(_PREDICTION, "Classify", _classify, computes=True),
    _method(_PREDICTION, "Regress", _regress, computes=True),
    _method(_PREDICTION, "MultiInference", _multi_inference, computes=True),
    _method(_PREDICTION, "GetModelMetadata", _metadata),
    _method(_MODEL, "GetModelStatus", _status),
    _method(_MODEL, "HandleReloadConfigRequest", _reload),
)
