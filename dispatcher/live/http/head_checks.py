"""Objections to a request's head: input that two servers could read differently, or too large."""

from typing import Final

import httptools

from dispatcher.live.http import routes
from dispatcher.live.http.connections import Bounds, Connections
from dispatcher.live.http.origins import FOREIGN, MALFORMED, OK, Origins
from dispatcher.live.http.request import Head, decoded

MOST_DIGITS: Final = 20
"""Most digits of a length, leading zeros among them."""

VERSIONS: Final = frozenset({"1.0", "1.1"})

Objection = tuple[int, str]
"""Status and reason."""

_RARE: Final = frozenset({"CONNECT", "HEAD"})
"""Methods that need a second check."""

BAD_LINE: Final = 400, "Malformed request: a request line is METHOD SP TARGET SP HTTP/1.1"

UPGRADE: Final = 501, "Upgrade: only HTTP/1.1 is known"
"""Objection to an offer of another protocol, which can be taken out (`Cursor.repeat`)."""


def objection(
    head: Head,
    parser: httptools.HttpRequestParser,
    server: Connections,
    size: int,
    *,
    is_odd: bool,
) -> Objection | None:
    """Return the objection to a head of `size` bytes, or None; complete the head.

    `is_odd`: it has headers that most requests lack.
    """
    bounds, origins = server.bounds, server.origins
    is_large = size > bounds.head_bytes
    if not is_odd and not is_large and _is_plain(head, origins, bounds.length_digits):
        return None
    if b"host" not in head.headers or is_odd or not head.keep_alive:
        head.version = parser.get_http_version()  # it formats a new text each time
    foreign = origin_objection(head, origins)  # a page that may read answers reads refusals, too
    head.is_usual = head.method != "HEAD" and head.version != "1.0" and not head.cors
    if is_large:
        return bounds.large_head()
    return _framing_objection(head, parser, origins, bounds) or foreign


def _is_plain(head: Head, origins: Origins, length_digits: int) -> bool:
    """Return True if there is no objection to a head without unusual headers."""
    headers = head.headers
    host, length = headers.get(b"host"), headers.get(b"content-length")
    if host is None or head.method in _RARE or origins.host(host) != OK:
        return False
    if not head.keep_alive:  # the default of another version than 1.1
        return False
    return length is None or len(length) < length_digits


def _framing_objection(  # noqa: PLR0911 - one each
    head: Head, parser: httptools.HttpRequestParser, origins: Origins, bounds: Bounds
) -> Objection | None:
    headers = head.headers
    if head.version not in VERSIONS:
        # A proxy may have read such a line as HTTP/0.9, which has no headers.
        return 400, f"Malformed request: HTTP/{head.version}: only 1.0 and 1.1 are known"
    malformed = host_objection(head, origins)
    if malformed is not None:
        return malformed
    # The parser takes no body of these two, and treats what follows as another protocol.
    if head.method == "CONNECT":
        return 501, "CONNECT: this is no proxy"
    if b"connection" in headers and parser.should_upgrade():
        return UPGRADE
    coding = headers.get(b"transfer-encoding", b"chunked").lower()
    if coding != b"chunked" or (b"transfer-encoding" in headers and head.version == "1.0"):
        return 501, f"Transfer-Encoding: {decoded(coding)}: only chunked is known"
    length = headers.get(b"content-length", b"0")
    # int() raises ValueError for thousands of digits, though they be zeros.
    if len(length) > MOST_DIGITS or int(length) > bounds.max_body_bytes:
        return bounds.large_body()
    expected = headers.get(b"expect", b"100-continue")
    if expected.lower() != b"100-continue":
        return 417, f"Expect: {decoded(expected)}: only 100-continue is known"
    return None


def host_objection(head: Head, origins: Origins) -> Objection | None:
    """Return the objection to a request without exactly one well-formed Host (RFC 9112 §3.2)."""
    host = head.headers.get(b"host", b"" if head.version == "1.0" else b",")
    if origins.host(host) == MALFORMED:
        return 400, "Malformed request: exactly one Host is needed, NAME or NAME:PORT"
    return None


def origin_objection(head: Head, origins: Origins) -> Objection | None:
    """Return the objection to a host name that is not ours, or to a page of another site.

    The page of an origin that may read answers gets the header lines for it in `head.cors`.
    """
    host, origin = head.headers.get(b"host", b""), head.headers.get(b"origin")
    if origins.host(host) == FOREIGN and not routes.is_open(head.target):
        bound = "must be an address, localhost or one of gateway.names"
        return 421, f"Host: {decoded(host)}: {bound}"
    if origin is not None:
        lines = origins.cors(origin)
        if lines is None:
            return 403, f"Origin: {decoded(origin)}: gateway.cors_origins lists those that may"
        head.cors = lines
    return None
