"""The gRPC methods of the gateway: their handling, and how each finds its model.

TensorFlow Serving's (tensorflow_serving/apis) and the Open Inference Protocol's
(https://github.com/kserve/open-inference-protocol). Any other is UNIMPLEMENTED.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from dispatcher.live.backends.backend_address import Renamed
from dispatcher.live.grpc import wire
from dispatcher.live.grpc.responses import RefusedCall, bad_request
from dispatcher.live.http.routes import GrpcRoute
from dispatcher.live.service import EXTENSIONS, NAME, VERSION, Service

PREDICTION, MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
OIP = "inference.GRPCInferenceService"


_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED

SERVICES = (PREDICTION, MODEL, OIP)


Asked = tuple[str, str | None]
"""A model, and its version in the message; None for a label and for no version."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A method that a model server answers; an `is_inference` one waits in a queue."""

    path: str
    asked: Callable[[bytes], Asked]
    is_inference: bool
    renamed: Renamed | None = None
    """Writes the name of a variant into an inference."""
    otherwise: bytes | None = None
    """The answer if no model server can give one: no such model, or no ready executable."""

    def route(self, body: bytes) -> GrpcRoute:
        """Return the route in a message; raise RefusedCall."""
        try:
            model, version = self.asked(body)
        except wire.Malformed as error:
            raise bad_request(f"The request cannot be read: {error}") from None
        return GrpcRoute(model, version, self.path, self.is_inference)


@dataclass(frozen=True, slots=True)
class Own:
    """A method that the gateway itself answers."""

    path: str
    answer: Callable[[Service], bytes]
    is_open: bool = True
    """True if it is answered without a key."""


def _by_spec(body: bytes) -> Asked:
    return _specified(wire.model_spec(body))


def _by_tasks(body: bytes) -> Asked:
    """Return the model of all tasks: TensorFlow Serving requires them to name the same model."""
    specs = wire.task_specs(body)
    if not specs or not specs[0].is_given:
        raise bad_request("ModelSpec has no name specified.")
    asked = _specified(specs[0])
    for spec in specs:
        if spec.name != asked[0]:
            raise bad_request(f"All tasks must ask for one model: {asked[0]}, not {spec.name}")
    return asked


def _by_name(body: bytes) -> Asked:
    name, version = wire.name_and_version(body)
    if not name:
        raise bad_request("The request names no model")
    return name, version or None


def _by_spec_or_none(body: bytes) -> Asked:
    """Return the model of a status request; the empty name is one that no model has."""
    spec = wire.model_spec(body)
    return _specified(spec) if spec.name or not spec.is_given else ("", None)


def _specified(spec: wire.WireModelSpec) -> Asked:
    if not spec.is_given:
        raise bad_request("Missing ModelSpec")
    if not spec.name:
        raise bad_request("ModelSpec has no name specified.")
    return spec.name, None if spec.version is None else str(spec.version)


def _reload(_: Service) -> bytes:
    text = "the models are those of roma.yaml: change the file, or use `roma models`"
    raise RefusedCall(_UNIMPLEMENTED, f"HandleReloadConfigRequest: {text}")


def _live(_: Service) -> bytes:
    return wire.truth(1, value=True)


def _ready(service: Service) -> bytes:
    return wire.truth(1, value=service.not_ready_reason() is None)


def _described(_: Service) -> bytes:
    fields = [wire.text(1, NAME), wire.text(2, VERSION)]
    return b"".join(fields + [wire.text(3, extension) for extension in EXTENSIONS])


METHODS: Mapping[str, Passed | Own] = {
    method.path: method
    for method in (
        Passed(f"/{PREDICTION}/Predict", _by_spec, is_inference=True, renamed=wire.with_spec_name),
        Passed(f"/{PREDICTION}/Classify", _by_spec, is_inference=True, renamed=wire.with_spec_name),
        Passed(f"/{PREDICTION}/Regress", _by_spec, is_inference=True, renamed=wire.with_spec_name),
        Passed(
            f"/{PREDICTION}/MultiInference",
            _by_tasks,
            is_inference=True,
            renamed=wire.with_task_names,
        ),
        Passed(f"/{PREDICTION}/GetModelMetadata", _by_spec, is_inference=False),
        Passed(f"/{MODEL}/GetModelStatus", _by_spec_or_none, is_inference=False),
        Own(f"/{MODEL}/HandleReloadConfigRequest", _reload, is_open=False),
        Passed(f"/{OIP}/ModelInfer", _by_name, is_inference=True, renamed=wire.with_name),
        Passed(
            f"/{OIP}/ModelReady",
            _by_name,
            is_inference=False,
            otherwise=wire.truth(1, value=False),
        ),
        Passed(f"/{OIP}/ModelMetadata", _by_name, is_inference=False),
        Own(f"/{OIP}/ServerLive", _live),
        Own(f"/{OIP}/ServerReady", _ready),
        Own(f"/{OIP}/ServerMetadata", _described, is_open=False),
    )
}
