"""Protocol-independent calls of one loaded model: arrays in, arrays out; run in a thread.

Each protocol's module decodes a request to the arguments of these functions and encodes their
results. TensorFlow Serving's JSON, the simplest case, is here too: `infer`.
"""

from collections.abc import Callable, Mapping

from roma.serving import examples, session
from roma.serving.api import ServingAction
from roma.serving.errors import RequestError
from roma.serving.session import LoadedModel
from roma.tensors import tfjson
from roma.tensors.arrays import Array, ServingSignature
from roma.tensors.jsontext import Document


def infer(model: LoadedModel, action: ServingAction, document: Document) -> bytes:
    """Answer a predict, classify or regress body; raises RequestError."""
    return _INFER[action](model, document)


def classify(model: LoadedModel, name: str, rows: Array) -> tuple[Array | None, Array | None]:
    """Return the labels and the scores of serialised examples, both [examples, classes].

    A model may give only one of them. Raises RequestError.
    """
    signature = _signature(model, name)
    examples.check_classify(signature)
    return examples.read_classes(model.run(name, {examples.INPUT: rows}), len(rows))


def regress(model: LoadedModel, name: str, rows: Array) -> Array:
    """Return the values of serialised examples, [examples]; raises RequestError."""
    signature = _signature(model, name)
    examples.check_regress(signature)
    return examples.read_values(model.run(name, {examples.INPUT: rows}), len(rows))


def _predict(model: LoadedModel, document: Document) -> bytes:
    name = tfjson.signature_name(document)
    signature = model.signatures.get(name)
    if signature is None:
        # A signature without inputs (the init op) gets an error of its own in TensorFlow Serving.
        if name in model.metadata:
            raise RequestError(f"Failed to get input map for signature: {name}")
        raise RequestError(f'Serving signature name: "{name}" not found in signature def')
    inputs, layout = tfjson.decode_predict(document, signature)
    return tfjson.encode_predict(model.run(name, inputs), layout)


def _classify(model: LoadedModel, document: Document) -> bytes:
    rows = session.serialise(*examples.decode_examples(document))
    return examples.encode_classes(*classify(model, tfjson.signature_name(document), rows))


def _regress(model: LoadedModel, document: Document) -> bytes:
    rows = session.serialise(*examples.decode_examples(document))
    return examples.encode_values(regress(model, tfjson.signature_name(document), rows))


def _signature(model: LoadedModel, name: str) -> ServingSignature:
    if name not in model.signatures:
        raise RequestError(f"No signature was found with the name: {name}")
    return model.signatures[name]


_INFER: Mapping[ServingAction, Callable[[LoadedModel, Document], bytes]] = {
    ServingAction.PREDICT: _predict,
    ServingAction.CLASSIFY: _classify,
    ServingAction.REGRESS: _regress,
}
