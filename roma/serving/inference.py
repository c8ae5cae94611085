"""One call of one loaded model: a parsed body in, the answer's bytes out; runs in a worker."""

from collections.abc import Callable, Mapping

from roma.serving import examples, session, tfjson
from roma.serving.api import Action
from roma.serving.errors import RequestError
from roma.serving.jsontext import Document
from roma.serving.session import LoadedModel
from roma.serving.tensors import Signature


def infer(model: LoadedModel, action: Action, document: Document) -> bytes:
    """Answer a predict, classify or regress body; raises RequestError."""
    return _INFER[action](model, document)


def _predict(model: LoadedModel, document: Document) -> bytes:
    name = tfjson.signature_name(document)
    signature = model.signatures.get(name)
    if signature is None:
        # Some signatures take no input (the init op), and TensorFlow Serving tells them apart.
        if name in model.metadata:
            raise RequestError(f"Failed to get input map for signature: {name}")
        raise RequestError(f'Serving signature name: "{name}" not found in signature def')
    inputs, layout = tfjson.decode_predict(document, signature)
    return tfjson.encode_predict(model.run(name, inputs), layout)


def _classify(model: LoadedModel, document: Document) -> bytes:
    signature = _signature(model, document)
    examples.check_classify(signature)
    context, rows = examples.decode_examples(document)
    inputs = {examples.INPUT: session.serialise(context, rows)}
    return examples.encode_classes(model.run(signature.name, inputs), len(rows))


def _regress(model: LoadedModel, document: Document) -> bytes:
    signature = _signature(model, document)
    examples.check_regress(signature)
    context, rows = examples.decode_examples(document)
    inputs = {examples.INPUT: session.serialise(context, rows)}
    return examples.encode_values(model.run(signature.name, inputs), len(rows))


def _signature(model: LoadedModel, document: Document) -> Signature:
    name = tfjson.signature_name(document)
    if name not in model.signatures:
        raise RequestError(f"No signature was found with the name: {name}")
    return model.signatures[name]


_INFER: Mapping[Action, Callable[[LoadedModel, Document], bytes]] = {
    Action.PREDICT: _predict,
    Action.CLASSIFY: _classify,
    Action.REGRESS: _regress,
}
