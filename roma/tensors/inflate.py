"""Compressed request bodies."""

import zlib

from roma.tensors.errors import BodyTooLarge, RequestError

MOST = 2**32 - 1
"""Largest size assumed for a body, in bytes: gzip's size field counts no further."""


def inflate(body: bytes, limit: int) -> bytes:
    """Return a decompressed body; raises RequestError, or BodyTooLarge beyond `limit`.

    It supports gzip, like TensorFlow Serving, and like Triton zlib's format, which HTTP calls
    deflate.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32 asks for either header
    try:
        plain = reader.decompress(body, limit + 1)
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
    if body.startswith(b"\x1f\x8b"):
        size = max(size, int.from_bytes(body[-4:], "little"))
    return min(size, MOST)
