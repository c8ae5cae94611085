"""The supervisor's side of a real dispatcher's admin port: reports and confirmations."""

import asyncio
from dataclasses import replace

import aiohttp
import pytest

from roma.domain import exchange
from roma.domain.errors import ExchangeError
from roma.domain.exchange import ExchangeRequest, ExecutorReading
from supervisor.live import identity
from supervisor.live.peer import Peer, WorkerHeld


async def test_a_report_tells_what_happened(harness):
    await harness.open()
    for _ in range(3):
        await harness.predict()
    peer = Peer(harness.session, harness.admin, 5)
    reply = await peer.report("local")
    (model,) = reply.models
    assert (model.arrivals, model.completed_cpu, model.waiting, model.in_flight) == (3, 3, 0, 0)
    assert 0 < model.response_time < 5
    (executor,) = reply.executors
    assert (executor.executor, executor.state, executor.completed) == ("m.0@local", "idle", 3)


async def test_a_report_tells_the_age_of_what_is_stuck(harness):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict()) for _ in range(2)]
    await harness.until(lambda: len(harness.queue) == 1)
    (model,) = (await Peer(harness.session, harness.admin, 5).report("local")).models
    assert (model.waiting, model.in_flight, model.response_time) == (1, 1, None)
    assert model.oldest_age > 0
    harness.backends[0].gate.set()
    await asyncio.gather(*calls)


async def test_applied_cores_change_the_in_flight_limit_at_once(harness):
    await harness.open(cores=2)
    peer = Peer(harness.session, harness.admin, 5)
    mine = ExecutorReading("m.0@local", 0.5, 0.0, 0.0, cost=0.02)
    await peer.confirm(ExchangeRequest("local", (mine, ExecutorReading("other", 1, 0, 0))))
    executor = harness.core.executors["m.0@local"]
    assert (executor.limit, executor.cost) == (1, 0.02)


async def test_a_queue_that_outgrows_its_cores_is_told_at_once(harness):
    await harness.open(cores=2, response_time=0.05, more=", cgroup: models/m")
    peer = Peer(harness.session, harness.admin, 5)
    await harness.predict()  # what a request costs
    await peer.confirm(ExchangeRequest("local", (ExecutorReading("m.0@local", 0.002, 0.0, 0.0),)))
    heard = asyncio.create_task(peer.needs("local"))
    harness.backends[0].gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict()) for _ in range(3)]
    assert await heard is True
    harness.backends[0].gate.set()
    await asyncio.gather(*calls)


async def test_who_waits_for_an_unknown_worker_is_told(harness):
    await harness.open()
    url = f"{harness.admin}/control/v1/needs?worker=other"
    async with harness.session.get(url) as response:
        assert response.status == 404
        assert "worker = other: must be one of local" in (await response.json())["error"]
    assert await Peer(harness.session, harness.admin, 5).needs("other") is None


async def test_another_sites_page_does_not_take_the_place_of_a_supervisor_that_waits(harness):
    await harness.open()
    supervisors = harness.admin_doors._supervisors
    waiting = asyncio.create_task(Peer(harness.session, harness.admin, 5).needs("local"))
    await harness.until(lambda: supervisors._waiters)
    url = f"{harness.admin}/control/v1/needs?worker=local"
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}  # it has no Origin
    async with asyncio.timeout(5), harness.session.get(url, headers=image) as response:
        assert response.status == 403
    supervisors.need("local")
    assert await waiting is True


async def test_a_hint_for_a_supervisor_that_has_gone_is_kept_for_the_next(harness):
    await harness.open()
    supervisors = harness.admin_doors._supervisors
    async with aiohttp.ClientSession() as session:
        gone = asyncio.create_task(Peer(session, harness.admin, 5).needs("local"))
        await harness.until(lambda: supervisors._waiters)
        before = set(harness.admin_doors.ports.open)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    await harness.until(lambda: len(before & set(harness.admin_doors.ports.open)) < len(before))
    supervisors.need("local")
    assert await Peer(harness.session, harness.admin, 5).needs("local") is True


async def test_what_a_tick_decides_already_brings_no_further_one(harness):
    await harness.open()
    supervisors = harness.admin_doors._supervisors
    supervisors.need("local")
    peer = Peer(harness.session, harness.admin, 5)
    await peer.report("local")
    waiting = asyncio.create_task(peer.needs("local"))
    await harness.until(lambda: supervisors._waiters)
    supervisors.need("local")
    assert await waiting is True


async def test_a_dispatcher_that_ends_lets_nobody_wait(harness):
    await harness.open()
    waiting = asyncio.create_task(Peer(harness.session, harness.admin, 5).needs("local"))
    await harness.until(lambda: harness.admin_doors._supervisors._waiters)
    await harness.running.aclose()
    assert await waiting is False


async def test_a_malformed_confirmation_names_the_field(harness):
    await harness.open()
    url = f"{harness.admin}/control/v1/applied"
    async with harness.session.post(url, data=b'{"worker": "w", "executors": [{}]}') as response:
        assert response.status == 400
        assert "executors.0.executor" in (await response.json())["error"]


@pytest.mark.parametrize("applied", ["0", "-1", "1e999", "null", '"many"', "NaN"])
async def test_impossible_cores_are_refused_and_change_nothing(harness, applied):
    await harness.open(cores=2)
    body = f'{{"worker": "w", "executors": [{{"executor": "m.0@local", "applied": {applied}, "usage": 0, "throttled": 0}}]}}'
    async with harness.session.post(f"{harness.admin}/control/v1/applied", data=body) as response:
        assert response.status == 400
    assert harness.core.executors["m.0@local"].cores == 2
    assert (await harness.predict())[0] == 200


async def test_a_worker_that_nobody_knows_teaches_nothing(harness):
    await harness.open(cores=2)
    message = ExchangeRequest("locla", (ExecutorReading("m.0@local", 0.5, 0.0, 0.0),))
    with pytest.raises(ExchangeError, match=r"404.*worker = locla: must be one of local"):
        await Peer(harness.session, harness.admin, 5).confirm(message)
    assert harness.core.executors["m.0@local"].cores == 2


HERE = identity.own()
ALIVE = replace(HERE, host="elsewhere", started="another boot/1/2")
"""A supervisor of another machine, as far as we can tell."""
DEAD = replace(HERE, started=HERE.started + "0")
"""A supervisor of this machine that had our process' number."""


async def test_one_supervisor_speaks_for_a_worker(harness):
    await harness.open(cores=2)
    harness.stop_clock()
    peer = Peer(harness.session, harness.admin, 5)

    def message(who, cores):
        readings = (ExecutorReading("m.0@local", cores, 0.0, 0.0),)
        return ExchangeRequest("local", readings, who)

    def cores():
        return harness.core.executors["m.0@local"].cores

    await peer.confirm(message(ALIVE, 0.5))
    await peer.confirm(message(ALIVE, 0.6))
    with pytest.raises(WorkerHeld, match=f"process {ALIVE.pid} of host elsewhere, heard 0.0 s ago"):
        await peer.confirm(message(HERE, 1.5))
    assert cores() == 0.6
    # One that is silent has ended, for all that can be known.
    harness.stop_clock(exchange.silence(1.0))
    await peer.confirm(message(HERE, 1.5))
    assert cores() == 1.5
    with pytest.raises(WorkerHeld):
        await peer.confirm(message(ALIVE, 0.5))


async def test_one_that_ended_on_this_machine_is_replaced_at_once(harness):
    await harness.open(cores=2)
    peer = Peer(harness.session, harness.admin, 5)
    await peer.confirm(ExchangeRequest("local", (), DEAD))
    reading = ExecutorReading("m.0@local", 0.5, 0.0, 0.0)
    await peer.confirm(ExchangeRequest("local", (reading,), HERE))
    assert harness.core.executors["m.0@local"].cores == 0.5


async def test_a_hello_is_no_word_about_cores(harness):
    await harness.open()
    await Peer(harness.session, harness.admin, 5).confirm(
        ExchangeRequest("local", (), HERE, hello=True)
    )
    assert not harness.admin_doors.heard


async def test_a_peer_that_is_gone_is_an_exchange_error(unused_tcp_port):
    async with aiohttp.ClientSession() as session:
        peer = Peer(session, f"http://127.0.0.1:{unused_tcp_port}", 1)
        with pytest.raises(ExchangeError):
            await peer.report("local")
        with pytest.raises(ExchangeError):
            await peer.confirm(ExchangeRequest("w", ()))


def test_messages_survive_the_wire():
    message = ExchangeRequest(
        "w", (ExecutorReading("m@w", 1.5, 2.5, 0.25),), HERE, replaces=ALIVE, hello=True
    )
    assert exchange.parse(exchange.REQUEST, exchange.REQUEST.dump_json(message)) == message
