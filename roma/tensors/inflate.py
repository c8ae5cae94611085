"""Compressed request bodies."""

import zlib

from roma.tensors.errors import BodyTooLarge, RequestError

MOST = 2**32 - 1
"""Largest size assumed for a body, in bytes: gzip's size field counts no further."""

RATIO = 1032
"""Most bytes that a byte of deflate's format becomes: a trailer that says more is forged."""

PIECE = 2**16
"""Bytes that are decompressed at once: what follows a member in them is copied."""

MEMBERS = 4096
"""Most members of a gzip body (RFC 1952 §2.2); bgzip makes one of 64 KiB."""

LOOKS = 64
"""Most pieces and members that are read to learn a body's size."""

_GZIP = b"\x1f\x8b"


def is_compressed(coding: str | None) -> bool:
    """Return True if a body with this Content-Encoding is in a format that `inflate` supports.

    TensorFlow Serving reads every value that contains "gzip" as gzip: x-gzip, which is the same
    (RFC 9110 §8.4.1.3), and a list of codings.
    """
    return coding is not None and (coding.lower() == "deflate" or "gzip" in coding.lower())


def inflate(body: bytes, limit: int) -> bytes:
    """Return a decompressed body; raises RequestError, or BodyTooLarge beyond `limit`.

    It supports gzip, like TensorFlow Serving, and like Triton zlib's format, which HTTP calls
    deflate.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32 asks for either header
    parts, size, at, members = [], 0, 0, 1
    while at < len(body):
        piece = body[at : at + PIECE]
        try:
            part = reader.decompress(piece, limit - size + 1)
        except zlib.error as error:
            raise RequestError(f"Malformed gzip body: {error}") from error
        parts.append(part)
        size += len(part)
        if size > limit:
            raise BodyTooLarge
        at += len(piece) - len(reader.unused_data)
        if reader.eof and at < len(body):
            if not (body.startswith(_GZIP) and body.startswith(_GZIP, at)):
                raise RequestError(f"Malformed gzip body: {len(body) - at} bytes follow its end")
            if members == MEMBERS:
                raise RequestError(f"Malformed gzip body: it has more than {MEMBERS} members")
            reader, members = zlib.decompressobj(zlib.MAX_WBITS | 16), members + 1
    if not reader.eof:
        raise RequestError("Malformed gzip body: it ends too early")
    return b"".join(parts)


def inflated_size(body: bytes, limit: int) -> int:
    """Return the decompressed size of a body, at most 2^32 - 1; at most `limit` is decompressed.

    Beyond `limit` the size is extrapolated from the ratio so far, or taken from the trailer of a
    gzip member (RFC 1952 §2.3.1). A malformed body counts with its compressed size.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    size = at = 0
    for _ in range(LOOKS):
        piece = body[at : at + PIECE]
        try:
            size += len(reader.decompress(piece, limit - size))
        except zlib.error:
            return len(body)
        at += len(piece) - len(reader.unused_data) - len(reader.unconsumed_tail)
        if at == len(body) or (reader.eof and not body.startswith(_GZIP, at)):
            return size
        if size >= limit:
            break
        if reader.eof:
            reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    size = max(size * len(body) // max(at, 1), len(body))
    if body.startswith(_GZIP):
        size = max(size, int.from_bytes(body[-4:], "little"))
    return min(size, MOST, RATIO * len(body))
