"""The supervisor's door of a real dispatcher: reports and confirmations."""

import asyncio

import aiohttp
import pytest

from roma import exchange
from roma.errors import ExchangeError
from roma.exchange import ExchangeRequest, ExecutorReading
from supervisor.live.peer import Peer


async def test_a_report_tells_what_happened(stage):
    await stage.open()
    for _ in range(3):
        await stage.predict()
    peer = Peer(stage.session, stage.admin, 5)
    reply = await peer.report()
    (model,) = reply.models
    assert (model.arrivals, model.completed_cpu, model.waiting, model.in_flight) == (3, 3, 0, 0)
    assert 0 < model.response_time < 5
    (executor,) = reply.executors
    assert (executor.executor, executor.state, executor.completed) == ("m.0@local", "idle", 3)


async def test_a_report_tells_the_age_of_what_is_stuck(stage):
    await stage.open()
    stage.backends[0].gate = asyncio.Event()
    calls = [asyncio.create_task(stage.predict()) for _ in range(2)]
    await stage.until(lambda: len(stage.queue) == 1)
    (model,) = (await Peer(stage.session, stage.admin, 5).report()).models
    assert (model.waiting, model.in_flight, model.response_time) == (1, 1, None)
    assert model.oldest_age > 0
    stage.backends[0].gate.set()
    await asyncio.gather(*calls)


async def test_applied_cores_change_the_in_flight_limit_at_once(stage):
    await stage.open(cores=2)
    peer = Peer(stage.session, stage.admin, 5)
    readings = (ExecutorReading("m.0@local", 0.5, 0.0, 0.0), ExecutorReading("other", 1, 0, 0))
    await peer.confirm(ExchangeRequest("local", readings))
    assert stage.core.executors["m.0@local"].limit == 1


async def test_a_malformed_confirmation_names_the_field(stage):
    await stage.open()
    url = f"{stage.admin}/control/v1/applied"
    async with stage.session.post(url, data=b'{"worker": "w", "executors": [{}]}') as response:
        assert response.status == 400
        assert "executors.0.executor" in (await response.json())["error"]


@pytest.mark.parametrize("applied", ["0", "-1", "1e999", "null", '"many"', "NaN"])
async def test_impossible_cores_are_refused_and_change_nothing(stage, applied):
    await stage.open(cores=2)
    body = f'{{"worker": "w", "executors": [{{"executor": "m.0@local", "applied": {applied}, "usage": 0, "throttled": 0}}]}}'
    async with stage.session.post(f"{stage.admin}/control/v1/applied", data=body) as response:
        assert response.status == 400
    assert stage.core.executors["m.0@local"].cores == 2
    assert (await stage.predict())[0] == 200


async def test_a_peer_that_is_gone_is_an_exchange_error(unused_tcp_port):
    async with aiohttp.ClientSession() as session:
        peer = Peer(session, f"http://127.0.0.1:{unused_tcp_port}", 1)
        with pytest.raises(ExchangeError):
            await peer.report()
        with pytest.raises(ExchangeError):
            await peer.confirm(ExchangeRequest("w", ()))


def test_messages_survive_the_wire():
    message = ExchangeRequest("w", (ExecutorReading("m@w", 1.5, 2.5, 0.25),))
    assert exchange.parse_request(exchange.REQUEST.dump_json(message)) == message
