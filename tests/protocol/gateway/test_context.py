"""What a request brings along: W3C Trace Context and X-Request-Id, through real sockets."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from dispatcher.live.context import carried, is_parent, state

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"


def spec(text):
    """W3C Trace Context §3.2 step by step; None says invalid."""
    if len(text) < 55:
        return None
    version, trace, parent, flags = text[:2], text[3:35], text[36:52], text[53:55]
    if any(text[i] != "-" for i in (2, 35, 52)):
        return None
    digits = version + trace + parent + flags
    if any(c not in "0123456789abcdef" for c in digits):
        return None
    if version == "ff" or trace == "0" * 32 or parent == "0" * 16:
        return None
    rest = text[55:]
    if version == "00":
        return None if rest else text
    return text if not rest or rest.startswith("-") else None


HEX = st.text("0123456789abcdef", min_size=2, max_size=2)
NEARLY = st.builds(
    lambda version, trace, parent, flags, rest: f"{version}-{trace}-{parent}-{flags}{rest}",
    st.one_of(st.just("00"), st.just("ff"), HEX),
    st.one_of(
        st.just("0" * 32), st.text("0123456789abcdefAF", min_size=32, max_size=32), st.just(TRACE)
    ),
    st.one_of(
        st.just("0" * 16), st.text("0123456789abcdefg", min_size=16, max_size=16), st.just(PARENT)
    ),
    HEX,
    st.sampled_from(["", "", "-", "-x", ".", "0", "-what the future holds"]),
)


@st.composite
def one_character_off(draw):
    text = draw(NEARLY)
    at = draw(st.integers(0, len(text) - 1))
    return text[:at] + draw(st.characters(codec="latin-1")) + text[at + 1 :]


@given(st.one_of(NEARLY, one_character_off(), st.text(max_size=60)))
@example(VALID)
@example(VALID + "\n")
@example(VALID.upper())
@example(f"ff-{TRACE}-{PARENT}-01")
@example(f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like")
@example(f"cc-{TRACE}-{PARENT}-01.what")
@example(f"00-{TRACE}-{PARENT}-01-")
@example(VALID.replace("4", "\u0664"))  # a digit, but not of this alphabet
def test_a_parent_is_valid_exactly_if_the_specification_says_so(text):
    valid = spec(text) is not None
    if not (text.isascii() and text.isprintable() and " " not in text):
        valid = False  # never in a header of ours
    assert is_parent(text) == valid


def test_a_parent_of_a_later_version_is_bounded():
    assert not is_parent(f"cc-{TRACE}-{PARENT}-01-{'x' * 600}")


@given(st.lists(st.text("abc=@", max_size=200), max_size=40))
def test_a_state_is_passed_on_as_it_is_or_as_fewer_whole_members(members):
    text = ",".join(members)
    passed = state(text)
    if 0 < len(text) <= 512 and len(members) <= 32:
        assert passed == text
    elif passed is not None:
        assert len(passed) <= 512
        kept = iter(members)
        assert all(member in kept for member in passed.split(","))  # in their order


def test_long_members_go_first_and_then_the_last_ones():
    long, short = "l=" + "x" * 130, [f"k{i}=" + "v" * 60 for i in range(10)]
    passed = state(",".join([long, *short]))
    assert passed == ",".join(short[:8])


@pytest.mark.parametrize("text", ["", "a=\x7f", "a=\u20ac", "a=1\nb=2"])
def test_a_state_that_no_header_may_hold_is_dropped(text):
    assert state(text) is None


def read(*headers):
    fields = CIMultiDict(headers)
    # As the server hands them over: fields of one name are one list.
    names = ("x-request-id", "traceparent", "tracestate")
    context = carried(*(",".join(fields.getall(n, ())) if n in fields else None for n in names))
    return (
        None if context is None else (context.request_id, context.traceparent, context.tracestate)
    )


def test_what_is_not_valid_is_as_if_it_had_not_come():
    assert read() is None
    assert read(("tracestate", "a=1")) is None
    assert read(("traceparent", "rubbish"), ("tracestate", "a=1")) is None
    assert read(("traceparent", VALID), ("traceparent", VALID)) is None
    assert read(("X-Request-Id", "a b")) is None
    assert read(("X-Request-Id", "x" * 129)) is None
    assert read(("X-Request-Id", "")) is None
    assert read(("X-Request-Id", "\u00e4")) is None
    assert read(("x-request-id", "x" * 128)) == ("x" * 128, None, None)
    assert read(("X-Request-Id", "a"), ("TraceParent", "no"), ("tracestate", "a=1")) == (
        "a",
        None,
        None,
    )
    assert read(("traceparent", VALID), ("tracestate", "a=1"), ("tracestate", "b=2")) == (
        None,
        VALID,
        "a=1,b=2",
    )


def known(seen):
    """The headers of the kind that this module is about, as a model server got them."""
    _, headers, _ = seen
    names = ("traceparent", "tracestate", "x-request-id")
    return {k.lower(): v for k, v in headers.items() if k.lower() in names}


async def test_a_context_reaches_the_model_server_as_it_came(harness):
    await harness.open()
    sent = {"traceparent": VALID, "tracestate": "a=1,b=2", "x-request-id": "r-1"}
    status, _, headers = await harness.predict(headers=sent)
    assert (status, headers["X-Request-Id"]) == (200, "r-1")
    assert known(harness.backends[0].seen[-1]) == sent


async def test_without_a_context_nothing_is_made_up(harness):
    await harness.open()
    _, _, headers = await harness.predict()
    assert "X-Request-Id" not in headers
    assert known(harness.backends[0].seen[-1]) == {}
    await harness.predict(headers={"traceparent": VALID[:-1], "tracestate": "a=1"})
    assert known(harness.backends[0].seen[-1]) == {}


async def test_a_look_up_takes_no_context_along(harness):
    """Its answer may be another client's too; the client gets its own number back."""
    await harness.open()
    sent = {"traceparent": VALID, "X-Request-Id": "look"}
    async with harness.session.get(harness.url + "/v1/models/m", headers=sent) as response:
        assert (response.status, response.headers["X-Request-Id"]) == (200, "look")
    assert all(known((None, headers, None)) == {} for headers in harness.backends[0].looks)


async def raw(harness, *lines):
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    head = "".join(f"{line}\r\n" for line in lines)
    data = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n{head}\r\n{{}}"
    writer.write(data.encode())
    answer = await reader.readuntil(b"\r\n\r\n{}")
    writer.close()
    return answer


async def test_an_answer_without_the_header_is_the_same_to_the_byte(harness):
    await harness.open()
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    for line in (), (f"traceparent: {VALID}",), ("X-Request-Id: bad id",):
        assert undated(await raw(harness, *line)) == plain + b"\r\n{}"
    harness.server.date = b""
    await harness.until(lambda: harness.server.date)  # it goes on with the clock
    named = undated(await raw(harness, "X-Request-Id: good"))
    assert named == plain + b"X-Request-Id: good\r\n\r\n{}"


def undated(answer):
    """Return an answer without its date, of which it must have one, at most seconds old."""
    before, date, after = re.split(rb"Date: ([^\r]*)\r\n", answer)
    age = datetime.now(UTC) - parsedate_to_datetime(date.decode())
    assert timedelta(seconds=-1) < age < timedelta(seconds=60)
    return before + after


async def test_a_large_answer_carries_the_number_too(harness):
    await harness.open()
    status, body, headers = await harness.predict(b"1" * 100_000, headers={"X-Request-Id": "big"})
    assert (status, len(body), headers["X-Request-Id"]) == (200, 100_000, "big")


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models/x:predict", 404), ("/v1/what", 400), ("/nowhere", 404)]
)
async def test_errors_carry_the_number(harness, path, status):
    await harness.open()
    got, _, headers = await harness.predict(path=path, headers={"X-Request-Id": "lost"})
    assert (got, headers["X-Request-Id"]) == (status, "lost")


async def test_a_rejection_and_a_failure_carry_the_number(harness):
    await harness.open(max_waiting=1)
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    running = asyncio.create_task(harness.predict(headers={"X-Request-Id": "runs"}))
    waiting = asyncio.create_task(harness.predict())
    await harness.until(lambda: len(harness.queue) == 1 and backend.running == 1)
    status, _, headers = await harness.predict(headers={"X-Request-Id": "full"})
    assert (status, headers["X-Request-Id"]) == (429, "full")
    backend.kill_connections()
    status, _, headers = await running
    assert (status, headers["X-Request-Id"]) == (502, "runs")
    backend.gate.set()
    await waiting


async def test_a_request_keeps_its_context_on_its_second_way(harness):
    await harness.open(backends=2)
    dead, alive = harness.backends
    await harness.unreachable()
    sent = {"traceparent": VALID, "x-request-id": "twice"}
    for _ in range(2):
        assert (await harness.predict(headers=sent))[0] == 200
    assert [known(seen) for seen in alive.seen] == [sent, sent]
    assert dead.seen == []
