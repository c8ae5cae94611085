"""Open Inference Protocol over gRPC: `inference.GRPCInferenceService`; no socket, no model.

An answer encodes its tensors as its request does: raw, or in the typed `contents`. FP16 and BF16
have no typed contents, so an answer with one of them is raw. The service's other methods (streams,
shared memory, repository, statistics) are UNIMPLEMENTED.

The messages come from the package tritonclient, imported where they are used.
Source: open-inference-protocol's specification/protocol/{inference_grpc.md,
open_inference_grpc.proto}.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from roma.serving import oip, oip_tensors
from roma.serving.api import ServingAction
from roma.serving.errors import Code, RequestError
from roma.serving.messages import Message, parse
from roma.serving.metrics import GRPC
from roma.serving.models import Models
from roma.serving.oip import InferAnswer, InferRequest
from roma.serving.oip_tensors import Header
from roma.serving.rpc import Method
from roma.tensors.arrays import Array

SERVICE = "inference.GRPCInferenceService"

_CONTENTS: Mapping[str, tuple[str, type]] = {
    "BOOL": ("bool_contents", np.bool_),
    **{f"INT{bits}": ("int_contents", np.int32) for bits in (8, 16, 32)},
    **{f"UINT{bits}": ("uint_contents", np.uint32) for bits in (8, 16, 32)},
    "INT64": ("int64_contents", np.int64),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
    "BYTES": ("bytes_contents", np.object_),
}
"""Field of `contents` that holds a datatype's values, and the type of that field."""


def load_messages() -> Any:
    """Import the messages, which also registers them for reflection, and return them."""
    from tritonclient.grpc import service_pb2  # noqa: PLC0415

    return service_pb2


def decode_request(message: Message) -> InferRequest:
    """Decode a ModelInferRequest; raises RequestError."""
    parameters = _parameters(message)
    oip.check_parameters(parameters, oip.REFUSED_OF_REQUEST, "the request")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents has {len(raw)} tensors, inputs has {len(message.inputs)}"
        )
    inputs = []
    for place, entry in enumerate(message.inputs):
        head = oip_tensors.header(entry.name, entry.datatype, list(entry.shape))
        where = f'Input "{head.name}"'
        oip.check_parameters(_parameters(entry), oip.REFUSED_OF_TENSOR, where)
        if raw and entry.HasField("contents"):
            raise RequestError(f"{where} has contents beside raw_input_contents")
        array = (
            oip_tensors.from_raw(head, memoryview(raw[place]))
            if raw
            else from_contents(head, entry)
        )
        inputs.append((head, array))
    names = [oip_tensors.name_of(entry.name, "an output") for entry in message.outputs]
    for name, entry in zip(names, message.outputs, strict=True):
        oip.check_parameters(_parameters(entry), oip.REFUSED_OF_TENSOR, f'Output "{name}"')
    return InferRequest(
        oip.call_of(ServingAction.PREDICT, message.model_name, message.model_version),
        oip.signature_of(parameters),
        inputs,
        names,
    )


def encode_answer(answer: InferAnswer, request: Message, response: Message) -> None:
    """Write an answer into an empty ModelInferResponse."""
    response.model_name = request.model_name
    response.model_version = str(answer.version)
    response.id = request.id
    typed = not request.raw_input_contents and all(
        head.datatype.name in _CONTENTS for head, _ in answer.outputs
    )
    for head, array in answer.outputs:
        entry = response.outputs.add(name=head.name, datatype=head.datatype.name, shape=head.shape)
        if typed:
            to_contents(head, array, entry)
        else:
            response.raw_output_contents.append(oip_tensors.to_raw(array))


def from_contents(head: Header, entry: Message) -> Array:
    """Return the array in an input's typed contents; raises RequestError."""
    name = head.datatype.name
    if name not in _CONTENTS:
        raise RequestError(f'Input "{head.name}" is {name}, which only raw_input_contents carry')
    field, own = _CONTENTS[name]
    values = getattr(entry.contents, field)
    others = [other.name for other, _ in entry.contents.ListFields() if other.name != field]
    if others:
        raise RequestError(f'Input "{head.name}" is {name}: expected {field}, got {others[0]}')
    if own is np.object_:
        return oip_tensors.from_texts(head, values)
    oip_tensors.check_count(head, len(values))
    array: Array = np.fromiter(values, own, len(values))
    narrow = head.datatype.numpy
    if narrow.kind in "iu" and narrow != own:
        bounds = np.iinfo(narrow)
        if ((array < bounds.min) | (array > bounds.max)).any():
            raise RequestError(
                f'Input "{head.name}" is {name}: expected values from {bounds.min} to {bounds.max}'
            )
    return array.astype(narrow, copy=False).reshape(head.shape)


def to_contents(head: Header, array: Array, entry: Message) -> None:
    """Write an array into an output's typed contents."""
    entry.contents.SetInParent()
    getattr(entry.contents, _CONTENTS[head.datatype.name][0]).extend(array.ravel().tolist())


def _parameters(entry: Message) -> dict[str, Any]:
    found = {}
    for key, value in entry.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        found[key] = getattr(value, kind) if kind else None
    return found


def _infer(models: Models, request: bytes, _most_bytes: int) -> bytes:
    messages = load_messages()
    message = parse(messages.ModelInferRequest(), request)
    response = messages.ModelInferResponse()
    encode_answer(oip.infer(models, decode_request(message), GRPC), message, response)
    return bytes(response.SerializeToString())


def _live(_models: Models, _request: bytes, _most_bytes: int) -> bytes:
    return bytes(load_messages().ServerLiveResponse(live=True).SerializeToString())


def _ready(models: Models, _request: bytes, _most_bytes: int) -> bytes:
    response = load_messages().ServerReadyResponse(ready=bool(models.is_ready()))
    return bytes(response.SerializeToString())


def _server(_models: Models, _request: bytes, _most_bytes: int) -> bytes:
    response = load_messages().ServerMetadataResponse(
        name=oip.SERVER, version=oip.server_version(), extensions=oip.EXTENSIONS
    )
    return bytes(response.SerializeToString())


def _model_ready(models: Models, request: bytes, _most_bytes: int) -> bytes:
    messages = load_messages()
    message = parse(messages.ModelReadyRequest(), request)
    try:
        ready = models.is_callable(oip.call_of(ServingAction.STATUS, message.name, message.version))
    except RequestError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        ready = False  # as Triton answers for an unknown model
    return bytes(messages.ModelReadyResponse(ready=ready).SerializeToString())


def _metadata(models: Models, request: bytes, _most_bytes: int) -> bytes:
    messages = load_messages()
    message = parse(messages.ModelMetadataRequest(), request)
    told = oip.metadata(models, oip.call_of(ServingAction.METADATA, message.name, message.version))
    response = messages.ModelMetadataResponse(
        name=message.name,
        versions=[str(number) for number in told.versions],
        platform=oip.PLATFORM,
    )
    for side, tensors in ((response.inputs, told.inputs), (response.outputs, told.outputs)):
        for name, datatype, shape in tensors:
            side.add(name=name, datatype=datatype, shape=shape)
    return bytes(response.SerializeToString())


METHODS = (
    Method(SERVICE, "ServerLive", _live),
    Method(SERVICE, "ServerReady", _ready),
    Method(SERVICE, "ServerMetadata", _server),
    Method(SERVICE, "ModelReady", _model_ready),
    Method(SERVICE, "ModelMetadata", _metadata),
    Method(SERVICE, "ModelInfer", _infer, computes=True),
)
