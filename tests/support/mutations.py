"""Bytes of HTTP connections that are valid, or nearly: from a seed, each one its own."""

import re

PATH = b"/v1/models/m:predict"

LINES = (
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: -1",
    b"Content-Length: 18446744073709551617",
    b"Content-Length: 99999999",
    b"Content-Length: 0x5",
    b"Content-Length: 5,5",
    b"Content-Length : 5",
    b"Content-Length:\t5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: gzip, chunked",
    b"transfer-encoding : chunked",
    b"Transfer-Encoding\x00: chunked",
    b"X: y\r\n Transfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"Host: other",
    b"Expect: 100-continue",
    b"Expect: more",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: h2c",
    b"Connection: Content-Length",
    b"X: " + b"x" * 40_000,
    b"X-Request-Id: \xff\xfe",
    b"X-Request-Id: a b",
    b"X-Request-Timeout-Ms: 0",
    b"X-Request-Timeout-Ms: 5000",
    b"X-Request-Priority: low",
    b"traceparent: 00-zz",
    b"\x00: x",
    b": nameless",
    b"no colon",
)
NUMBERS = (
    b"0",
    b"-5",
    b"+5",
    b"5 ",
    b"ffffffffffffffffff",
    b"99999999999999999999999",
    b"0x1f",
    b"",
)
SCRAPS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"\xff",
    b"\r\n\r\n",
    b";",
)
MARK = b"SMUGGLED"


def connection(random, name):
    """Return what a client sends on one connection, and whether all of it is valid."""
    stream = b"".join(_request(random, b"%s.%d" % (name, i)) for i in range(random.randint(1, 4)))
    if random.random() < 0.25:
        return stream, True
    for _ in range(random.randint(1, 3)):
        stream = random.choice(MUTATIONS)(random, stream) or b"\r\n"
    return stream, False


def pieces(random, stream):
    """Cut a stream where a network might."""
    if random.random() < 0.3:
        return [stream]
    cuts = sorted(random.randint(0, len(stream)) for _ in range(random.randint(1, 8)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def _request(random, name):
    body = b'{"instances": ["%s"]}' % name + b" " * random.choice((0, 0, 7, 3000))
    if random.random() < 0.2:  # a request within a body
        body += b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n%s" % (PATH, MARK)
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % PATH
    if random.random() < 0.3:
        head += b"X-Request-Id: %s\r\n" % name
    if random.random() < 0.5:
        return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(random, body)


def _chunked(random, body):
    out = b""
    while body:
        size = random.choice((1, 5, 1000))
        data, body = body[:size], body[size:]
        extension = random.choice((b"", b"", b";a=b", b';a="b c"'))
        out += b"%x%s\r\n%s\r\n" % (len(data), extension, data)
        if len(out) > 20_000:  # enough of small ones
            out, body = out + b"%x\r\n%s\r\n" % (len(body), body) if body else out, b""
    return out + b"0\r\n" + random.choice((b"", b"Trailer: x\r\n")) + b"\r\n"


def _flip(random, stream):
    at = random.randrange(len(stream))
    return stream[:at] + bytes([random.randrange(256)]) + stream[at + 1 :]


def _insert(random, stream):
    at = random.randrange(len(stream))
    return stream[:at] + random.choice(SCRAPS) + stream[at:]


def _drop(random, stream):
    at = random.randrange(len(stream))
    return stream[:at] + stream[at + random.randint(1, 20) :]


def _repeat(random, stream):
    at, end = sorted(random.randrange(len(stream)) for _ in range(2))
    return stream[:end] + stream[at:]


def _truncate(random, stream):
    return stream[: random.randrange(1, len(stream) + 1)]


def _line(random, stream):
    """Put a field where one could stand: behind any line."""
    ends = [at for at in range(len(stream)) if stream.startswith(b"\r\n", at)]
    if not ends:
        return stream
    at = random.choice(ends)
    return stream[:at] + b"\r\n" + random.choice(LINES) + stream[at:]


def _number(random, stream):
    """Change a length: of a body, or of a chunk."""
    found = list(re.finditer(rb"(?<=Content-Length: )\d+|(?<=\r\n)[0-9a-f]+(?=[;\r])", stream))
    if not found:
        return stream
    match = random.choice(found)
    new = random.choice((*NUMBERS, b"%d" % random.randrange(60)))
    return stream[: match.start()] + new + stream[match.end() :]


def _cheap(random, stream):
    """Put requests between that are answered at once."""
    cheap = random.choice(
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /no HTTP/1.1\r\nHost: x\r\n\r\n")
    )
    at = stream.find(b"POST ", random.randrange(len(stream)))
    return stream[:at] + cheap * random.choice((1, 3, 300)) + stream[at:] if at >= 0 else stream


def _ends(random, stream):
    return stream.replace(b"\r\n", b"\n", random.randint(1, 5))


def _garbage(random, stream):
    at = random.randrange(len(stream))
    return stream[:at] + random.randbytes(random.randint(1, 200)) + stream[at:]


MUTATIONS = (
    _flip, _insert, _drop, _repeat, _truncate, _line, _line, _line, _number, _number, _ends, _garbage, _cheap
)  # fmt: skip
