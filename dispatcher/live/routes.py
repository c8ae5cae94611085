"""TensorFlow Serving's REST paths: https://www.tensorflow.org/tfx/serving/api_rest.

GET  /v1/models/{m}[/versions/{v} | /labels/{l}][/metadata]
POST /v1/models/{m}[/versions/{v} | /labels/{l}]:(predict | classify | regress)
"""

import re
from dataclasses import dataclass
from functools import lru_cache

_PATH = re.compile(
    r"/v1/models/(?P<model>[^/:?]+)"
    r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:?]+))?"
    r"(?P<rest>/metadata|:predict|:classify|:regress)?"
)


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed path; `is_inference` tells a POST from a GET."""

    model: str
    version: str | None
    path: str
    is_inference: bool

    @property
    def servable(self) -> str:
        """How TensorFlow Serving names what it did not find."""
        return (
            f"Specific({self.model}, {self.version})" if self.version else f"Latest({self.model})"
        )


@lru_cache(maxsize=4096)
def parse(method: str, path: str) -> Route | None:
    """Return the route of a raw request path, or None if TensorFlow Serving has no such path."""
    if path.startswith("http://"):  # a server takes the absolute form too (RFC 9112 §3.2.2)
        path = "/" + path[7:].partition("/")[2]
    path = path.partition("?")[0]
    match = _PATH.fullmatch(path)
    if match is None or not path.isascii():
        return None
    is_inference = (match["rest"] or "").startswith(":")
    if method != ("POST" if is_inference else "GET"):
        return None
    return Route(match["model"], match["version"], path, is_inference)
