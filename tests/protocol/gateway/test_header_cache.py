"""Heads that are remembered: whoever repeats one is understood as the parser would understand it.

The parser is the oracle: what is read with a memory must be what is read without one.
"""

import asyncio
from random import Random

import pytest

from dispatcher.live.backends.http_client import MOST_ANSWER, Pool
from dispatcher.live.backends.http_connection import BackendConnection as Behind
from dispatcher.live.http.connection import LARGE
from dispatcher.live.http.header_cache import (
    CACHE_SIZE,
    MAX_CONSECUTIVE_MISSES,
    MAX_HEADER_BYTES,
    RECHECK_EVERY,
    CachedHeader,
    HeaderCache,
    MissStreak,
)
from dispatcher.live.http.messages import Response, ResponseTemplate, request_template
from tests.support.http1 import HEAD, Echo, Transport, opened, post, serve, talk
from tests.support.mutations import LINES, connection, pieces

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def answer(body, *lines):
    more = b"".join(line + b"\r\n" for line in lines)
    return ANSWER + more + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_requests_are_what_the_parser_makes_of_them(seed, waits):
    with_memory, without = serve(Echo(waits)), serve(Echo(waits))
    random = Random(seed)
    for _ in range(150):
        # One name for all: their heads repeat themselves, whole ones and broken ones.
        stream, _ = connection(random, b"c")
        heard = [stream] if random.random() < 0.7 else pieces(random, stream)
        # Each piece on a connection of its own too: what was not a beginning must not become one.
        for reads in (heard, heard, *([piece] for piece in heard)):
            said = talk(with_memory, reads)
            assert said == talk(without, reads, forgets=True), reads
    assert with_memory.handler.seen == without.handler.seen
    assert with_memory.buffered == without.buffered == 0


def read(reads, pool, *, forgets=False):
    """Return what a model server's connection made of these reads, and whether it was closed."""
    transport, ended = Transport(), []
    one = Behind(pool)
    one.connection_made(transport)
    for data in reads:
        if forgets:
            pool.kinds = HeaderCache()
        if not transport.closed:
            if len(pool._idle):
                pool._idle.remove(one)
            if one._done is None:
                one.send(b"", b"", ended.append, 60, MOST_ANSWER)
            one.data_received(data)
    one.connection_lost(None)
    return ended, transport.closed


def told(reads, pool=None):
    """Return the same in words; without a pool nothing is remembered."""
    ended, closed = read(reads, pool or Pool("::1", 1), forgets=pool is None)
    return [_told(result) for result in ended], closed


def _told(result):
    if isinstance(result, Response):
        kind = result.content_type, result.content_encoding, result.more
        return result.status, *kind, result.body
    return type(result), str(result)


BROKEN = (
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"{}"),
    ANSWER + b"\r\nuntil the end",
    ANSWER + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ANSWER + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    answer(b"{}", b"Connection: close"),
    answer(b"{}").replace(b"1.1", b"1.0"),
    answer(b"{}")[:-1],
    answer(b"{}") + b"\r\n",
    answer(b"{}") + b"H",
    answer(b"{}") + answer(b"{}"),
    answer(b"{}").replace(b"\r\n", b"\n"),
    answer(b"\r\n\r\n"),
    *(answer(b"a%d" % i, line) for i, line in enumerate(LINES)),
)


@pytest.mark.parametrize("seed", range(4))
async def test_answers_are_what_the_parser_makes_of_them(seed):
    random, pool = Random(seed), Pool("::1", 1)
    pool.kinds = HeaderCache()
    for _ in range(400):
        good = [answer(b"[%d]" % random.randint(1, 20)) for _ in range(random.randint(0, 3))]
        reads = [*good, random.choice(BROKEN), answer(b"[1]")]
        if random.random() < 0.5:
            reads = pieces(random, b"".join(reads))
        for heard in (reads, *([piece] for piece in reads)):
            assert told(heard, pool) == told(heard), heard


async def test_a_second_answer_ends_the_connection_however_little_of_it_came():
    for more in (b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", answer(b"2")):
        ended, closed = read([answer(b"1") + more], Pool("::1", 1))
        assert [result.body for result in ended] == [b"1"]
        assert closed


async def test_an_answer_of_a_known_head_needs_no_parser():
    pool = Pool("::1", 1)
    pool.kinds = HeaderCache()
    length = b"Inference-Header-Content-Length: 1"
    ended, _ = read([answer(b"[1]", length), answer(b"[2]", length)], pool)
    assert [result.body for result in ended] == [b"[1]", b"[2]"]
    assert [result.template is None for result in ended] == [True, False]
    assert ended[0].more == ended[1].more == length.decode() + "\r\n"


async def test_clients_get_what_an_answer_says_beside_what_its_like_have_in_common():
    server = serve(Echo(waits=True))
    kind = ResponseTemplate(Response(200, "text/plain", None, b"[1]"))

    def answered(*lines, more="", version=b"1.1"):
        one, transport = opened(server)
        one.data_received(post(b"{}", *lines).replace(b"HTTP/1.1", b"HTTP/" + version))
        one.respond(Response(200, "text/plain", None, b"[1]", more, template=kind))
        one.connection_lost(None)
        return transport.written

    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    end = b"Content-Length: 3\r\n" + server.date + b"[1]"
    named = plain + b"Content-Length: 3\r\nX-Request-Id: 7\r\n" + server.date + b"[1]"
    assert answered(b"Connection: close") == plain + b"Connection: close\r\n" + end
    kept = answered(b"Connection: keep-alive", version=b"1.0")
    assert kept == plain + b"Connection: keep-alive\r\n" + end
    for _ in range(2):
        assert answered(more="X-Request-Id: 7\r\n") == named
        assert answered() == plain + end


async def test_the_answer_to_head_has_no_body_however_well_it_is_known():
    server = serve(Echo(waits=True))
    kind = ResponseTemplate(Response(200, "text/plain", None, b"[1]"))
    for method in (b"POST", b"HEAD"):
        one, transport = opened(server)
        one.data_received(post(b"").replace(b"POST", method))
        one.respond(Response(200, "text/plain", None, b"[1]", template=kind))
        one.connection_lost(None)
    assert transport.written.endswith(b"Content-Length: 3\r\n" + server.date)


async def test_a_large_answer_is_written_in_pieces_however_often_it_comes():
    server, body = serve(Echo(waits=True)), b"x" * 100_000
    kind = ResponseTemplate(Response(200, "text/plain", None, body))
    for _ in range(2):
        one, transport = opened(server)
        one.data_received(post(b"{}"))
        one.respond(Response(200, "text/plain", None, body, template=kind))
        assert transport.written.endswith(body)
        assert transport.largest <= LARGE
        one.connection_lost(None)


async def test_a_head_is_remembered_with_the_first_request_that_has_it():
    server = serve(Echo())
    talk(server, [post(b"[1]")])
    head = server.heads.of(post(b"[2]"), MissStreak())
    assert (head.method, head.target) == ("POST", "/v1/models/m:predict")
    assert (head.size, head.length) == (len(post(b"")), 3)
    for other in (post(b"[22]"), post(b"[2]") + b"G", post(b"[2]")[:-1], post(b"[2]", b"X: y")):
        assert server.heads.of(other, MissStreak()) is None
    for guess in (1, len(post(b"")), 1000):
        habit = MissStreak()
        habit.size = guess
        assert server.heads.of(post(b"[2]"), habit) is head
    talk(server, [post(b"[3]"), post(b"[4]")])
    assert [seen[-1] for seen in server.handler.seen] == [b"[1]", b"[3]", b"[4]"]
    assert all(seen[3] is head.headers for seen in server.handler.seen)


@pytest.mark.parametrize(
    "read",
    [
        post(b"[1]", b"X-Request-Id: 7"),
        post(b"[1]", b"traceparent: 00-1"),
        post(b"[1]", b"X-Request-Start: t=1"),
        post(b"[1]", b"Expect: 100-continue"),
        post(b"[1]", b"Connection: close"),
        post(b"[1]", b"X: " + b"y" * MAX_HEADER_BYTES),
        post(b"[1]") * 2,
        post(b"[1]") + b"POST",
        post(b"[1]") + b"\r\n",
        b"\r\n" + post(b"[1]"),
        b"\r\n" * 2 + post(b"[1]"),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_head_that_will_not_come_again_or_may_end_elsewhere_is_not(read):
    server = serve(Echo())
    talk(server, [read])
    assert server.handler.seen
    assert server.heads.of(read, MissStreak()) is None


async def test_what_is_known_is_no_request_where_a_body_is_due():
    server, known = serve(Echo()), post(b"[1]")
    talk(server, [known])
    said, closed = talk(server, [post(known)[: -len(known)], known])
    assert (said.endswith(known), closed) == (True, False)
    assert [seen[-1] for seen in server.handler.seen] == [b"[1]", known]


async def test_the_end_of_a_body_is_no_part_of_the_next_head():
    server = serve(Echo())
    talk(server, [post(b"[1]")[:-2], b"1]" + post(b"[2]")])
    said, closed = talk(server, [b"1]" + post(b"[2]")])
    assert said.startswith(b"HTTP/1.1 400 ")
    assert closed


async def test_what_is_known_waits_its_turn():
    server = serve(Echo(waits=True))
    talk(server, [post(b"[1]")])
    one, transport = opened(server)
    one.data_received(post(b"[2]"))
    one.data_received(post(b"[3]"))
    assert server.handler.seen[-1][-1] == b"[2]"
    one.pause_writing()
    server.handler.answer(one)
    assert server.handler.seen[-1][-1] == b"[2]"
    one.resume_writing()
    server.handler.answer(one)
    one.pause_writing()
    one.data_received(post(b"[4]"))
    assert server.handler.seen[-1][-1] == b"[3]"
    one.resume_writing()
    server.handler.answer(one)
    assert transport.written.count(b"HTTP/1.1 200 ") == 3
    assert [seen[-1] for seen in server.handler.seen] == [b"[1]", b"[2]", b"[3]", b"[4]"]
    one.connection_lost(None)


async def test_a_head_that_was_refused_is_not_remembered():
    server = serve(Echo())
    server.handler.refuses = True
    talk(server, [post(b"[1]")])
    assert server.heads.of(post(b"[1]"), MissStreak()) is None


async def test_a_head_that_was_not_screened_yet_is_not_remembered():
    server = serve(Echo())
    one, _ = opened(server)
    one.pause_writing()
    one.data_received(post(b"[1]"))
    assert not server.handler.seen
    assert server.heads.of(post(b"[1]"), MissStreak()) is None
    one.connection_lost(None)


async def test_long_forms_and_what_is_made_of_them_are_not_remembered():
    usual, long = request_template("/m"), request_template("/m", "x" * 300)
    assert usual is request_template("/m")
    assert long is not request_template("/m", "x" * 300)
    pool = Pool("::1", 1)
    assert [len(pool._prefixes) for made in (usual, long) if pool._prefix(made)] == [1, 1]


async def test_a_head_that_is_known_is_screened_and_bounded_like_any_other():
    server = serve(Echo())
    talk(server, [post(b"[1]")])
    server.handler.refuses = True
    said, closed = talk(server, [post(b"[1]")])
    assert said.startswith(b"HTTP/1.1 403 ")
    assert closed
    server.handler.refuses = False
    server.buffered = server.bounds.buffered_bytes - 2
    said, _ = talk(server, [post(b"[1]")])
    assert said.startswith(b"HTTP/1.1 503 ")
    server.buffered = 0
    server.bound(server.limits, 2)
    said, _ = talk(server, [post(b"[1]")])
    assert said.startswith(b"HTTP/1.1 413 ")
    assert len(server.handler.seen) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\nHost: x\n\nabcd\r\n\r\n",  # it may have ended at the first empty line
        b"POST / HTTP/1.1\r\nHost: x\n\r\n\r\n",
        b"POST / HTTP/1.1\rHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n",
    ],
)
def test_a_head_that_others_may_read_in_another_way_is_not_remembered(head):
    heads = HeaderCache()
    heads.keep(head + b"body", 4, CachedHeader())
    assert heads.of(head + b"body", MissStreak()) is None


def test_what_is_remembered_is_bounded():
    heads = HeaderCache()
    for i in range(CACHE_SIZE + 1):
        heads.keep(b"%d\r\n\r\n" % i, 0, CachedHeader())
    known = [
        i for i in range(CACHE_SIZE + 1) if heads.of(b"%d\r\n\r\n" % i, MissStreak()) is not None
    ]
    assert known == [*range(1, CACHE_SIZE + 1)]
    heads.keep(b"x" * MAX_HEADER_BYTES + b"\r\n\r\n", 0, CachedHeader())
    assert heads.of(b"x" * MAX_HEADER_BYTES + b"\r\n\r\n", MissStreak()) is None


def test_who_says_something_new_each_time_is_looked_at_now_and_then():
    heads, sender, looked = HeaderCache(), MissStreak(), []
    for i in range(3 * RECHECK_EVERY):
        if sender.worth_caching:
            looked.append(i)
        assert heads.of(b"%d\r\n\r\n" % i, sender) is None
    often = list(range(MAX_CONSECUTIVE_MISSES))
    assert looked == [
        *often,
        RECHECK_EVERY,
        RECHECK_EVERY + 1,
        2 * RECHECK_EVERY,
        2 * RECHECK_EVERY + 1,
    ]


async def test_who_takes_to_repeating_is_known_soon():
    server = serve(Echo())
    new = [post(b"[1]", b"X: %d" % i) for i in range(100)]
    talk(server, [*new, *[post(b"[1]")] * (RECHECK_EVERY + 2)])
    shared = server.heads.of(post(b"[1]"), MissStreak())
    known = [seen[3] is shared.headers for seen in server.handler.seen]
    assert not any(known[:100])
    assert known[-1]


async def test_a_connection_that_rests_holds_no_request():
    one, _ = opened(serve(Echo()))
    for _ in range(2):
        one.data_received(post(b"[1]"))
        assert (one._request, one._current, one._last, len(one._body)) == (None, None, None, 0)
    await asyncio.sleep(0)
    one.connection_lost(None)
