"""A loaded SavedModel, run the way TensorFlow Serving runs it.

Only this module uses TensorFlow; `predict_grpc` uses its protobuf messages.

TensorFlow Serving loads a SavedModel into a session and runs the signature's graph there. This
module does the same, with the same loader. It is also fast: a small network answers in 12 µs here
and in 176 µs through `tf.saved_model.load(...).signatures[...]` (one thread, mean of 500 calls);
most of the gain comes from computing in the calling thread.

Importing TensorFlow takes seconds, so the first `load` does it.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roma.serving.errors import Code, RequestError
from roma.serving.examples import Features, check_context
from roma.serving.quiet import LEVEL, without_notices
from roma.tensors import frameworks
from roma.tensors.arrays import Array, ServingSignature, ServingTensorSpec

SERVE_TAG = "serve"

MAX_TEXT_RANK = 32
"""Most dimensions of a tensor of strings: TensorFlow reads one with more beyond its memory."""

_IMPORTING = threading.Lock()
_Run = Callable[[Mapping[str, Array]], dict[str, Array]]


class LoadedModel:
    """A SavedModel in memory, created by `load`.

    `signatures` are the signatures that can be run. `signature_defs` are TensorFlow's own messages
    and `metadata` is the JSON form of TensorFlow Serving's SignatureDefMap, both for all
    signatures. `run` may be called from several threads at once.
    """

    def __init__(self, session: Any, signature_defs: Mapping[str, Any]) -> None:
        self._session = session
        # Copies: a nested message keeps its parent, and the graph in it, in memory.
        self.signature_defs = {name: _copy(signature_defs[name]) for name in sorted(signature_defs)}
        self.signatures: Mapping[str, ServingSignature] = {
            name: _signature(name, definition)
            for name, definition in self.signature_defs.items()
            if _can_run(definition)
        }
        self.metadata = _metadata(self.signature_defs)
        self._callables = {
            name: _callable(session, self.signature_defs[name]) for name in self.signatures
        }

    def run(self, signature: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute a signature's outputs, by name; raises RequestError with TensorFlow's code."""
        import tensorflow as tf  # noqa: PLC0415

        _check_ranks(inputs)
        try:
            return self._callables[signature](inputs)
        except tf.errors.OpError as error:
            raise RequestError(error.message, Code(error.error_code)) from error
        except UnicodeDecodeError as error:
            # TensorFlow's text, which quotes bytes of an input; its code is lost.
            raise RequestError(error.object.decode("utf-8", "replace")) from error

    def close(self) -> None:
        """Free the model's memory; no call may be running."""
        self._callables.clear()
        self._session.close()


def load(path: Path, intra_op: int) -> LoadedModel:
    """Load the SavedModel in `path`; any exception of TensorFlow's loader is passed on.

    `intra_op` is the number of threads inside one operation. The whole process has one pool of
    them, as in TensorFlow Serving, so the first model's number applies to all.
    """
    tf = import_tensorflow()
    v1 = tf.compat.v1
    graph = v1.Graph()
    config = v1.ConfigProto(
        intra_op_parallelism_threads=intra_op,
        # Compute in the calling thread: the server's own compute threads are the request pool.
        inter_op_parallelism_threads=-1,
    )
    session = v1.Session(graph=graph, config=config)
    try:
        with graph.as_default():
            meta_graph = v1.saved_model.load(session, [SERVE_TAG], str(path))
        return LoadedModel(session, meta_graph.signature_def)
    except BaseException:  # free the session's memory after any error
        session.close()
        raise


def failure(error: Exception) -> tuple[Code, str]:
    """Return the code and the text of a failed load, for a status answer."""
    match error:
        case RequestError():
            return error.code, str(error)
        case OSError():  # the loader raises it for a folder without a SavedModel
            return Code.NOT_FOUND, str(error)
    code = getattr(error, "error_code", None)
    # Some errors have no text, such as Python's MemoryError.
    return Code(code) if isinstance(code, int) else Code.UNKNOWN, str(error) or repr(error)


def serialise(context: Features, examples: Sequence[Features]) -> Array:
    """Return examples as serialised `tf.train.Example` protos, shape [examples], bytes.

    The context's bytes precede the example's: concatenated protos merge. Raises RequestError.
    """
    shared = _example(context)
    check_context(len(shared), len(examples))
    serialised = np.empty(len(examples), dtype=np.object_)
    serialised[:] = [shared + _example(example) for example in examples]
    return serialised


@functools.cache  # each gRPC call asks for it: only the import may redirect standard error
def import_tensorflow() -> Any:
    """Import TensorFlow, from any thread, and return it; takes seconds the first time.

    Raises LaunchError in a process that has imported PyTorch.
    """
    frameworks.claim("tensorflow")
    # Quiet by default: a model server's stderr is for its operator. The environment can override.
    os.environ.setdefault(LEVEL, "2")
    # Its modules import each other; two threads at once would see them half initialised.
    with _IMPORTING, without_notices():
        import tensorflow as tf  # noqa: PLC0415

    # Suppress the warning that sessions belong to TensorFlow 1: they are intended here.
    tf.get_logger().setLevel(logging.ERROR)
    return tf


def _callable(session: Any, definition: Any) -> _Run:
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415

    inputs = list(definition.inputs)
    outputs = list(definition.outputs)
    # Two outputs may be the same tensor, which is fetched once.
    fetches = list(dict.fromkeys(info.name for info in definition.outputs.values()))
    places = {name: fetches.index(info.name) for name, info in definition.outputs.items()}
    texts = {name for name, info in definition.outputs.items() if _dtype(info) == "string"}
    options = config_pb2.CallableOptions(
        feed=[definition.inputs[name].name for name in inputs], fetch=fetches
    )
    # The only alternative to Session.run, whose checks cost five times the call. TensorFlow's
    # own Keras backend uses it too; the public make_callable supports single tensors only.
    run = session._make_callable_from_options(options)

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        values = run(*(arrays[name] for name in inputs))
        return {
            # A scalar string is returned as bytes, of which NumPy would strip trailing zeros.
            name: np.asarray(values[places[name]], dtype=np.object_ if name in texts else None)
            for name in outputs
        }

    return call


def _check_ranks(inputs: Mapping[str, Array]) -> None:
    for name, array in inputs.items():
        if array.dtype == np.object_ and array.ndim > MAX_TEXT_RANK:
            bound = f"expected at most {MAX_TEXT_RANK} of a tensor of strings"
            raise RequestError(f'Input "{name}" has {array.ndim} dimensions, {bound}')


def _can_run(definition: Any) -> bool:
    # Not a signature with a sparse or a ragged tensor, which is several of the graph's tensors, nor
    # the init op, which is a signature too: it has no inputs, and its output is not a tensor.
    infos = (*definition.inputs.values(), *definition.outputs.values())
    # TensorFlow runs nothing that has no output.
    return bool(definition.outputs) and all(info.name and info.dtype for info in infos)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _signature(name: str, definition: Any) -> ServingSignature:
    return ServingSignature(name, _specs(definition.inputs), _specs(definition.outputs))


def _specs(infos: Mapping[str, Any]) -> dict[str, ServingTensorSpec]:
    return {
        name: ServingTensorSpec(
            name,
            _dtype(infos[name]),
            None
            if infos[name].tensor_shape.unknown_rank
            else tuple(dim.size for dim in infos[name].tensor_shape.dim),
        )
        for name in sorted(infos)
    }


def _dtype(info: Any) -> str:
    import tensorflow as tf  # noqa: PLC0415

    # TensorFlow's C++ names, as in its error texts; the Python names differ in these three.
    name = str(tf.dtypes.as_dtype(info.dtype).name)
    return {"float16": "half", "float32": "float", "float64": "double"}.get(name, name)


def _metadata(signature_defs: Mapping[str, Any]) -> dict[str, Any]:
    from google.protobuf import json_format  # type: ignore[import-untyped]  # noqa: PLC0415

    return {
        name: json_format.MessageToDict(
            signature_defs[name],
            always_print_fields_with_no_presence=True,
            preserving_proto_field_name=True,
        )
        for name in sorted(signature_defs)
    }


def _example(features: Features) -> bytes:
    import tensorflow as tf  # noqa: PLC0415

    example = tf.train.Example()
    for name, (kind, values) in features.items():
        feature = example.features.feature[name]
        if kind is not None:
            getattr(feature, f"{kind}_list").value.extend(values)
    return bytes(example.SerializeToString())
