"""Half-valid connections by the hundred: the server neither breaks, nor leaks, nor is talked into
a request that nobody sent.

A seed names the connections of a run, so a failure can be repeated. What the model server saw is
compared with what a grammar reads from the same bytes (`tests/support/grammar.py`).
"""

import asyncio
import re
from collections import Counter
from random import Random

import pytest

from tests.support.grammar import Read, accepted
from tests.support.mutations import connection, pieces

CONNECTIONS = 150
AT_ONCE = 10
STATUSES = {200, 400, 404, 408, 413, 417, 421, 431, 501, 503}
ANSWER = re.compile(
    rb"HTTP/1\.1 ([1-5]\d\d) [\t -~]*\r\n((?:[A-Za-z-]+: [\t -~\x80-\xff]*\r\n)*)\r\n"
)


def answers(data):
    """Return the statuses of whole answers, and what is left; raise if it is not HTTP."""
    found, at = [], 0
    while match := ANSWER.match(data, at):
        length = re.search(rb"Content-Length: (\d+)", match[2])
        end = match.end() + (int(length[1]) if length else 0)
        if end > len(data):
            break
        if match[1] != b"100":
            found.append(int(match[1]))
        at = end
    return found, data[at:]


async def converse(port, random, name, sent):
    """Send one connection's bytes, read its answers, and leave in one way or another."""
    stream, is_valid = connection(random, name)
    leaves = not is_valid and random.random() < 0.2
    expected = accepted(stream)
    sent.update((request.target, request.body) for request in expected)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b""
    try:
        for piece in pieces(random, stream):
            if writer.is_closing():  # the server has heard enough
                break
            writer.write(piece)
            await asyncio.sleep(0)
        if leaves:
            return
        async with asyncio.timeout(20):  # only bounds a failing test
            while len(answers(data)[0]) < len(expected):
                if not (more := await reader.read(1 << 16)):
                    break
                data += more
        statuses, rest = answers(data)
        assert set(statuses) <= STATUSES, (name, statuses)
        assert not rest, (name, rest)  # every answer is whole
        if is_valid:
            assert statuses == [200] * len(expected), (name, data)
    except ConnectionError:
        assert not is_valid, name
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("seed", range(4))
async def test_half_valid_connections_break_nothing(harness, seed, caplog):
    # No timeout may end a connection of a busy machine.
    await harness.open(
        cores=8,
        response_time=1000,
        deadline=3000,
        max_waiting=1000,
        limits="{head_timeout: 60, body_timeout: 60}",
    )
    sent, over = Counter(), asyncio.Event()

    async def healthy():
        count = 0
        while not over.is_set():
            status, body, _ = await harness.predict(b"[%d]" % count)
            assert (status, body) == (200, b"[%d]" % count)
            count += 1
        return count

    neighbour = asyncio.create_task(healthy())
    for first in range(0, CONNECTIONS, AT_ONCE):
        batch = (
            converse(harness.port, Random(seed << 16 | number), b"c%d-%d" % (seed, number), sent)
            for number in range(first, first + AT_ONCE)
        )
        await asyncio.gather(*batch)
    over.set()
    count = await neighbour
    assert count > 0
    await harness.until(lambda: len(harness.connections) <= 1 and not harness.core.live)
    assert harness.server.buffered == 0
    assert "Traceback" not in caplog.text
    assert [executor.losses for executor in harness.core.executors] == [0]
    sent.update((b"/v1/models/m:predict", b"[%d]" % i) for i in range(count))
    seen = Counter((path.encode(), body) for path, _, body in harness.backends[0].seen)
    assert not seen - sent, list(seen - sent)[:3]  # nobody was talked into anything


def test_the_grammar_reads_what_rfc_9112_says():
    one = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    assert accepted(one + one + b"POST") == [Read(b"POST", b"/a", b"{}")] * 2
    chunked = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert accepted(chunked + b"2;a=b\r\n{}\r\n0\r\nT: x\r\n\r\n") == [Read(b"POST", b"/a", b"{}")]
    for wrong in (
        one.replace(b"Host: x\r\n", b""),
        one.replace(b": 2", b" : 2"),
        one.replace(b": 2", b": +2"),
        one.replace(b"\r\n", b"\n"),
        one.replace(b"Content", b"Transfer-Encoding: chunked\r\nContent"),
        chunked + b"2\r\n{}0\r\n\r\n",
    ):
        assert accepted(wrong + one) == []
    assert accepted(one[:-1]) == []
