"""Compressed request bodies."""

import zlib

from roma.tensors.errors import BodyTooLarge, RequestError

MOST = 2**32 - 1
"""Bytes that a body is taken to hold at most: gzip counts no further."""


def inflate(body: bytes, limit: int) -> bytes:
    """Return what a compressed body holds; raises RequestError, or BodyTooLarge beyond `limit`.

    Like TensorFlow Serving it knows gzip, and like Triton zlib's format, which HTTP calls deflate.
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
    """Return how many bytes a compressed body holds, at most 2^32 - 1; it is read up to `limit`.

    Beyond that it is taken to go on as it began, or to be as long as the end of a gzip member says
    (RFC 1952 §2.3.1). A malformed one has the size that it has.
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
