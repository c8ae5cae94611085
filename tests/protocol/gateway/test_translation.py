"""What a client's head becomes on its way to a model server: one request, whatever was in it."""

import asyncio
import re
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.live import gateway
from dispatcher.live.backends.http_client import Pool
from dispatcher.live.context import carried
from dispatcher.live.http import routes
from dispatcher.live.http.messages import Message
from dispatcher.live.http.request import WANTED, HttpRequest
from roma.domain.model import Priority
from tests.support.grammar import Read, accepted

# What the HTTP parser lets through as a field's value (RFC 9110 §5.5), and as a target.
VALUES = st.text("\t !\"#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~\x80\xa0\xff", max_size=40)
TARGETS = st.one_of(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF), max_size=40),
    st.from_regex(
        r"(http://[a-z]*)?/v[12]/models/[!-~]{1,9}(/(versions|labels)/[!-~]{1,5})?"
        r"(:predict|:classify|:regress|/infer|/ready|/metadata)?(\?[!-~]{0,5})?",
        fullmatch=True,
    ),
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"])


async def sent(request, route, context, timeout):
    """The bytes that a model server gets."""
    heard = asyncio.get_running_loop().create_future()
    heads = []

    async def serve(reader, writer):
        with suppress(asyncio.IncompleteReadError):  # a connection that came too late
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            closing = asyncio.create_task(pool.close())
            heard.set_result(heads[0] + await reader.read())
            await closing
        writer.close()

    def send(_=None):
        if not heads:  # not yet; a machine that stands still may take too long to connect
            pool.send(message, send, timeout=60, more=more)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = Pool(*server.sockets[0].getsockname())
        told = f"X-Request-Timeout-Ms: {timeout}\r\n"
        more = told + (context.lines if context is not None else "")
        message = Message(gateway._form(request.head, route), request.body)
        send()
        return await heard


@given(st.dictionaries(st.sampled_from(sorted(WANTED)), VALUES), st.binary(max_size=50))
@example({b"content-type": "a\tb", b"x-request-id": "a b", b"tracestate": "\xff"}, b"")
@example({b"inference-header-content-length": "1, 2"}, b"GET / HTTP/1.1\r\n\r\n")
def test_whatever_a_head_says_a_model_server_gets_one_request(headers, body):
    request = HttpRequest("::1")
    request.body, head = body, request.head
    head.headers = {name: value.strip().encode("latin-1") for name, value in headers.items()}
    route = routes.parse("POST", "/v1/models/m:predict?x")
    names = (b"x-request-id", b"traceparent", b"tracestate")
    context = carried(*map(head.header, names))
    assert accepted(asyncio.run(sent(request, route, context, timeout=1))) == [
        Read(b"POST", b"/v1/models/m:predict", body)
    ]


@given(METHODS, TARGETS)
@example("POST", "/v1/models/m:predict?name=/v1/models/n:predict")
@example("GET", "/v1/models/../v2/models/m")
@example("POST", "http:///v1/models/m:predict")
@example("POST", "http://x/v1/models/m%3Apredict:predict")
def test_a_target_means_one_model_of_one_protocol_or_nothing(method, target):
    route = routes.parse(method, target)
    if route is None:
        return
    path = target.partition("?")[0]
    assert path.endswith(route.path)
    assert re.fullmatch(r"/v[12]/models/[!-~]+", route.path)
    assert not set(route.model) & set("/:?")
    assert route.path.split("/")[3].partition(":")[0] == route.model
    assert (method == "POST") == route.is_inference
    assert route.template.count("{model}") == 1


@given(st.one_of(VALUES, st.integers(-5, 10**10).map(str), st.text(max_size=12)))
@example("٣")
@example("²")
@example("1_000")
def test_a_timeout_is_milliseconds_or_refused(text):
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        assert gateway._timeout(text) == int(text) / 1000
        return
    with pytest.raises(gateway._Refused, match="X-Request-Timeout-Ms: ") as refused:
        gateway._timeout(text)
    assert refused.value.status == 400


@given(st.one_of(VALUES, st.sampled_from([*Priority, "batch", "Batch", " low"])))
def test_a_priority_is_known_or_refused(text):
    if text in {"interactive", "low", "batch"}:
        assert gateway._priority(text) == ("low" if text == "batch" else text)
        return
    with pytest.raises(gateway._Refused, match="X-Request-Priority: "):
        gateway._priority(text)


@given(st.integers(400, 599), st.text(max_size=50))
@example(404, "Not found: /\udcff")
def test_an_error_quotes_a_request_in_one_json_text(status, message):
    response = gateway.error(status, message, retry_after=0.01)
    assert response.body.startswith(b'{"error":')
    assert b"\n" not in response.body
    assert response.more == "Retry-After: 1\r\n"
