"""A client's request as the gateway sees it: parsed values and opaque bytes, never raw headers."""

from functools import lru_cache
from typing import Final

from dispatcher.live.auth.callers import Grant
from dispatcher.live.http.header_cache import CachedHeader
from dispatcher.live.http.messages import RequestTemplate
from dispatcher.live.http.routes import Route

WANTED: Final = frozenset(
    {
        b"access-control-request-method",
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"inference-header-content-length",
        b"origin",
        b"traceparent",
        b"tracestate",
        b"transfer-encoding",
        b"x-api-key",
        b"x-request-id",
        b"x-request-priority",
        b"x-request-soft-timeout-ms",
        b"x-request-start",
        b"x-request-timeout-ms",
        b"x-roma-min-accuracy",
        b"x-roma-variant",
    }
)
"""Headers that the gateway reads. All others are dropped, including hop-by-hop ones."""

NAMES: Final = {spelt: name for name in WANTED for spelt in (name, name.title())}
"""Common spellings of them: `X-Api-Key`, or `x-api-key` as in HTTP/2."""

USUAL: Final = 256
"""Longest target that is cached, in bytes: unauthenticated clients may send any text."""

ODD: Final = frozenset({b"connection", b"expect", b"origin", b"transfer-encoding"})
"""Headers that most requests lack."""

OPTION_HEADERS: Final = frozenset(
    {b"traceparent", b"x-request-id", b"x-request-priority", b"x-request-timeout-ms"}
)
"""Headers by which a client sets request options."""

PASSING: Final = frozenset({b"traceparent", b"x-request-id", b"x-request-start"})
"""Headers that are new with each request."""

UNFRAMED: Final = frozenset({b"expect", b"transfer-encoding"})
"""Headers of a request whose end its headers do not determine."""


class Head(CachedHeader):
    """Everything before a request's body. Requests that repeat it byte for byte share it.

    `headers` has the `WANTED` ones in lower case; fields of one name are one list (RFC 9110 §5.3).
    `has_options` is True if it has one of `OPTION_HEADERS`. `cors` are header lines of its answers,
    for a page of another origin that may read them. `is_usual` is True unless its answers are
    written differently from most. `template` is the model servers' version of it, once it was
    needed.
    """

    __slots__ = (
        "cors",
        "has_options",
        "headers",
        "is_usual",
        "keep_alive",
        "method",
        "route",
        "target",
        "template",
        "version",
    )

    def __init__(self) -> None:
        super().__init__()
        self.method = ""
        self.target = ""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.keep_alive = True
        self.has_options = False
        self.cors = b""
        self.is_usual = True
        self.route: Route | None = None
        self.template: RequestTemplate | None = None

    @property
    def is_preflight(self) -> bool:
        """True if it is a CORS preflight request of a page that may read answers."""
        asks = b"access-control-request-method" in self.headers
        return asks and self.method == "OPTIONS" and bool(self.cors)

    def again(self, values: list[tuple[bytes, bytes]], length: int) -> "Head":
        """Return the same headers with these values, in front of a body of this length."""
        head = Head()
        head.size, head.length = self.size, length
        head.method, head.target, head.version = self.method, self.target, self.version
        head.headers = self.headers.copy()
        head.headers.update(values)
        head.keep_alive, head.has_options = self.keep_alive, self.has_options
        head.cors, head.is_usual = self.cors, self.is_usual
        head.route, head.template = self.route, self.template
        return head

    @property
    def is_framed(self) -> bool:
        """True if the headers determine where the request ends, and another one may follow."""
        return self.keep_alive and self.headers.keys().isdisjoint(UNFRAMED)

    @property
    def will_return(self) -> bool:
        """True if another request may repeat all of these headers."""
        return self.is_framed and self.headers.keys().isdisjoint(PASSING)

    def header(self, name: bytes) -> str | None:
        """Return a header's value, or None; `name` is one of `WANTED`."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class HttpRequest:
    """An HTTP request.

    `peer` is the client's address, `certificate` the verified name in its certificate.
    """

    __slots__ = ("body", "certificate", "grant", "head", "peer")

    def __init__(self, peer: str, certificate: str | None = None, head: Head | None = None) -> None:
        self.peer = peer
        self.certificate = certificate
        self.head = Head() if head is None else head
        self.body = b""
        self.grant: Grant | None = None
        """The caller's grant, from the check before the body."""

    def __repr__(self) -> str:
        head, size = self.head, len(self.body)
        return f"<Request {head.method} {head.target!r} from {self.peer}: {size} bytes>"

    def end(self) -> None:
        """Release its grant: it is answered, or will never be."""
        grant, self.grant = self.grant, None
        if grant is not None:
            grant.release()


def decoded(value: bytes) -> str:
    """Return a method or target as text; the connection pool encodes it again."""
    return _remembered(value) if len(value) <= USUAL else value.decode("latin-1")


def _decoded(value: bytes) -> str:
    return value.decode("latin-1")


_remembered: Final = lru_cache(maxsize=4096)(_decoded)
