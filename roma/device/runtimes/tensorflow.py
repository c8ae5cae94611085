"""TensorFlow runtime: SavedModels on this machine's cores, in the model server's session.

There is no separate device memory: LOAD creates the session and reads the weights from disk (mostly
from the page cache), and UNLOAD closes it. Pages bound the weights of all sessions together.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from roma.device.runtimes.base import (
    DEFAULT_SIGNATURE,
    HostRuntime,
    RuntimeModel,
    default_signature,
    example,
    sizes,
)
from roma.device_protocol import BYTES, DTYPES, Array, Signature, TensorSpec
from roma.domain.actions import BATCHES, ModelCapabilities
from roma.domain.errors import LaunchError, TensorError
from roma.serving import session, versions
from roma.serving.errors import Code, RequestError
from roma.tensors import arrays as serving

_NAMES = {"half": "float16", "float": "float32", "double": "float64", "string": BYTES}
"""NumPy's names of types whose TensorFlow names differ."""

_log = logging.getLogger(__name__)


class TensorFlowRuntime(HostRuntime):
    """SavedModels by name; a path is a SavedModel or a folder of numbered versions (latest used).

    `threads` is the number of threads inside one operation; a model must take at least one of the
    sizes in `batches`. The constructor loads every model once, to read its signatures and to check
    that it loads. Raises LaunchError.
    """

    def __init__(
        self, paths: Mapping[str, Path], threads: int = 1, batches: Sequence[int] = BATCHES
    ) -> None:
        self._threads = threads
        self._batches = batches
        self._paths = {name: saved_model(path) for name, path in paths.items()}
        self._loaded: dict[str, session.LoadedModel] = {}
        self.models = {name: self._read(name, path) for name, path in self._paths.items()}
        self.memory: int | None = None

    def known(self, name: str) -> ModelCapabilities | None:
        """Return None: costs must be measured."""
        return None

    def load(self, name: str) -> None:
        """Create the model's session and run it once: the first run optimises the graph."""
        model = session.load(self._paths[name], self._threads)
        try:
            signatures = self.models[name].signatures
            which = default_signature(signatures)
            size = sizes(signatures[which], self._batches)[0]
            model.run(which, example(signatures[which], size))
        except BaseException:  # free the session's memory after any error
            model.close()
            raise
        self._loaded[name] = model

    def unload(self, name: str) -> None:
        """Close the model's session."""
        self._loaded.pop(name).close()

    def execute(self, name: str, signature: str, staged: Mapping[str, Array]) -> dict[str, Array]:
        """Run the signature in the calling thread."""
        try:
            return self._loaded[name].run(signature, staged)
        except RequestError as error:
            if error.code is Code.INVALID_ARGUMENT:
                raise TensorError(str(error)) from error
            raise

    def close(self) -> None:
        """Close every session."""
        for name in tuple(self._loaded):
            self.unload(name)

    def _read(self, name: str, path: Path) -> RuntimeModel:
        try:
            model = session.load(path, self._threads)
        except Exception as error:  # TensorFlow's loader raises what it likes
            raise LaunchError(f"model {name}: {path}: {session.failure(error)[1]}") from error
        try:
            signatures = dict(_usable(name, model.signatures, self._batches))
        finally:
            model.close()
        if not signatures:
            raise LaunchError(f"model {name}: {path}: has no signature whose inputs have a batch")
        weights = sum(file.stat().st_size for file in (path / "variables").glob("*"))
        return RuntimeModel(weights, signatures)


def saved_model(path: Path) -> Path:
    """Return the SavedModel at a path; raises LaunchError."""
    if any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
        return path
    return next(iter(versions.choose(path, {}).values()))


def _usable(
    model: str, signatures: Mapping[str, serving.ServingSignature], batches: Sequence[int]
) -> list[tuple[str, Signature]]:
    found = []
    for name, signature in signatures.items():
        inputs = [_spec(spec) for spec in signature.inputs.values()]
        outputs = [_spec(spec) for spec in signature.outputs.values()]
        given = Signature(tuple(filter(None, inputs)), tuple(filter(None, outputs)))
        if inputs and all(inputs) and all(outputs) and sizes(given, batches):
            found.append((name, given))
        else:
            _log.warning("model %s: signature %s: has tensors without a batch", model, name)
    return found


def _spec(spec: serving.ServingTensorSpec) -> TensorSpec | None:
    """Return a spec for the protocol; None without a batch dimension or for an unsupported type."""
    dtype = _NAMES.get(spec.dtype, spec.dtype)
    if not spec.shape or (dtype != BYTES and dtype not in DTYPES):
        return None
    return TensorSpec(spec.name, dtype, spec.shape)


def save_sample(path: Path) -> Path:
    """Write a network of three dense layers of 512 as a SavedModel; return its path."""
    tf = session.import_tensorflow()
    module = tf.Module()
    module.weights = [
        tf.Variable(tf.random.stateless_normal([512, 512], seed=(1, i))) for i in range(3)
    ]

    @tf.function(input_signature=[tf.TensorSpec([None, 512], tf.float32, name="x")])
    def serve(x):  # type: ignore[no-untyped-def]  # typed by its signature
        for weights in module.weights:
            x = tf.nn.relu(x @ weights) / 16
        return {"y": x}

    tf.saved_model.save(module, str(path), signatures={DEFAULT_SIGNATURE: serve})
    return path
