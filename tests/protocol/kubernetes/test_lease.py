"""Leader election: one acts at a time, and who may act no longer knows it first."""

import asyncio

import pytest

from roma.kubernetes import lease as module
from roma.kubernetes.lease import LeaderLease
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _answers_of_a_busy_machine_are_awaited(monkeypatch):
    monkeypatch.setattr(module, "CALL_LIMIT", 60.0)


@pytest.fixture
def short(monkeypatch):
    """A lease of a third of a second, so that a test does not wait for seconds."""
    for name in ("DURATION", "DEADLINE", "RETRY"):
        monkeypatch.setattr(module, name, getattr(module, name) / 10)


def candidate(cluster, name):
    return LeaderLease(cluster.client, "models", "l", f"http://{name}:8600")


async def test_the_first_leads_and_the_second_waits_and_knows_who_leads(
    cluster, short, monkeypatch
):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.acquired()
    monkeypatch.setattr(module, "DURATION", 60.0)
    monkeypatch.setattr(module, "DEADLINE", 50.0)
    keeping = asyncio.create_task(first.keep())
    waiting = asyncio.create_task(second.acquired())
    await until(lambda: second.leader == "http://a:8600")
    renewed = set()
    await until(lambda: renewed.add(cluster.api.lease["spec"]["renewTime"]) or len(renewed) > 5)
    assert first.is_held
    assert not second.is_held
    assert not waiting.done()
    assert cluster.api.lease["spec"]["leaseTransitions"] == 1
    keeping.cancel()  # it dies: nobody renews
    monkeypatch.setattr(module, "DURATION", 0.3)
    monkeypatch.setattr(module, "DEADLINE", 0.2)
    await waiting
    assert second.holder == second.identity
    assert not first.is_held
    assert cluster.api.lease["spec"]["holderIdentity"] == second.identity
    assert cluster.api.lease["spec"]["leaseTransitions"] == 2


async def test_a_released_lease_is_taken_at_once(cluster):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.acquired()
    await first.release()
    assert not first.is_held
    assert await second._attempt()


async def test_who_cannot_renew_stops_before_others_may_take_over(cluster, short):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.acquired()
    keeping = asyncio.create_task(first.keep())
    waiting = asyncio.create_task(second.acquired())
    await until(lambda: second.leader == "http://a:8600")
    cluster.api.is_down = True
    await until(lambda: not first.is_held)
    assert not waiting.done()
    assert not keeping.done()  # nobody else can hold it now
    cluster.api.is_down = False
    await until(lambda: first.is_held or second.is_held)
    assert first.is_held != second.is_held
    for task in (keeping, waiting):
        task.cancel()


async def test_who_sees_another_holder_ends(cluster, short):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.acquired()
    cluster.api.lease["spec"]["holderIdentity"] = second.identity
    cluster.api.lease["metadata"]["resourceVersion"] += "0"
    await first.keep()
    assert first.leader == "http://b:8600"


async def test_two_of_the_same_address_are_two(cluster):
    first, second = candidate(cluster, "a"), candidate(cluster, "a")
    assert await first._attempt()
    assert not await second._attempt()


async def test_a_lost_race_is_no_leadership(cluster):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    found = await asyncio.gather(first._attempt(), second._attempt())
    assert sorted(found) == [False, True]
    assert first.is_held != second.is_held


@pytest.mark.parametrize(
    "answer",
    [{}, {"status": "ok"}, {"metadata": {}}, {"metadata": {"resourceVersion": "1"}, "spec": 5}],
)
async def test_an_answer_that_is_no_lease_makes_nobody_a_leader(cluster, answer):
    lease, first = cluster.api.lease, candidate(cluster, "a")
    cluster.api.lease = answer
    cluster.api.put_lease = answer
    assert not await first._attempt()
    cluster.api.lease = lease
    assert not await first._attempt()  # what is written is not what the answer says
    cluster.api.put_lease = None
    assert await first._attempt()


async def test_a_lease_that_is_gone_at_the_end_does_not_fail_it(cluster):
    first = candidate(cluster, "a")
    await first.acquired()
    cluster.api.lease = {"metadata": {"name": "l", "resourceVersion": "7"}}
    await first.release()
    assert not first.is_held


async def test_a_lease_that_is_deleted_is_here_again_with_the_same_holder(cluster):
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.acquired()
    assert not await second._attempt()
    cluster.api.lease = None
    assert not await second._attempt(), "the other one does not know it yet"
    assert await first._attempt()
    assert cluster.api.lease["spec"]["holderIdentity"] == first.identity
    assert not await second._attempt()
    assert second.leader == "http://a:8600"


async def test_a_lease_that_is_deleted_with_its_holder_is_taken_when_that_may_not_act(
    cluster, short
):
    first, second, third = (candidate(cluster, name) for name in "abc")
    await first.acquired()
    assert not await second._attempt()
    cluster.api.lease = None
    async with asyncio.timeout(60):
        while not second.is_held:
            await second.acquired()
    assert not first.is_held
    assert not await third._attempt()
    assert third.leader == "http://b:8600"


async def test_two_that_make_a_deleted_lease_again_are_one_leader(cluster, short):
    cluster.api.lease = None
    both = [candidate(cluster, name) for name in "ab"]
    waiting = [asyncio.create_task(one.acquired()) for one in both]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: any(one.leader for one in both))
    assert [task.done() for task in waiting].count(True) == 1
    for task in waiting:
        task.cancel()
