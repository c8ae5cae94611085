"""Heads of which a few values are new each time: read as the parser reads them, without it."""

from random import Random

import pytest

from dispatcher.live.http.header_cache import MAX_CONSECUTIVE_MISSES, HeaderCache
from tests.support.http1 import HEAD, Echo, opened, post, serve, talk
from tests.support.mutations import MUTATIONS

NEEDED = 3
"""Messages that the parser sees before a pattern is known: two tell that heads do not repeat."""


def trace(random, body=b"[1]", *lines):
    context = b"traceparent: 00-%032x-%016x-01" % (random.getrandbits(128), random.getrandbits(64))
    request = b"X-Request-Id: %08x" % random.getrandbits(32)
    other = b"X-Amzn-Trace-Id: Root=1-%08x" % random.getrandbits(32)
    return post(body, b"Content-Type: application/json", context, request, other, *lines)


def feed(reads, monkeypatch=None):
    """Return the server, and how many of the reads the parser saw."""
    server, parsed = serve(Echo()), []
    one, _ = opened(server)

    class Parser:
        def __init__(self, parser):
            self.parser = parser

        def __getattr__(self, name):
            return getattr(self.parser, name)

        def feed_data(self, data):
            parsed.append(data)
            self.parser.feed_data(data)

    one._parser = Parser(one._parser)
    for data in reads:
        one.data_received(data)
    one.connection_lost(None)
    return server, len(parsed)


async def test_new_traces_need_no_parser():
    random = Random(1)
    reads = [trace(random, b"[%03d]" % i) for i in range(50)]
    server, parsed = feed(reads)
    assert parsed == NEEDED
    assert [seen[-1] for seen in server.handler.seen] == [b"[%03d]" % i for i in range(50)]
    sent = [line.partition(b": ") for read in reads for line in read.split(b"\r\n")]
    for name in (b"traceparent", b"x-request-id"):
        seen = [headers[name] for _, _, _, headers, _ in server.handler.seen]
        assert seen == [value for key, _, value in sent if key.lower() == name]


async def test_a_body_of_another_length_is_a_value_like_others():
    random = Random(2)
    reads = [trace(random, b"x" * random.randint(10, 99)) for _ in range(50)]
    server, parsed = feed(reads)
    assert parsed <= NEEDED + 1
    assert [len(seen[-1]) for seen in server.handler.seen] == [
        len(read.partition(b"\r\n\r\n")[2]) for read in reads
    ]


async def test_a_second_line_that_begins_to_vary_is_learnt():
    random = Random(3)
    reads = [trace(random) for _ in range(5)]
    reads += [trace(random, b"[1]", b"X-Attempt: %d" % (i % 10)) for i in range(20)]
    _, parsed = feed(reads)
    assert parsed <= 2 * NEEDED


@pytest.mark.parametrize(
    "line",
    [b"Host: %s", b"Authorization: Bearer %s", b"Origin: http://%s", b"X-Request-Priority: %s",
     b"Content-Type: %s", b"X-API-Key: %s", b"Upgrade: %s", b"TE: %s", b"X-Roma-Variant: %s"],
)  # fmt: skip
async def test_what_decides_anything_is_parsed_each_time(line):
    reads = [HEAD.replace(b"Host: x\r\n", b"") + (line % (b"a%d" % (i % 10))) + b"\r\nX-Request-Id: %d"
             b"\r\nContent-Length: 2\r\n\r\n{}" % i for i in range(10, 40)]  # fmt: skip
    if not line.startswith(b"Host"):
        reads = [read.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nHost: x\r\n") for read in reads]
    answered, closed = talk(serve(Echo()), reads)
    without = talk(serve(Echo()), reads, forgets=True)
    assert (answered, closed) == without
    _, parsed = feed(reads)
    assert parsed == len(reads) or closed


async def test_whoever_never_repeats_costs_nothing_for_long():
    reads = [post(b"{}", b"X-%d: 1" % i) for i in range(200)]
    one, _ = opened(serve(Echo()))
    for data in reads:
        one.data_received(data)
    assert one._known.pattern._streak.misses > MAX_CONSECUTIVE_MISSES
    assert one._known.pattern._lines == ()
    one.connection_lost(None)


async def test_new_bounds_are_those_of_the_next_request():
    random = Random(4)
    server = serve(Echo())
    one, transport = opened(server)
    for _ in range(6):
        one.data_received(trace(random, b"[10]"))
    server.heads = HeaderCache()  # as Connections does with new limits
    server.bounds.max_body_bytes, server.bounds.length_digits = 2, 1
    one.data_received(trace(random, b"[10]"))
    assert b"HTTP/1.1 413 " in transport.written
    one.connection_lost(None)


@pytest.mark.parametrize("seed", range(8))
async def test_any_next_message_is_what_the_parser_makes_of_it(seed):
    random = Random(seed)
    with_memory, without = serve(Echo()), serve(Echo())
    for _ in range(250):
        reads = [trace(random, b"[%d]" % random.randint(1, 30)) for _ in range(4)]
        odd = trace(random)
        for _ in range(random.randint(0, 2)):
            odd = random.choice(MUTATIONS)(random, odd) or b"\r\n"
        reads += [odd, trace(random)]
        if random.random() < 0.2:
            reads[-2:] = [b"".join(reads[-2:])]
        assert talk(with_memory, reads) == talk(without, reads, forgets=True), reads
    assert with_memory.handler.seen == without.handler.seen
    assert with_memory.buffered == without.buffered == 0


@pytest.mark.parametrize("byte", [b" ", b"\t", b"\r", b"\n", b"\0", b"\x7f", b"\xff"])
@pytest.mark.parametrize("at", [0, 3, 7])
async def test_a_value_with_another_byte_goes_to_the_parser(byte, at):
    random = Random(5)
    reads = [trace(random) for _ in range(6)]
    place = reads[-1].index(b"X-Request-Id: ") + len(b"X-Request-Id: ") + at
    reads.append(reads[-1][:place] + byte + reads[-1][place + 1 :])
    assert talk(serve(Echo()), reads) == talk(serve(Echo()), reads, forgets=True)
    assert feed(reads)[1] == NEEDED + 1


@pytest.mark.parametrize("length", [b"+3", b"3 ", b" 3", b"0x", b"1_", b"\xb2\xb2", b"99"])
async def test_a_length_is_digits_and_that_of_the_body(length):
    random = Random(6)
    reads = [trace(random, b"[%02d]" % i + b" " * i) for i in range(6, 12)]
    reads.append(trace(random, b"[12]" + b" " * 12).replace(b"Length: 16", b"Length: " + length))
    assert talk(serve(Echo()), reads) == talk(serve(Echo()), reads, forgets=True)


@pytest.mark.parametrize("name", [b"X-Request-Id", b"traceparent", b"tracestate"])
async def test_lines_of_one_name_are_one_list(name):
    reads = [
        post(b"{}", name + b": a%d" % (i % 10), b"X: y", name.lower() + b": b%d" % (i % 7))
        for i in range(20)
    ]
    with_memory, without = serve(Echo()), serve(Echo())
    assert talk(with_memory, reads) == talk(without, reads, forgets=True)
    assert with_memory.handler.seen == without.handler.seen


async def test_a_body_over_the_bound_is_refused_by_its_length():
    random, server = Random(7), serve(Echo())
    server.bounds.max_body_bytes, server.bounds.length_digits = 150, 3
    reads = [trace(random, b"x" * size) for size in (110, 120, 130, 140, 150, 151)]
    said, closed = talk(server, reads)
    assert said.count(b"HTTP/1.1 200 ") == 5
    assert b"HTTP/1.1 413 " in said
    assert closed
