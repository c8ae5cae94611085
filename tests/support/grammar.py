"""HTTP/1.1 requests by the letter of RFC 9112: what a server may take from a connection's bytes.

Written from the grammar and not from any parser: it is what a fuzzer compares one with. It knows
no leniency, so whatever the gateway passes on must have been read here in the same way.
"""

import re
from dataclasses import dataclass

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# §2.2: empty lines before a request line. The gateway's parser takes a lone CR for one: the only
# liberty here, and it moves no boundary.
EMPTY = re.compile(rb"[\r\n]*")
LINE = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])\r\n" % TOKEN)  # §3
FIELD = re.compile(rb"(%s):[ \t]*([\t -~\x80-\xff]*)\r\n" % TOKEN)  # §5
CHUNK = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[\t -~\x80-\xff]*)?\r\n")  # §7.1
LENGTH = re.compile(rb"[0-9]+")


@dataclass(frozen=True)
class Read:
    """A request."""

    method: bytes
    target: bytes
    body: bytes


class _Wrong(Exception):
    """What follows is no request, or not a whole one."""


def accepted(stream: bytes) -> list[Read]:
    """Return the requests in a connection's bytes, up to the first one that is none."""
    found, at, goes_on = [], 0, True
    try:
        while goes_on:
            request, at, goes_on = _request(stream, at)
            found.append(request)
    except _Wrong:
        pass
    return found


def _request(stream, at):
    at = EMPTY.match(stream, at).end()
    line = _next(LINE, stream, at)
    fields, at = _fields(stream, line.end())
    minor = int(line[3])
    if len(fields.get(b"host", ())) != 1 and (minor or b"host" in fields):
        raise _Wrong  # §3.2
    body, at = _body(stream, at, fields, minor)
    options = {o.strip() for o in b",".join(fields.get(b"connection", ())).lower().split(b",")}
    goes_on = b"close" not in options and (minor == 1 or b"keep-alive" in options)
    return Read(line[1], line[2], body), at, goes_on


def _fields(stream, at):
    fields = {}
    while stream[at : at + 2] != b"\r\n":
        field = _next(FIELD, stream, at)
        fields.setdefault(field[1].lower(), []).append(field[2].rstrip(b" \t"))
        at = field.end()
    return fields, at + 2


def _body(stream, at, fields, minor):
    codings, lengths = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if codings is not None:  # §6.1: with a length, or of HTTP/1.0, it is an attack
        if [c.lower() for c in codings] != [b"chunked"] or lengths is not None or not minor:
            raise _Wrong
        return _chunks(stream, at)
    if lengths is None:
        return b"", at
    if len(lengths) != 1 or not LENGTH.fullmatch(lengths[0]):
        raise _Wrong  # §6.3
    return _exactly(stream, at, int(lengths[0]))


def _chunks(stream, at):
    body = b""
    while True:
        size = _next(CHUNK, stream, at)
        if not (length := int(size[1], 16)):
            _, at = _fields(stream, size.end())  # trailers
            return body, at
        data, at = _exactly(stream, size.end(), length)
        if stream[at : at + 2] != b"\r\n":
            raise _Wrong
        body, at = body + data, at + 2


def _exactly(stream, at, length):
    if len(stream) - at < length:
        raise _Wrong
    return stream[at : at + length], at + length


def _next(pattern, stream, at):
    match = pattern.match(stream, at)
    if match is None:
        raise _Wrong
    return match
