"""The served models: which versions there are, how far each one is, and where a call goes.

A version is START (found), LOADING (being loaded and warmed up), AVAILABLE, or END (its load
failed, and why). Only an AVAILABLE one answers calls, as in TensorFlow Serving.

`Models.load` runs in a thread of its own and changes states; everything else reads them. A state
is set after what it promises, so that a reader needs no lock.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from roma.serving import session, versions
from roma.serving.api import Action, Call
from roma.serving.errors import Code, ModelDirectoryError, ModelLoadError, RequestError
from roma.serving.inference import infer
from roma.serving.session import LoadedModel
from roma.tensors.arrays import NUMPY_TYPES, Array, Signature
from roma.tensors.jsontext import parse
from roma.tensors.tfjson import DEFAULT_SIGNATURE

WARM_UP_FILE = Path("assets.extra/roma_warmup.json")
"""One predict body, inside the version's folder: the warm-up that the model's author wants."""

_log = logging.getLogger(__name__)


class State(StrEnum):
    """A version's life: tensorflow_serving/apis/get_model_status.proto."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    END = "END"


@dataclass(slots=True)
class Version:
    """One version of one model; `model` is there while it is AVAILABLE."""

    name: str
    number: int
    path: Path
    state: State = State.START
    code: Code = Code.OK
    message: str = ""
    model: LoadedModel | None = None


class Models:
    """Every served version of every model.

    `paths` are base folders by model name, `labels` versions by label by model name. Raises
    ModelDirectoryError.
    """

    def __init__(self, paths: Mapping[str, Path], labels: Mapping[str, Mapping[str, int]]) -> None:
        for name in labels.keys() - paths.keys():
            raise ModelDirectoryError(f"labels of {name}: there is no such model")
        self._labels = labels
        self._models = {
            name: {
                number: Version(name, number, path)
                for number, path in versions.choose(base, labels.get(name, {})).items()
            }
            for name, base in paths.items()
        }
        self._draining = False
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change of what is ready, in whatever thread makes it."""

    def load(self, intra_op: int) -> None:
        """Load and warm up every version, one after the other; blocks.

        A version that fails ends alone. Raises ModelLoadError if none is left.
        """
        for version in self._all():
            _load(version, intra_op)
            self.on_change()
        if not self.available():
            faults = [f"{v.name} version {v.number}: {v.message}" for v in self._all()]
            raise ModelLoadError("\n".join(["no model could be loaded:", *faults]))

    def available(self) -> list[str]:
        """Return what answers calls, as `name/version`."""
        return [f"{v.name}/{v.number}" for v in self._all() if v.state is State.AVAILABLE]

    def is_ready(self, name: str | None = None) -> bool | None:
        """Whether a model answers calls, or, without a name, whether the server is ready.

        The server is ready once nothing is left to load and at least one version answers. Returns
        None for a model that is not served.
        """
        if name is None:
            pending = any(v.state in (State.START, State.LOADING) for v in self._all())
            return not self._draining and not pending and bool(self.available())
        return self.is_callable(Call(Action.STATUS, name)) if name in self._models else None

    def is_callable(self, call: Call) -> bool:
        """Whether a call would be computed now; raises RequestError if its model is not served."""
        known = self.status(call)
        return not self._draining and any(v.state is State.AVAILABLE for v in known)

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model that answer calls, lowest first."""
        served = self._models.get(name, {}).values()
        return sorted(v.number for v in served if v.state is State.AVAILABLE)

    def drain(self) -> None:
        """From now on nothing is ready; calls that come all the same are answered."""
        self._draining = True
        self.on_change()

    def close(self) -> None:
        """Free every model; no call may be running."""
        for version in self._all():
            version.state = State.END
            model, version.model = version.model, None
            if model is not None:
                model.close()

    def find(self, call: Call) -> tuple[int, LoadedModel]:
        """Return the version and the model that a call means.

        Raises RequestError: NOT_FOUND if it is not there or not yet AVAILABLE.
        """
        number = self._number(call)
        loaded = {
            version.number: version.model
            for version in self._models.get(call.model, {}).values()
            if version.model is not None and version.state is State.AVAILABLE
        }
        # Latest is the latest that is loaded; the versions are in falling order.
        wanted = next(iter(loaded), None) if number is None else number
        if wanted is None or wanted not in loaded:
            servable = (
                f"Latest({call.model})" if number is None else f"Specific({call.model}, {number})"
            )
            raise RequestError(f"Servable not found for request: {servable}", Code.NOT_FOUND)
        return wanted, loaded[wanted]

    def status(self, call: Call) -> list[Version]:
        """Return the versions that a status call means, highest first; raises RequestError."""
        served = self._models.get(call.model, {})
        if not served:
            raise RequestError(f"Could not find any versions of model {call.model}", Code.NOT_FOUND)
        number = self._number(call)
        if number is None:
            return list(served.values())
        if number not in served:
            raise RequestError(
                f"Could not find version {number} of model {call.model}", Code.NOT_FOUND
            )
        return [served[number]]

    def _number(self, call: Call) -> int | None:
        if call.label is None:
            return call.version
        number = self._labels.get(call.model, {}).get(call.label)
        if number is None:
            raise RequestError(f"Unrecognized servable version label: {call.label}")
        return number

    def _all(self) -> list[Version]:
        return [version for served in self._models.values() for version in served.values()]


def _load(version: Version, intra_op: int) -> None:
    version.state = State.LOADING
    try:
        model = session.load(version.path, intra_op)
        _warm_up(model, version.path)
    except Exception as error:  # whatever a model's graph or file may raise is its own end only
        version.code, version.message = session.failure(error)
        version.state = State.END
        _log.error("%s version %d: %s", version.name, version.number, version.message)
    else:
        version.model = model
        version.state = State.AVAILABLE


def _warm_up(model: LoadedModel, path: Path) -> None:
    """Run the default signature once, so that the first request is no slower than the second."""
    file = path / WARM_UP_FILE
    if file.exists():
        try:
            infer(model, Action.PREDICT, parse(file.read_bytes()))
        except RequestError as error:
            raise RequestError(f"{file}: {error}", error.code) from error
        return
    signature = model.signatures.get(DEFAULT_SIGNATURE)
    inputs = signature and invent(signature)
    if not inputs:
        return
    try:
        model.run(DEFAULT_SIGNATURE, inputs)
    except RequestError as error:
        # The input was invented: that the model refuses it says nothing about real ones.
        _log.info("%s: no warm-up: %s", path, error)


def invent(signature: Signature) -> dict[str, Array] | None:
    """Return zeros in the shape of one example, or None where none can be invented."""
    inputs: dict[str, Array] = {}
    for spec in signature.inputs.values():
        if spec.shape is None or spec.dtype == "string" or spec.dtype not in NUMPY_TYPES:
            return None
        shape = tuple(1 if size < 0 else size for size in spec.shape)
        inputs[spec.name] = np.zeros(shape, NUMPY_TYPES[spec.dtype])
    return inputs


def status_json(found: list[Version]) -> dict[str, Any]:
    """Return the JSON form of GetModelStatusResponse."""
    return {
        "model_version_status": [
            {
                "version": str(version.number),
                "state": version.state.value,
                "status": {"error_code": version.code.name, "error_message": version.message},
            }
            for version in found
        ]
    }


def metadata_json(call: Call, number: int, model: LoadedModel) -> dict[str, Any]:
    """Return the JSON form of GetModelMetadataResponse."""
    return {
        "model_spec": {"name": call.model, "signature_name": "", "version": str(number)},
        "metadata": {"signature_def": {"signature_def": model.metadata}},
    }
