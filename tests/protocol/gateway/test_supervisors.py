"""Supervisors that a dispatcher listens to: each is silent by its own control period."""

import asyncio

import pytest

from dispatcher.live.admin.supervisors import (
    Supervisors,
    WaiterReplaced,
    WorkerTaken,
)
from roma.config import schema
from roma.domain.exchange import ExchangeRequest, SupervisorId, silence

PERIODS = {"quick": 0.2, "slow": 2.0}
CONFIG = schema.parse(
    """
models: {m: {sla: {response_time: 1}, path: m}}
workers:
- {name: quick, cores: 1, period: 0.2}
- {name: slow, cores: 1, period: 2, base_port: 8700}
"""
)


def message(worker, pid):
    return ExchangeRequest(worker, (), SupervisorId("host", pid, "boot"))


@pytest.mark.parametrize("worker", PERIODS)
def test_a_silent_one_is_replaced_after_its_own_periods(worker):
    supervisors = Supervisors(CONFIG)
    supervisors.admit(message(worker, 1), 0.0)
    limit = silence(PERIODS[worker])
    with pytest.raises(WorkerTaken):
        supervisors.admit(message(worker, 2), limit - 0.01)
    supervisors.admit(message(worker, 2), limit)


async def test_one_that_waits_hears_when_cores_of_its_worker_are_needed():
    supervisors = Supervisors(CONFIG)
    waiting = {w: asyncio.create_task(supervisors.needed(w, 60)) for w in PERIODS}
    await asyncio.sleep(0)
    supervisors.need("quick")
    supervisors.need("gone since")
    assert await waiting["quick"] is True
    assert not waiting["slow"].done()
    assert await supervisors.needed("quick", 0) is False  # it was told once
    supervisors.need("quick")  # while nobody waits
    assert await supervisors.needed("quick", 60) is True
    supervisors.need("quick")
    supervisors.heed("quick")  # a tick decides it
    assert await supervisors.needed("quick", 0) is False
    supervisors.close()
    assert await waiting["slow"] is False
    assert await supervisors.needed("slow", 60) is False


async def test_of_two_that_wait_for_a_worker_the_later_one_hears():
    supervisors = Supervisors(CONFIG)
    older = asyncio.create_task(supervisors.needed("quick", 60))
    await asyncio.sleep(0)
    later = asyncio.create_task(supervisors.needed("quick", 60))
    with pytest.raises(WaiterReplaced, match="worker = quick: a later call waits"):
        await older
    supervisors.need("quick")
    assert await later is True


async def test_no_more_wait_than_the_admin_port_has_connections_for(monkeypatch):
    monkeypatch.setattr("dispatcher.live.admin.supervisors.MOST_WAITERS", 1)
    supervisors = Supervisors(CONFIG)
    waiting = asyncio.create_task(supervisors.needed("quick", 60))
    await asyncio.sleep(0)
    with pytest.raises(WaiterReplaced, match="worker = slow: 1 others wait"):
        await supervisors.needed("slow", 60)
    supervisors.need("quick")
    assert await waiting is True


async def test_what_a_worker_needed_that_has_gone_is_forgotten():
    supervisors = Supervisors(CONFIG)
    supervisors.need("slow")
    supervisors.set_workers(CONFIG.model_copy(update={"workers": CONFIG.workers[:1]}))
    supervisors.set_workers(CONFIG)
    assert await supervisors.needed("slow", 0) is False


async def test_the_supervisor_of_a_worker_that_has_gone_is_forgotten():
    """Nodes have new names each time: what is kept of each fills the memory in the end."""
    supervisors, fewer = Supervisors(CONFIG), {"workers": CONFIG.workers[:1]}
    for pid in (1, 2):
        supervisors.admit(message("slow", pid), 0.0)
        supervisors.set_workers(CONFIG.model_copy(update=fewer))
        supervisors.set_workers(CONFIG)
