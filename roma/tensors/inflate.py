"""Compressed request bodies."""

import zlib

from roma.tensors.errors import BodyTooLarge, RequestError

MOST = 2**32 - 1
"""Largest size assumed for a body, in bytes: gzip's size field counts no further."""

RATIO = 1032
"""Most bytes that a byte of deflate's format becomes: a trailer that says more is forged."""

_GZIP = b"\x1f\x8b"


def inflate(body: bytes, limit: int) -> bytes:
    """Return a decompressed body; raises RequestError, or BodyTooLarge beyond `limit`.

    It supports gzip, like TensorFlow Serving, and like Triton zlib's format, which HTTP calls
    deflate.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32 asks for either header
    plain, rest = _member(reader, body, limit), reader.unused_data
    while rest.startswith(_GZIP) and body.startswith(_GZIP):  # several members (RFC 1952 §2.2)
        reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
        plain += _member(reader, rest, limit - len(plain))
        rest = reader.unused_data
    if rest:
        raise RequestError(f"Malformed gzip body: {len(rest)} bytes follow its end")
    return plain


def _member(reader: "zlib._Decompress", data: bytes, limit: int) -> bytes:
    try:
        plain = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise RequestError(f"Malformed gzip body: {error}") from error
    if len(plain) > limit:
        raise BodyTooLarge
    if not reader.eof:
        raise RequestError("Malformed gzip body: it ends too early")
    return plain


def inflated_size(body: bytes, limit: int) -> int:
    """Return the decompressed size of a body, at most 2^32 - 1; at most `limit` is decompressed.

    Beyond `limit` the size is extrapolated from the ratio so far, or taken from the trailer of a
    gzip member (RFC 1952 §2.3.1). A malformed body counts with its compressed size.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = len(reader.decompress(body, limit))
    except zlib.error:
        return len(body)
    left = len(reader.unconsumed_tail)
    if reader.eof or not left:
        return plain
    size = plain * len(body) // (len(body) - left)
    if body.startswith(_GZIP):
        size = max(size, int.from_bytes(body[-4:], "little"))
    return min(size, MOST, RATIO * len(body))
