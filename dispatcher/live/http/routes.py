"""Routes of request paths, in the protocols that clients use.

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
"""A model or a label. The path goes to model servers unchanged, and through proxies that normalise
paths: nothing in it may be an escape, or lead out of the model that was checked."""

_V1 = re.compile(
    rf"/v1/models/(?P<model>{_NAME})"
    rf"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>{_NAME}))?"
    r"(?P<rest>/metadata|:predict|:classify|:regress)?"
)
_V2 = re.compile(
    rf"/v2/models/(?P<model>{_NAME})(?:/versions/(?P<version>{_NAME}))?(?P<rest>/ready|/infer)?"
)
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_NAMELESS = re.compile(r"/v1/models(?:/versions/[0-9]+|/labels/[^/:]+)?(?:/metadata)?")
USUAL: Final = 256
"""Longest path that is cached: unauthenticated clients may send any text."""

OPEN: Final = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Paths of load balancers' probes, allowed without a key and under any host name."""


def origin_form(target: str) -> str:
    """Return a target without scheme and authority, which the absolute form has.

    A server accepts that form too (RFC 9112 §3.2.2).
    """
    if target.startswith("/"):
        return target
    match = _ABSOLUTE.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith("/") else f"/{rest}"


def is_open(target: str) -> bool:
    """Return True if a target is a load balancer's probe, with or without a query."""
    return target.partition("?")[0] in OPEN


_INFERENCES = frozenset({":predict", ":classify", ":regress", "/infer"})


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed path; `is_inference` means POST, otherwise GET; `template` has no names in it."""

    model: str
    version: str | None
    path: str
    is_inference: bool
    template: str

    @property
    def is_status(self) -> bool:
        """True if it requests the status of a model's versions in TensorFlow Serving's protocol."""
        return self.path.startswith("/v1/") and self.template[-1] == "}"


@dataclass(frozen=True, slots=True)
class GrpcRoute:
    """The model and method of a gRPC call; `path` is /package.Service/Method."""

    model: str
    version: str | None
    path: str
    is_inference: bool

    @property
    def is_status(self) -> bool:
        """True if it requests the status of a model's versions in TensorFlow Serving's protocol."""
        return self.path.endswith("/GetModelStatus")


def missing(route: Route | GrpcRoute) -> str:
    """Return the error for an unknown model; TensorFlow Serving's text for its own paths."""
    model, version = route.model, route.version
    if route.path.startswith(("/v2/", "/inference.")):
        return f"Model not found: {model}"
    if not route.is_inference:
        return f"Could not find any versions of model {model}"
    servable = f"Specific({model}, {version})" if version else f"Latest({model})"
    return f"Servable not found for request: {servable}"


def names_no_model(path: str) -> bool:
    """Return True if a path without a route requests status or metadata but names no model."""
    return _NAMELESS.fullmatch(path) is not None


def parse(method: str, path: str) -> Route | None:
    """Return the route of a raw request path, or None if neither protocol has such a path."""
    return _remembered(method, path) if len(path) <= USUAL else _parse(method, path)


def _parse(method: str, path: str) -> Route | None:
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
