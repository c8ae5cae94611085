"""A supervisor's calls to a broker that refuses it, or to another program on the socket."""

import asyncio

import pytest
from aiohttp import web

from roma.domain.errors import BrokerRefused, EngineError
from supervisor.actuators.docker import DockerActuator
from supervisor.broker.client import LAUNCH_TIMEOUT, calling
from supervisor.broker.containers import Container
from supervisor.broker.engine import PULL_TIMEOUT
from supervisor.executables import Reading
from tests.support.served import served


class FakeBroker:
    """Answers every call with `status` and `body`, after `delay` seconds."""

    status, body, delay = 200, "{}", 0.0

    async def answer(self, _):
        await asyncio.sleep(self.delay)
        return web.Response(status=self.status, text=self.body)


@pytest.fixture
async def broker(tmp_path):
    """A fake, and a client of it."""
    fake, path = FakeBroker(), tmp_path / "b"
    everything = web.route("*", "/{path:.*}", fake.answer)
    async with served(everything, path=path), calling(path, 5.0) as client:
        yield fake, client


async def test_one_that_refuses_its_supervisor_fails_the_grants_and_ends_nothing(broker):
    fake, client = broker
    fake.status, fake.body = 403, '{"error": "user 5 may not call this broker (docker.callers)"}'
    actuator = DockerActuator(client, None, timeout=5.0)
    found = await actuator.apply({"a@w": 1.0, "b@w": 0.5})
    assert list(found) == ["a@w", "b@w"]
    assert all(isinstance(error, BrokerRefused) for error in found.values())
    assert str(found["a@w"]).endswith("user 5 may not call this broker (docker.callers)")


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "5", '{"a@w": 5}', '{"a@w": {}}', '{"a@w": {"cores": "x"}}']
)
async def test_an_answer_that_is_no_broker_s_is_one_line(broker, body):
    fake, client = broker
    fake.body = body
    words = "answered, but not as a broker does"
    for call in (client.containers, client.readings, client.known):
        with pytest.raises(EngineError, match=words):
            await call()
    (error,) = (await DockerActuator(client, None, timeout=5.0).apply({"a@w": 1.0})).values()
    assert words in str(error)


async def test_one_of_a_later_version_may_say_more(broker):
    fake, client = broker
    fake.body = '{"a@w": {"executable": "a@w", "id": "1", "running": true, "more": 1}}'
    assert await client.containers() == {"a@w": Container("a@w", "1", True)}
    fake.body = '{"a@w": {"cores": 1, "usage": 2, "periods": 3, "throttled": null, "more": 1}}'
    assert await client.readings() == {"a@w": Reading(1.0, 2.0, 3, None)}
    assert await client.grant({"a@w": 1.0}) == {"a@w": 1.0}
    fake.body = '{"a@w": {"error": "it is gone", "more": 1}}'
    assert str((await client.readings())["a@w"]) == "it is gone"


@pytest.mark.looptime
async def test_an_image_may_take_longer_to_arrive_than_an_http_client_waits(broker):
    fake, client = broker
    fake.delay = PULL_TIMEOUT
    await client.create("a@w")
    assert asyncio.get_running_loop().time() >= PULL_TIMEOUT
    fake.delay = LAUNCH_TIMEOUT + 1
    with pytest.raises(EngineError, match="no answer in time"):
        await client.create("a@w")
