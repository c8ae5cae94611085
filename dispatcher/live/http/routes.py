"""What a request's path asks for, in the dialects that clients speak.

TensorFlow Serving (https://www.tensorflow.org/tfx/serving/api_rest):

    GET  /v1/models/{m}[/versions/{v} | /labels/{l}][/metadata]
    POST /v1/models/{m}[/versions/{v} | /labels/{l}]:(predict | classify | regress)

The Open Inference Protocol, version 2 (https://github.com/kserve/open-inference-protocol):

    GET  /v2/models/{m}[/versions/{v}][/ready]
    POST /v2/models/{m}[/versions/{v}]/infer

gRPC's methods are in `dispatcher/live/grpc/methods.py`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""A model or a label. The path goes to model servers as it came, and to whatever normalises paths
before them: nothing in it may be an escape, or lead out of the model that was checked."""

_V1 = re.compile(
    rf"/v1/models/(?P<model>{_NAME})"
    rf"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>{_NAME}))?"
    r"(?P<rest>/metadata|:predict|:classify|:regress)?"
)
_V2 = re.compile(
    rf"/v2/models/(?P<model>{_NAME})(?:/versions/(?P<version>{_NAME}))?(?P<rest>/ready|/infer)?"
)
_NAMELESS = re.compile(r"/v1/models(?:/versions/[0-9]+|/labels/[^/:]+)?(?:/metadata)?")
USUAL: Final = 256
"""Length of a path that is remembered: strangers name what they like."""

OPEN: Final = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Paths that a load balancer asks for, without a key and by any name."""

_INFERENCES = frozenset({":predict", ":classify", ":regress", "/infer"})


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed path; `is_inference` tells a POST from a GET, `template` has no names in it."""

    model: str
    version: str | None
    path: str
    is_inference: bool
    template: str

    @property
    def is_status(self) -> bool:
        """Whether it asks TensorFlow Serving's way how far the versions of a model are."""
        return self.path.startswith("/v1/") and self.template[-1] == "}"

    @property
    def missing(self) -> str:
        """What is said if there is no such model; TensorFlow Serving's words for its own paths."""
        if self.path.startswith("/v2/"):
            return f"Model not found: {self.model}"
        return missing(self.model, self.version, is_inference=self.is_inference)


@dataclass(frozen=True, slots=True)
class GrpcRoute:
    """What a gRPC call asks for; `path` is /package.Service/Method."""

    model: str
    version: str | None
    path: str
    is_inference: bool

    @property
    def is_status(self) -> bool:
        """Whether it asks TensorFlow Serving's way how far the versions of a model are."""
        return self.path.endswith("/GetModelStatus")

    @property
    def missing(self) -> str:
        """What is said if there is no such model."""
        if self.path.startswith("/inference."):
            return f"Model not found: {self.model}"
        return missing(self.model, self.version, is_inference=self.is_inference)


def missing(model: str, version: str | None, *, is_inference: bool) -> str:
    """Return how TensorFlow Serving says that it did not find a model."""
    if not is_inference:
        return f"Could not find any versions of model {model}"
    servable = f"Specific({model}, {version})" if version else f"Latest({model})"
    return f"Servable not found for request: {servable}"


def names_no_model(path: str) -> bool:
    """Whether a path that has no route asks for a status or metadata without naming a model."""
    return _NAMELESS.fullmatch(path) is not None


def parse(method: str, path: str) -> Route | None:
    """Return the route of a raw request path, or None if neither protocol has such a path."""
    return _remembered(method, path) if len(path) <= USUAL else _parse(method, path)


def _parse(method: str, path: str) -> Route | None:
    if path.startswith("http://"):  # a server takes the absolute form too (RFC 9112 §3.2.2)
        path = "/" + path[7:].partition("/")[2]
    path = path.partition("?")[0]
    match = (_V2 if path.startswith("/v2/") else _V1).fullmatch(path)
    if match is None or not path.isascii():
        return None
    found = match.groupdict()
    rest = found["rest"] or ""
    is_inference = rest in _INFERENCES
    if method != ("POST" if is_inference else "GET"):
        return None
    middle = "/versions/{version}" if found["version"] else ""
    if found.get("label"):
        middle = "/labels/{label}"
    template = f"{path[:3]}/models/{{model}}{middle}{rest}"
    return Route(found["model"], found["version"], path, is_inference, template)


_remembered: Final = lru_cache(maxsize=4096)(_parse)
