"""What a client sent, as the gateway sees it: parsed values and opaque bytes, never raw heads."""

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
"""The headers that somebody here reads. All others are dropped, hop-by-hop ones among them."""

NAMES: Final = {spelt: name for name in WANTED for spelt in (name, name.title())}
"""How nearly everybody spells them: `X-Api-Key`, or `x-api-key` as in HTTP/2."""

USUAL: Final = 256
"""Bytes of a target that is remembered: strangers name what they like."""

ODD: Final = frozenset({b"connection", b"expect", b"origin", b"transfer-encoding"})
"""Those that most requests do without."""

OPTION_HEADERS: Final = frozenset(
    {b"traceparent", b"x-request-id", b"x-request-priority", b"x-request-timeout-ms"}
)
"""Those by which a client asks for more than an answer."""

PASSING: Final = frozenset(
    {b"expect", b"traceparent", b"transfer-encoding", b"x-request-id", b"x-request-start"}
)
"""Those of a head that will not come again, or does not tell where its request ends."""


class Head(CachedHeader):
    """What came before a request's body. Requests that repeat it to the byte share it.

    `headers` has the `WANTED` ones in lower case; fields of one name are one list (RFC 9110 §5.3).
    `has_options` if there is one of `OPTION_HEADERS`. `cors` are lines of its answers, for a page
    of another origin that may read them. `is_usual` unless its answers are written in another way
    than those of most. `template` is what model servers get of it, once that was asked for.
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
        """Whether a browser asks if a page that may read answers may send a request."""
        asks = b"access-control-request-method" in self.headers
        return asks and self.method == "OPTIONS" and bool(self.cors)

    @property
    def will_return(self) -> bool:
        """Whether another request may have this head to the byte, and tells where it ends."""
        return self.keep_alive and self.headers.keys().isdisjoint(PASSING)

    def header(self, name: bytes) -> str | None:
        """Return a header's value, or None; `name` is one of `WANTED`."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class HttpRequest:
    """One HTTP request.

    `peer` is the client's address, `certificate` the name that its certificate proved.
    """

    __slots__ = ("body", "certificate", "grant", "head", "peer")

    def __init__(self, peer: str, certificate: str | None = None, head: Head | None = None) -> None:
        self.peer = peer
        self.certificate = certificate
        self.head = Head() if head is None else head
        self.body = b""
        self.grant: Grant | None = None
        """What its caller was granted when it was screened."""

    def __repr__(self) -> str:
        head, size = self.head, len(self.body)
        return f"<Request {head.method} {head.target!r} from {self.peer}: {size} bytes>"

    def end(self) -> None:
        """Give back what it was granted: it is answered, or will never be."""
        grant, self.grant = self.grant, None
        if grant is not None:
            grant.release()


def decoded(value: bytes) -> str:
    """Return a method or target as text; the pool of connections encodes it back."""
    return _remembered(value) if len(value) <= USUAL else value.decode("latin-1")


def _decoded(value: bytes) -> str:
    return value.decode("latin-1")


_remembered: Final = lru_cache(maxsize=4096)(_decoded)
