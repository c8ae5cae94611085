"""Pauses between calls to an API server that refuses them, in virtual time."""

import asyncio

import pytest

from roma.kubernetes.client import ApiServerError
from roma.kubernetes.nodes import parse_node
from roma.kubernetes.watch import ObjectWatch

pytestmark = pytest.mark.looptime


class Refusing:
    """Refuses every call, and notes when it came."""

    def __init__(self, retry_after):
        self.retry_after = retry_after
        self.times = []

    async def get(self, path, timeout, **query):
        self.times.append(asyncio.get_running_loop().time())
        raise ApiServerError("no", 429, self.retry_after)


@pytest.mark.parametrize(
    ("retry_after", "times"),
    [(0, [0, 0.2, 0.6, 1.4, 3, 6.2, 11.2, 16.2]), (6, [0, 6.2, 12.6, 19.4])],
)
async def test_a_server_that_refuses_is_asked_after_growing_pauses_and_when_it_wants(
    retry_after, times
):
    client = Refusing(retry_after)
    watch = ObjectWatch(client, "/api/v1/nodes", parse_node, jitter=lambda: 0.5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.run(), 20)
    assert client.times == pytest.approx(times)
