"""Responses: JSON bodies and errors, and their bytes with headers that many responses share."""

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import orjson

from dispatcher.live.http.messages import Response
from dispatcher.live.http.request import Head
from roma.domain import units

JSON: Final = "application/json"

LARGE: Final = 64 * 1024
"""Bytes. A larger body is not copied behind its headers."""

_BODILESS: Final = frozenset({204, 304})
"""Statuses without a body, and without a Content-Length (RFC 9110 §8.6)."""

_REASON: Final = {status.value: status.phrase for status in HTTPStatus}


def json_response(status: int, body: object) -> Response:
    """Return a response with a JSON body."""
    return Response(status, JSON, None, orjson.dumps(body))


def error(
    status: int, message: str, *, retry_after: float | None = None, close: bool = False
) -> Response:
    """Return an error in TensorFlow Serving's format."""
    # A text that quotes the request may contain invalid UTF-8.
    body = orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
    more = "" if retry_after is None else f"Retry-After: {units.retry_after_s(retry_after)}\r\n"
    return Response(status, JSON, None, body, more, close=close)


def written(
    response: Response, head: Head, *, date: bytes, keep_alive: bool
) -> tuple[bytes, bytes]:
    """Return the header bytes and the body of the answer to a request with this `head`.

    `date` is what `date_line` returns. The common part of answers of the same kind is kept in
    `response.template`.
    """
    connection = ""
    if not keep_alive:
        connection = "Connection: close\r\n"
    elif head.version == "1.0":
        connection = "Connection: keep-alive\r\n"
    body = response.body
    lines = _lines(response.status, response.content_type, response.content_encoding, connection)
    if head.cors:
        lines += head.cors
    if response.status in _BODILESS:
        body = b""
    else:
        lines += b"Content-Length: %d\r\n" % len(body)
    template = response.template
    if template is not None and head.is_usual and not connection and len(body) <= LARGE:
        template.lines = lines
    if response.more:
        lines = with_more(lines, response.more)
    return lines + date, b"" if head.method == "HEAD" else body


def with_more(lines: bytes, more: str) -> bytes:
    """Return header lines with these at their end."""
    return lines + more.encode("latin-1", "replace")


def date_line() -> bytes:
    """Return the last line of a head, the date (RFC 9110 §6.6.1), and the empty line behind it."""
    return f"Date: {formatdate(usegmt=True)}\r\n\r\n".encode("ascii")


def _encoded_lines(
    status: int, content_type: str, content_encoding: str | None, connection: str
) -> bytes:
    """Return the header lines that many answers share."""
    encoding = f"Content-Encoding: {content_encoding}\r\n" if content_encoding else ""
    return (
        f"HTTP/1.1 {status} {_REASON.get(status, '')}\r\n"
        f"Content-Type: {content_type}\r\n{encoding}{connection}"
    ).encode("latin-1", "replace")


_lines: Final = lru_cache(maxsize=1024)(_encoded_lines)  # model servers may send any type
