"""Request bodies that are too large for one model, by its own bound or by what they would take."""

import asyncio
import gzip
import io
import json
import zlib
from random import Random

import grpc
import pytest
from aiohttp import web

from dispatcher.live.driver import Call
from dispatcher.live.http.messages import Message, request_template
from roma.config import schema
from roma.domain.errors import ConfigError
from roma.tensors.errors import BodyTooLarge, RequestError
from roma.tensors.inflate import MOST, inflate, inflated_size
from tests.protocol.gateway.test_grpc import PREDICT
from tests.protocol.gateway.test_grpc_bounds import sized

SMALL = b'{"instances": [1]}'
LARGE = b'{"instances": [' + b"1," * 100_000 + b"1]}"


async def many(size):
    """A body of unknown length, as a client streams it."""
    yield b"x" * size


@pytest.mark.parametrize("is_streamed", [False, True], ids=["sized", "streamed"])
async def test_a_models_own_bound_is_below_that_of_all(harness, is_streamed):
    await harness.open(model="max_body_bytes: 2000")
    assert (await harness.predict(many(2000) if is_streamed else b"x" * 2000))[0] == 200
    status, body, _ = await harness.predict(many(2001) if is_streamed else b"x" * 2001)
    assert status == 413
    told = "model m: request body of 2001 bytes is larger than max_body_bytes 2000"
    assert json.loads(body)["error"] == told
    assert len(harness.backends[0].seen) == 1
    assert harness.queue.arrivals == 1


async def test_a_models_own_bound_holds_over_grpc(harness):
    await harness.open(speaks_grpc=True, model="max_body_bytes: 2000")
    assert (await harness.call(PREDICT, sized(1000)))[0] is grpc.StatusCode.OK
    code, _, text, _ = await harness.call(PREDICT, sized(2000))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text.endswith("is larger than max_body_bytes 2000")


async def test_a_models_bound_that_could_not_hold_is_refused(harness):
    text = (await harness.open()).text.replace("    cpu:", "    max_body_bytes: 2MiB\n    cpu:")
    with pytest.raises(ConfigError) as refused:
        schema.parse(text)
    told = "models.m.max_body_bytes = 2097152: must be ≤ gateway.max_body_bytes (1048576)"
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "coding", ["identity", "gzip", "GZIP", "x-gzip", "gzip, identity", "deflate"]
)
async def test_what_would_hold_the_model_is_refused_however_it_is_coded(harness, coding):
    """A request takes 20 ms here, whatever is in it; 200 kB have 6000 times the bytes of one."""

    async def behave(request, body):
        await asyncio.sleep(0.02)
        return web.Response(body=b"{}", content_type="application/json")

    await harness.open(response_time=1, deadline=4)
    harness.backends[0].behave = behave
    for _ in range(6):
        assert (await harness.predict())[0] == 200
    pack = {"identity": bytes, "deflate": zlib.compress}.get(coding, gzip.compress)
    headers = {"Content-Type": "application/json"}
    if coding != "identity":
        headers["Content-Encoding"] = coding
    status, body, told = await harness.predict(pack(LARGE), headers=headers)
    assert status == 413
    assert "bytes fit" in json.loads(body)["error"]
    assert "Retry-After" not in told
    # A small one in the same coding passes, and no promise was broken.
    assert (await harness.predict(pack(SMALL), headers=headers))[0] == 200
    assert (len(harness.backends[0].seen), harness.queue.rejected_by_client) == (7, 1)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_read_no_further_than_matters(pack):
    """The rest is taken to go on as it began; what is no such body counts as it is."""
    random = Random(1).randbytes(200_000)
    assert inflated_size(pack(random), 10**6) == 200_000
    assert inflated_size(pack(random), 200_000) == 200_000
    assert inflated_size(pack(random), 50_000) == pytest.approx(200_000, rel=0.1)
    bomb = pack(bytes(50 * 2**20))
    assert inflated_size(bomb, 2**16) > 10 * 2**20
    if pack is gzip.compress:  # its end says how much there is, whatever it begins with
        assert inflated_size(pack(random + bytes(50 * 2**20)), 2**16) > 50 * 2**20
    assert inflated_size(b"no such body", 2**16) == 12


def test_no_body_holds_more_than_gzip_can_count():
    piece = zlib.compressobj(9, wbits=31)
    packed = piece.compress(bytes(2**24))
    assert inflated_size(packed + packed[len(packed) // 2 :] * 1200, 2**16) == MOST


def test_a_forged_end_says_no_more_than_deflate_can_hold():
    forged = gzip.compress(bytes(70_000)) + b"\xff" * 4
    assert inflated_size(forged, 2**16) <= 1032 * len(forged)


def test_a_small_first_member_hides_no_large_one():
    large = gzip.compress(Random(1).randbytes(300_000))
    for few in (1, 10, 1000):
        size = inflated_size(gzip.compress(b"[") * few + large, 2**16)
        assert size > 100_000


def test_a_body_of_several_members_is_read_whole_and_within_the_limit():
    a, b = gzip.compress(b"[1,"), gzip.compress(b"2]")
    assert inflate(a + b, 5) == b"[1,2]"
    with pytest.raises(BodyTooLarge):
        inflate(a + b, 4)
    for wrong, why in ((a + b[:-1], "ends too early"), (a + b"xy", "2 bytes follow its end")):
        with pytest.raises(RequestError, match=why):
            inflate(wrong, 100)
    with pytest.raises(RequestError, match="more than 4096 members"):
        inflate(gzip.compress(b"") * 100_000, 100)
    with pytest.raises(RequestError, match="follow its end"):
        inflate(zlib.compress(b"[1,") + b, 100)


async def test_a_request_at_which_the_core_fails_is_not_kept(harness):
    """Whatever the bug: here it is a size that no body has."""
    await harness.open()
    for _ in range(6):
        assert (await harness.predict())[0] == 200
    driver, call = (
        harness.service.driver,
        Call("m", Message(request_template("/v1/models/m:predict"), SMALL)),
    )
    call.size = 2**40
    with pytest.raises(IndexError):
        driver.submit(call)
    assert not driver._calls


async def test_a_bomb_is_refused_and_leaves_nothing_behind(harness):
    """It would unpack to more than 4 GiB, by its own size and by how it begins."""
    await harness.open(max_body=1 << 25, response_time=1, deadline=4)
    for _ in range(6):
        assert (await harness.predict())[0] == 200
    piece = zlib.compressobj(9, wbits=31)
    packed = piece.compress(bytes(2**24))
    bomb = packed + packed[len(packed) // 2 :] * 700
    assert len(bomb) * 1000 > 2**32
    body = io.BytesIO(bomb)
    assert (await harness.predict(body, headers={"Content-Encoding": "gzip"}))[0] == 413
    assert not harness.service.driver._calls
    assert harness.core.live == 0
