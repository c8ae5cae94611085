"""TensorFlow Serving's REST API without a socket: a request line and a body to an answer."""

import orjson

from roma.kubernetes.pods import CPU_PATH
from roma.serving import api, metrics, own_cpu
from roma.serving.api import ServingAction, ServingCall
from roma.serving.inference import infer
from roma.serving.models import Models, metadata_json, status_json
from roma.serving.route import RestResponse, RestRoute
from roma.tensors.jsontext import parse
from roma.tensors.tfjson import signature_name

_METRICS = {"Content-Type": metrics.CONTENT_TYPE}


def route(method: str, target: str) -> RestRoute:
    """Return the route of a request line; raises RequestError."""
    path = target.partition("?")[0]
    if method == "GET" and path == metrics.PATH:
        return RestRoute(
            lambda models, _body, _headers: RestResponse(models.meter.text(), headers=_METRICS)
        )
    if method == "GET" and path == CPU_PATH:
        return RestRoute(lambda _models, _body, _headers: RestResponse(own_cpu.report()))
    call = api.parse(method, target)
    if not call.action.is_inference:
        return RestRoute(lambda models, _body, _headers: RestResponse(_describe(models, call)))
    return RestRoute(
        lambda models, body, _headers: RestResponse(_infer(models, call, body)), computes=True
    )


def _describe(models: Models, call: ServingCall) -> bytes:
    if call.action is ServingAction.STATUS:
        return orjson.dumps(status_json(models.status(call)))
    number, model = models.find(call)
    return orjson.dumps(metadata_json(call, number, model))


def _infer(models: Models, call: ServingCall, body: bytes) -> bytes:
    # In TensorFlow Serving's order: invalid JSON is refused before the model is looked up.
    document = parse(body)
    signature_name(document)
    with models.serving(call, call.action, metrics.REST) as (_, model):
        return infer(model, call.action, document)
