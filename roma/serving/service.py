"""A call and its body in, the answer's bytes out: TensorFlow Serving without a socket."""

import orjson

from roma.serving.api import Action, Call
from roma.serving.inference import infer
from roma.serving.jsontext import parse
from roma.serving.models import Models, metadata_json, status_json
from roma.serving.tfjson import signature_name


def describe(models: Models, call: Call) -> bytes:
    """Answer a status or metadata call, at once; raises RequestError."""
    if call.action is Action.STATUS:
        return orjson.dumps(status_json(models.status(call)))
    number, model = models.find(call)
    return orjson.dumps(metadata_json(call, number, model))


def answer(models: Models, call: Call, body: bytes) -> bytes:
    """Answer an inference call; blocks while the model computes. Raises RequestError."""
    # In TensorFlow Serving's order: a body that is no JSON is refused before the model is sought.
    document = parse(body)
    signature_name(document)
    _, model = models.find(call)
    return infer(model, call.action, document)
