"""Leader election with an API server that answers slowly, in virtual time."""

import asyncio
import copy

import pytest

from roma.kubernetes.client import ApiServerError
from roma.kubernetes.lease import LeaderLease

pytestmark = pytest.mark.looptime


class SlowServer:
    """Keeps one Lease; each call takes `delay` seconds, half of them before it has effect."""

    def __init__(self, delay):
        self.delay = delay
        self.lease = {"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {}}
        self.calls = []

    async def get(self, path, timeout):
        return await self._answer("GET", timeout)

    async def put(self, path, body, timeout):
        return await self._answer("PUT", timeout, copy.deepcopy(body))

    async def _answer(self, method, timeout, body=None):
        self.calls.append(method)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(self.delay / 2)
                if body is not None:
                    self._replace(body)
                found = copy.deepcopy(self.lease)
                await asyncio.sleep(self.delay / 2)
        except TimeoutError as error:
            raise ApiServerError("not reachable") from error
        return found

    def _replace(self, body):
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ApiServerError("the object has been modified", 409)
        body["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.lease = body


async def watched(leases, seconds):
    """Return which of the leases are held, at each hundredth of a second."""
    found = []
    for _ in range(100 * seconds):
        await asyncio.sleep(0.01)
        found.append([lease.is_held for lease in leases])
    return found


@pytest.mark.parametrize("delay", [0.02, 0.4, 0.7])
async def test_who_leads_leads_on_while_the_server_is_slow(delay):
    server = SlowServer(delay)
    first, second = (LeaderLease(server, "ns", "l", f"http://{name}") for name in "ab")
    await first.acquired()
    tasks = [asyncio.create_task(first.keep()), asyncio.create_task(second.acquired())]
    assert all(held == [True, False] for held in await watched([first, second], 30))
    tasks[0].cancel()  # it dies
    await tasks[1]
    assert not first.is_held
    assert second.is_held


async def test_a_renewal_is_one_call():
    server = SlowServer(0.01)
    lease = LeaderLease(server, "ns", "l", "http://a")
    await lease.acquired()
    assert server.calls == ["GET", "PUT"]
    assert await lease._attempt()
    assert server.calls == ["GET", "PUT", "PUT"]
    server.lease["metadata"]["resourceVersion"] = "7"  # somebody has changed it, and not its holder
    assert await lease._attempt()
    assert server.calls[3:] == ["PUT", "GET", "PUT"]
