"""Readings of model servers in pods: a pod may answer anything."""

import pytest
from aiohttp import web

from roma.kubernetes.pods import CPU_PATH, parse
from roma.tools.demo.ports import free_ports
from supervisor.actuators.pod_meters import ServerMeters
from tests.support.fake_api_server import pod
from tests.support.waiting import until

SOUND = '{"cores": 0.5, "usage": 3, "periods": 7, "throttled": 1}'


@pytest.fixture
async def answers():
    """A model server; its answers, the last of which is repeated, and the meters that ask it."""
    texts, (port,) = [], free_ports(1)

    async def answer(_):
        return web.Response(text=texts.pop(0) if len(texts) > 1 else texts[0])

    app = web.Application()
    app.router.add_get(CPU_PATH, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    meters = ServerMeters(port=port, period=0.05)
    yield texts, meters
    await meters.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "text",
    [
        SOUND.replace("0.5", "NaN"),
        SOUND.replace("0.5", "1e999"),
        SOUND.replace("0.5", "-1"),
        SOUND.replace("3", '"Infinity"'),
        SOUND.replace("7", "1" + 30 * "0"),
        "{}",
        "[" * 2000,
    ],
)
async def test_a_reading_that_no_cgroup_has_is_none(answers, text, caplog):
    texts, meters = answers
    texts += [text, SOUND]
    pods, found = {"a@w": parse(pod("a"), "model-server")}, []

    def has_read():
        found.append(meters.read(pods)["a@w"])
        return found[-1] is not None

    await until(has_read)
    assert (found[-1].cores, found[-1].usage) == (0.5, 3.0)
    assert "an answer to GET /roma/v1/cpu that is no reading" in caplog.text


async def test_nothing_is_kept_of_a_pod_that_went_while_it_could_not_be_read(answers):
    texts, meters = answers
    texts.append("{}")
    pods = {"a@w": parse(pod("a"), "model-server")}
    await until(lambda: not meters.read(pods)["a@w"] and meters._unread)
    await until(lambda: not meters.read({}) and not meters._calls)
    assert not meters.read({})
    assert not meters._unread
