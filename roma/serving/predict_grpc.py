"""TensorFlow Serving's gRPC API: protobuf messages for the same calls as its REST API.

    PredictionService   Predict, Classify, Regress, MultiInference, GetModelMetadata
    ModelService        GetModelStatus, HandleReloadConfigRequest (`reload_grpc`)

The messages come from the package tensorflow-serving-api, which imports TensorFlow, so the threads
that answer import it. Differences from TensorFlow Serving: inputs are checked against the
signature's types, as in REST; a status call honours a version label; the tasks of a MultiInference
are computed one after the other. `predict_messages` does the computation.

Source: tensorflow_serving/servables/tensorflow/get_model_metadata_impl.cc and
model_servers/{server_core, get_model_status_impl}.cc (2.19); error texts are theirs.
"""

from collections.abc import Callable

from roma.serving import predict_messages, session
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import RequestError
from roma.serving.messages import Message, parse
from roma.serving.metrics import GRPC
from roma.serving.models import Models
from roma.serving.reload_grpc import reload_config
from roma.serving.rpc import Method

METADATA_FIELD = "signature_def"


def load_messages() -> None:
    """Import the messages, which also registers them for reflection; takes seconds at first."""
    session.import_tensorflow()
    from tensorflow_serving.apis import (  # noqa: F401, PLC0415
        model_service_pb2,
        prediction_service_pb2,
    )


def _predict(models: Models, request: bytes, most_bytes: int) -> bytes:
    from tensorflow_serving.apis import predict_pb2  # noqa: PLC0415

    message = parse(predict_pb2.PredictRequest(), request)
    response = predict_pb2.PredictResponse()
    with models.serving(_call(ServingAction.PREDICT, message), "Predict", GRPC) as (number, model):
        predict_messages.predict(model, message, response, most_bytes)
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _classify(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import classification_pb2  # noqa: PLC0415

    message = parse(classification_pb2.ClassificationRequest(), request)
    response = classification_pb2.ClassificationResponse()
    with models.serving(_call(ServingAction.CLASSIFY, message), "Classify", GRPC) as (
        number,
        model,
    ):
        predict_messages.classify(model, message, response)
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _regress(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import regression_pb2  # noqa: PLC0415

    message = parse(regression_pb2.RegressionRequest(), request)
    response = regression_pb2.RegressionResponse()
    with models.serving(_call(ServingAction.REGRESS, message), "Regress", GRPC) as (number, model):
        predict_messages.regress(model, message, response)
    _echo(message.model_spec, number, response.model_spec)
    return _bytes(response)


def _multi_inference(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import inference_pb2  # noqa: PLC0415

    message = parse(inference_pb2.MultiInferenceRequest(), request)
    response = inference_pb2.MultiInferenceResponse()
    # The first task determines the version; without a task there is no name, which is refused.
    first = message.tasks[0] if message.tasks else inference_pb2.InferenceTask()
    call = _call_of(ServingAction.CLASSIFY, first.model_spec)
    with models.serving(call, "MultiInference", GRPC) as (number, model):
        predict_messages.infer_tasks(model, message, response)
    for task, result in zip(message.tasks, response.results, strict=True):
        _echo(task.model_spec, number, result.model_spec)
    return _bytes(response)


def _metadata(models: Models, request: bytes, _most_bytes: int) -> bytes:
    from tensorflow_serving.apis import get_model_metadata_pb2  # noqa: PLC0415

    message = parse(get_model_metadata_pb2.GetModelMetadataRequest(), request)
    call = _call(ServingAction.METADATA, message)
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
    response = get_model_status_pb2.GetModelStatusResponse()
    states = get_model_status_pb2.ModelVersionStatus.State
    for version in models.status(_call(ServingAction.STATUS, message)):
        response.model_version_status.add(
            version=version.number,
            state=states.Value(version.state.value),
            status={"error_code": int(version.code), "error_message": version.message},
        )
    return _bytes(response)


def _call(action: ServingAction, message: Message) -> ServingCall:
    if not message.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    return _call_of(action, message.model_spec)


def _call_of(action: ServingAction, spec: Message) -> ServingCall:
    if not spec.name and action is not ServingAction.STATUS:
        raise RequestError("ModelSpec has no name specified.")
    match spec.WhichOneof("version_choice"):
        case "version":
            return ServingCall(action, spec.name, version=spec.version.value)
        case "version_label":
            return ServingCall(action, spec.name, label=spec.version_label)
    return ServingCall(action, spec.name)


def _echo(asked: Message, number: int, answered: Message) -> None:
    answered.name = asked.name
    answered.signature_name = predict_messages.signature_name(asked)
    answered.version.value = number


def _bytes(message: Message) -> bytes:
    return bytes(message.SerializeToString())


_PREDICTION, _MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"


def _method(
    service: str,
    name: str,
    answer: Callable[[Models, bytes, int], bytes],
    *,
    computes: bool = False,
    loads: bool = False,
) -> Method:
    def with_messages(models: Models, request: bytes, most_bytes: int) -> bytes:
        load_messages()  # a call may come before the first model is loaded
        return answer(models, request, most_bytes)

    return Method(service, name, with_messages, computes, loads)


METHODS = (
    _method(_PREDICTION, "Predict", _predict, computes=True),
    _method(_PREDICTION, "Classify", _classify, computes=True),
    _method(_PREDICTION, "Regress", _regress, computes=True),
    _method(_PREDICTION, "MultiInference", _multi_inference, computes=True),
    _method(_PREDICTION, "GetModelMetadata", _metadata),
    _method(_MODEL, "GetModelStatus", _status),
    _method(_MODEL, "HandleReloadConfigRequest", reload_config, loads=True),
)
