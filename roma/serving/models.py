"""Served models: their versions, the state of each version, and the routing of calls.

A version is START (found), LOADING (being loaded and warmed up), AVAILABLE, or END (its load
failed, with a reason). Only an AVAILABLE version answers calls, as in TensorFlow Serving.

`Models.load` and `Models.follow` run in their own thread and change states; everything else only
reads them. A state is set only after its conditions hold, and the table of models is replaced
rather than changed, so that readers need no lock.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from roma.serving import session, versions
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import Code, ModelLoadError, RequestError
from roma.serving.metrics import Meter
from roma.serving.session import LoadedModel
from roma.serving.versions import Policy
from roma.serving.warmup import warm_up

_log = logging.getLogger(__name__)


class VersionState(StrEnum):
    """State of a version: tensorflow_serving/apis/get_model_status.proto."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    END = "END"


@dataclass(slots=True)
class Version:
    """A version of one model; `model` is set while it is AVAILABLE."""

    name: str
    number: int
    path: Path
    state: VersionState = VersionState.START
    code: Code = Code.OK
    message: str = ""
    model: LoadedModel | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a model: its base folder, and the policy that selects versions in it."""

    path: Path
    labels: Mapping[str, int] = field(default_factory=dict)
    """Versions by label; a version with a label is always served, whatever the policy."""
    policy: Policy = versions.LATEST

    def versions(self, name: str) -> dict[int, "Version"]:
        """Return the versions to serve, highest first; raises ModelDirectoryError."""
        chosen = versions.choose(self.path, self.labels, self.policy)
        return {number: Version(name, number, path) for number, path in chosen.items()}


class Models:
    """Every served version of every model; `sources` by model name. Raises ModelDirectoryError.

    With `may_follow` they may be replaced by other models while the server runs.
    """

    def __init__(self, sources: Mapping[str, Source], *, may_follow: bool = False) -> None:
        self.may_follow = may_follow
        self.meter = Meter()
        self._labels = {name: source.labels for name, source in sources.items()}
        self._models = {name: source.versions(name) for name, source in sources.items()}
        self._intra_op = 1
        self._loaded = False
        self._draining = False
        self._following = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change of readiness, in the thread that makes the change."""

    def load(self, intra_op: int) -> None:
        """Load and warm up every version, one after the other; blocks.

        A version that fails does not affect others. Raises ModelLoadError if none is left.
        """
        with self._following:
            self._intra_op = intra_op
            for version in self._all():
                self._load(version)
            self._loaded = True
            self.on_change()
            if not self.available():
                faults = map(_fault, self._all())
                raise ModelLoadError("\n".join(["no model could be loaded:", *faults]))

    def follow(self, sources: Mapping[str, Source]) -> None:
        """Serve these models and no others; blocks until the new ones are loaded.

        Versions in both the old and the new set stay AVAILABLE throughout. A version replaced by
        another version of its model serves until that one is AVAILABLE, under its old labels too.
        Raises ModelDirectoryError, changing nothing, and ModelLoadError if a new version failed,
        which does not affect others.
        """
        with self._following:
            table = {name: source.versions(name) for name, source in sources.items()}
            new = []
            for name, served in table.items():
                for number, version in served.items():
                    old = self._models.get(name, {}).get(number)
                    if (
                        old is not None
                        and old.path == version.path
                        and old.state is not VersionState.END
                    ):
                        served[number] = old
                    else:
                        new.append(version)
            # A removed model is freed with the last call that runs it, as TensorFlow's sessions
            # are.
            self._models = {n: self._with_former(n, served) for n, served in table.items()}
            self.on_change()
            for version in new:
                self._load(version)
            # Labels first: at this moment both the old and the new ones name versions that serve.
            self._labels = {n: self._moved(n, s.labels, table[n]) for n, s in sources.items()}
            self._models = {name: self._settled(name, served) for name, served in table.items()}
            self.on_change()
            failed = [version for version in new if version.state is VersionState.END]
            if failed:
                raise ModelLoadError("\n".join(map(_fault, failed)))

    def _with_former(self, name: str, served: Mapping[int, Version]) -> dict[int, Version]:
        """Return a model's new versions and those that serve it now, highest first."""
        former = self._models.get(name, {})
        # Of two with one number, in different folders, the former serves while the other loads.
        known = dict(served) | {
            n: v for n, v in former.items() if v.state is VersionState.AVAILABLE
        }
        return {number: known[number] for number in sorted(known, reverse=True)}

    def _settled(self, name: str, served: Mapping[int, Version]) -> dict[int, Version]:
        """Return a model's new versions; a former one in place of each that cannot be loaded."""
        if not _serves(served):
            return self._with_former(name, served)
        # A label that stays where it is needs its version.
        wanted = {*served, *self._labels[name].values()}
        serving = {n: v for n, v in served.items() if v.state is VersionState.AVAILABLE}
        return {
            number: serving.get(number, version)
            for number, version in self._with_former(name, served).items()
            if number in wanted
        }

    def _moved(
        self, name: str, labels: Mapping[str, int], served: Mapping[int, Version]
    ) -> Mapping[str, int]:
        """Return a model's new labels; one whose version cannot be loaded stays where it is."""
        former = self._labels.get(name, {})
        if not _serves(served):
            return former
        return {
            label: number
            if served[number].state is VersionState.AVAILABLE
            else former.get(label, number)
            for label, number in labels.items()
        }

    def _load(self, version: Version) -> None:
        _load(version, self._intra_op)
        self.on_change()

    def available(self) -> list[str]:
        """Return the versions that answer calls, as `name/version`."""
        return [f"{v.name}/{v.number}" for v in self._all() if v.state is VersionState.AVAILABLE]

    def is_ready(self, name: str | None = None) -> bool | None:
        """Return whether a model answers calls or, without a name, whether the server is ready.

        The server is ready once the models that it was started with are loaded, while at least one
        version answers. Returns None for a model that is not served.
        """
        if name is None:
            return not self._draining and self._loaded and bool(self.available())
        return (
            self.is_callable(ServingCall(ServingAction.STATUS, name))
            if name in self._models
            else None
        )

    def is_callable(self, call: ServingCall) -> bool:
        """Return whether a call can be computed now; raises RequestError for an unknown model."""
        known = self.status(call)
        return not self._draining and any(v.state is VersionState.AVAILABLE for v in known)

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model that answer calls, lowest first."""
        served = self._models.get(name, {}).values()
        return sorted(v.number for v in served if v.state is VersionState.AVAILABLE)

    def drain(self) -> None:
        """Report nothing as ready from now on; calls that still arrive are answered."""
        self._draining = True
        self.on_change()

    def close(self) -> None:
        """Free every model; no call may be running."""
        for version in self._all():
            version.state = VersionState.END
            model, version.model = version.model, None
            if model is not None:
                model.close()

    def find(self, call: ServingCall) -> tuple[int, LoadedModel]:
        """Return the version number and the model that a call refers to.

        Raises RequestError: NOT_FOUND if it does not exist or is not yet AVAILABLE.
        """
        # Before the label, which may move meanwhile: the table has the versions of both places.
        served = self._models.get(call.model, {})
        number = self._number(call)
        loaded = {
            version.number: model
            for version in served.values()
            # Read once: it may be removed at any moment.
            if (model := version.model) is not None and version.state is VersionState.AVAILABLE
        }
        # "Latest" means the latest loaded version; the versions are in descending order.
        wanted = next(iter(loaded), None) if number is None else number
        if wanted is None or wanted not in loaded:
            servable = (
                f"Latest({call.model})" if number is None else f"Specific({call.model}, {number})"
            )
            raise RequestError(f"Servable not found for request: {servable}", Code.NOT_FOUND)
        return wanted, loaded[wanted]

    @contextlib.contextmanager
    def serving(
        self, call: ServingCall, api: str, entrypoint: str
    ) -> Iterator[tuple[int, LoadedModel]]:
        """Find a call's model, as `find` does, and count the result of the block.

        `api` and `entrypoint` are the metrics' labels.
        """
        found = self.find(call)
        began, status = time.monotonic(), Code.INTERNAL
        try:
            yield found
            status = Code.OK
        except RequestError as error:
            status = error.code
            raise
        finally:
            seconds = time.monotonic() - began
            self.meter.count(call.model, api, entrypoint, status.name, seconds)

    def status(self, call: ServingCall) -> list[Version]:
        """Return the versions that a status call refers to, highest first; raises RequestError."""
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

    def _number(self, call: ServingCall) -> int | None:
        if call.label is None:
            return call.version
        number = self._labels.get(call.model, {}).get(call.label)
        if number is None:
            raise RequestError(f"Unrecognized servable version label: {call.label}")
        return number

    def _all(self) -> list[Version]:
        return [version for served in self._models.values() for version in served.values()]


def _fault(version: Version) -> str:
    return f"{version.name} version {version.number}: {version.message}"


def _serves(served: Mapping[int, Version]) -> bool:
    """Return whether one of a model's versions answers calls."""
    return any(version.state is VersionState.AVAILABLE for version in served.values())


def _load(version: Version, intra_op: int) -> None:
    version.state = VersionState.LOADING
    try:
        model = session.load(version.path, intra_op)
        warm_up(model, version.path)
    except Exception as error:  # any error of a model's graph or file ends only that version
        version.code, version.message = session.failure(error)
        version.state = VersionState.END
        _log.error("%s", _fault(version))
    else:
        version.model = model
        version.state = VersionState.AVAILABLE


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


def metadata_json(call: ServingCall, number: int, model: LoadedModel) -> dict[str, Any]:
    """Return the JSON form of GetModelMetadataResponse."""
    return {
        "model_spec": {"name": call.model, "signature_name": "", "version": str(number)},
        "metadata": {"signature_def": {"signature_def": model.metadata}},
    }
