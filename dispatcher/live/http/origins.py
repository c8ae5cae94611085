"""Browser origins: checks the Host that a request was sent to, and its Origin.

A page of another site can point a host name of its own at this machine (DNS rebinding), or send a
POST whose answer it will not see. Where nothing else authenticates callers (no key, no provider, no
TLS) and only this machine reaches the port, its user's browser would give every site access. So
host names that were not configured are refused there with 421, and pages of other sites with 403.
Addresses are not names: no foreign page is at one of ours. Verdicts are cached by their bytes, and
looked up where headers are parsed, not for each request.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

OK: Final = 0
MALFORMED: Final = 400
FOREIGN: Final = 421

MOST: Final = 1024
"""Values of Host or Origin that are cached, …"""

LONGEST: Final = 256
"""… of at most so many bytes: clients may send any text."""

HEADERS: Final = (
    "Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length, X-API-Key, "
    "X-Request-Id, X-Request-Timeout-Ms, X-Request-Soft-Timeout-Ms, X-Request-Start, "
    "X-Request-Priority, X-Roma-Variant, X-Roma-Min-Accuracy, traceparent, tracestate"
)
"""Headers that pages may send."""

PREFLIGHT: Final = (
    "Access-Control-Allow-Methods: GET, POST\r\n"
    f"Access-Control-Allow-Headers: {HEADERS}\r\n"
    "Access-Control-Max-Age: 600\r\n"
)
"""Header lines of the answer to a CORS preflight (Fetch §3.2)."""

_EXPOSED: Final = (
    b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After, X-Request-Id, "
    b"X-Roma-Variant\r\n"
)
_HOST: Final = re.compile(rb"(\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._~%!$&'()*+;=-]*)(?::[0-9]*)?")
"""uri-host [":" port] (RFC 9112 §3.2), except for the comma: two values of one field are a list."""


class Origins:
    """Checks Host and Origin. `names` are ours; without `is_guarded` all others pass, too."""

    __slots__ = ("_any", "_known_host", "_known_lines", "_listed", "_names", "is_guarded")

    def __init__(
        self, names: Iterable[str] = (), cors: Iterable[str] = (), *, is_guarded: bool = False
    ) -> None:
        self.is_guarded = is_guarded
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._listed = frozenset(cors)
        self._any = "*" in self._listed
        self._known_host = lru_cache(maxsize=MOST)(self._host)
        self._known_lines = lru_cache(maxsize=MOST)(self._lines)

    def host(self, value: bytes) -> int:
        """Return OK, or the status that refuses a Host."""
        return self._known_host(value) if len(value) <= LONGEST else self._host(value)

    def cors(self, origin: bytes) -> bytes | None:
        """Return the header lines of answers to a page of this origin; None if it is refused."""
        return self._known_lines(origin) if len(origin) <= LONGEST else self._lines(origin)

    def _host(self, value: bytes) -> int:
        match = _HOST.fullmatch(value)
        if match is None:
            return MALFORMED
        name = match[1].decode().strip("[]")
        if not self.is_guarded or not name or self._is_ours(name) or _address(name) is not None:
            return OK
        return FOREIGN

    def _is_ours(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost") or name in self._names

    def _lines(self, origin: bytes) -> bytes | None:
        text = origin.decode("latin-1")
        if self._any:
            return b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        if text in self._listed:
            allow = b"Access-Control-Allow-Origin: " + origin + b"\r\nVary: Origin\r\n"
            return allow + _EXPOSED
        if not self.is_guarded or self._is_local(text):
            return b""
        return None

    def _is_local(self, origin: str) -> bool:
        """Return True if a page is on this machine, or at one of our names."""
        match = _HOST.fullmatch(origin.partition("://")[2].encode("latin-1"))
        if match is None:
            return False
        name = match[1].decode().strip("[]")
        address = _address(name)
        return self._is_ours(name) if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
