"""Open Inference Protocol v2 (KServe, Triton) without its encodings: tensors, checks, answers.

`oip_rest` and `oip_grpc` decode requests to the types here and encode the results. A tensor is a
signature's input or output; the signature is `serving_default` unless the request's parameter
`signature_name` names another. A version that is not a number is a label. An output whose rank the
signature leaves open has the shape [-1] in the metadata.

Source: https://github.com/kserve/open-inference-protocol (specification/protocol).
"""

import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roma.serving import versions
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import Code, RequestError
from roma.serving.models import Models
from roma.serving.oip_tensors import BY_TENSORFLOW, Header, brief
from roma.serving.session import LoadedModel
from roma.tensors.arrays import Array, ServingTensorSpec, check_shape
from roma.tensors.tfjson import DEFAULT_SIGNATURE

SERVER = "roma"
EXTENSIONS = ("binary_tensor_data",)
PLATFORM = "tensorflow_savedmodel"

REFUSED_OF_REQUEST = ("sequence_id",)
REFUSED_OF_TENSOR = ("shared_memory_region", "classification")
"""Parameters of Triton's other extensions: ignoring them would make the answer wrong."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request; without `outputs` all outputs are returned."""

    call: ServingCall
    signature: str
    inputs: Sequence[tuple[Header, Array]]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The version that computed, and its outputs in the requested order."""

    version: int
    outputs: Sequence[tuple[Header, Array]]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of a model; shapes have -1 for a dimension of any size."""

    versions: Sequence[int]
    inputs: Sequence[tuple[str, str, Sequence[int]]]
    outputs: Sequence[tuple[str, str, Sequence[int]]]


def call_of(action: ServingAction, model: str, version: str) -> ServingCall:
    """Return the call for a model's name and a version, which may be empty."""
    if not version:
        return ServingCall(action, model)
    number = versions.number(version)
    # A number outside the range of versions is treated as a label, which does not exist.
    return ServingCall(action, model, number, version if number is None else None)


def check_parameters(parameters: Mapping[str, Any], refused: Collection[str], where: str) -> None:
    """Raise RequestError for a parameter that would make the answer wrong if ignored."""
    for key in refused:
        if parameters.get(key):
            raise RequestError(f"{where}: parameter {key} is not supported", Code.UNIMPLEMENTED)


def signature_of(parameters: Mapping[str, Any]) -> str:
    """Return the signature that a request's parameters ask for; raises RequestError."""
    name = parameters.get("signature_name", "")
    if not isinstance(name, str):
        raise RequestError(f"parameter signature_name = {brief(name)}: expected a string")
    return name or DEFAULT_SIGNATURE


def infer(models: Models, request: InferRequest, entrypoint: str) -> InferAnswer:
    """Compute a request; raises RequestError. `entrypoint` is the metrics' label."""
    with models.serving(request.call, "ModelInfer", entrypoint) as (number, model):
        return InferAnswer(number, _computed(model, request))


def metadata(models: Models, call: ServingCall) -> Metadata:
    """Return a model's metadata; raises RequestError."""
    _, model = models.find(call)
    versions = models.versions(call.model)
    signature = model.signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        return Metadata(versions, [], [])
    tell = [
        [_tell(spec) for spec in specs.values()] for specs in (signature.inputs, signature.outputs)
    ]
    return Metadata(versions, *tell)


def server_version() -> str:
    """Return the version of this program."""
    try:
        return importlib.metadata.version("roma-control-plane")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _computed(model: LoadedModel, request: InferRequest) -> list[tuple[Header, Array]]:
    signature = model.signatures.get(request.signature)
    name = request.call.model
    if signature is None:
        raise RequestError(f"model {name} has no signature {brief(request.signature)}")
    arrays: dict[str, Array] = {}
    for head, array in request.inputs:
        spec = signature.inputs.get(head.name)
        if spec is None:
            raise RequestError(f"model {name} has no input {brief(head.name)}")
        if head.name in arrays:
            raise RequestError(f'Input "{head.name}" was sent twice')
        _check(head, array, spec)
        arrays[head.name] = array
    missing = [spec for spec in signature.inputs if spec not in arrays]
    if missing:
        raise RequestError(f"model {name}: missing input {', '.join(missing)}")
    for output in request.outputs:
        if output not in signature.outputs:
            raise RequestError(f"model {name} has no output {brief(output)}")
    values = model.run(request.signature, arrays)
    wanted = dict.fromkeys(request.outputs or signature.outputs)  # once each, as Triton answers
    return [_output(signature.outputs[o], values[o]) for o in wanted]


def _check(head: Header, array: Array, spec: ServingTensorSpec) -> None:
    if head.datatype.tensorflow != spec.dtype:
        expected = _name_of(spec)
        raise RequestError(f'Input "{spec.name}" is {head.datatype.name}, expected {expected}')
    check_shape(array, spec)


def _output(spec: ServingTensorSpec, array: Array) -> tuple[Header, Array]:
    datatype = BY_TENSORFLOW.get(spec.dtype)
    if datatype is None:
        text = f'Output "{spec.name}" is {spec.dtype}, which the protocol cannot carry'
        raise RequestError(text, Code.UNIMPLEMENTED)
    return Header(spec.name, datatype, array.shape), array


def _tell(spec: ServingTensorSpec) -> tuple[str, str, Sequence[int]]:
    return spec.name, _name_of(spec), (-1,) if spec.shape is None else spec.shape


def _name_of(spec: ServingTensorSpec) -> str:
    # A type without a name in the protocol keeps TensorFlow's: it can be reported, not sent.
    datatype = BY_TENSORFLOW.get(spec.dtype)
    return datatype.name if datatype else spec.dtype
