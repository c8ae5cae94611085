"""`roma up` and a change of its file that cannot be in force yet: it is tried again."""

import asyncio
import logging

import pytest

from roma.config import schema
from roma.deploy import up
from roma.domain.errors import EngineError, LaunchError

pytestmark = pytest.mark.looptime

ONE = """
models: {a: {path: /nowhere, sla: {response_time: 1}}}
workers: [{cores: 1}]
control: {dry_run: true}
tokens: {exchange: token}
"""
TWO = ONE.replace("}}}", "}}, b: {path: /nowhere, sla: {response_time: 1}}}")


async def tried(file, seconds):
    """Follow a file, in which there is a model more, for so long; return why that ended, if so."""
    file.write_text(ONE)
    deployment = up.Deployment(schema.load(file), file.with_name("accepted.yaml"), None, None)
    file.write_text(TWO)
    following = asyncio.create_task(up._follow(deployment, file, asyncio.Event()))
    await asyncio.wait([following], timeout=seconds)
    following.cancel()
    (found,) = await asyncio.gather(following, return_exceptions=True)
    return None if isinstance(found, asyncio.CancelledError) else found


async def test_a_token_that_is_being_replaced_ends_nothing(tmp_path, caplog):
    assert await tried(tmp_path / "roma.yaml", 10) is None
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert f"not all of it is in force yet: tokens.exchange: {tmp_path}/token: cannot be" in line


class Refusing:
    """A deployment that cannot follow, and notes when it was asked to."""

    def __init__(self, config):
        self.config, self.times = config, []

    async def follow(self, _):
        self.times.append(asyncio.get_running_loop().time())
        raise LaunchError("another program has a container of that name")


async def test_what_stays_impossible_is_tried_with_growing_pauses_and_at_once_when_told(
    tmp_path, caplog
):
    file, told = tmp_path / "roma.yaml", asyncio.Event()
    file.write_text(ONE)
    deployment = Refusing(schema.load(file))
    file.write_text(TWO)
    following = asyncio.create_task(up._follow(deployment, file, told))
    await asyncio.sleep(100)
    assert deployment.times == pytest.approx([1, 3, 7, 15, 31, 61, 91], abs=1)
    told.set()
    await asyncio.sleep(0.5)
    assert deployment.times[7:] == pytest.approx([100], abs=0.1)
    following.cancel()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


HOSTS = """
models: {a: {path: /a, sla: {response_time: 1}}}
workers:
  - {name: away, backend: docker, cores: 2}
  - {name: here, backend: docker, cores: 2, base_port: 8700}
"""


class Host:
    """The containers of a worker, whose engine may be away."""

    broker = None

    def __init__(self, *, away):
        self.away, self.follows = away, None

    async def follow(self, config):
        if self.away:
            raise EngineError("engine tcp://away:2376: no answer in time")
        self.follows = config


async def test_an_engine_that_is_away_keeps_no_other_worker_from_following(tmp_path, monkeypatch):
    async def serve(_):
        pass

    monkeypatch.setattr(up, "_until_serving", serve)
    config = schema.parse(HOSTS)
    deployment = up.Deployment(config, tmp_path / "roma.yaml", None, None)
    deployment.launched = [Host(away=True), Host(away=False), Host(away=True)]
    words = "engine tcp://away:2376: no answer in time"
    with pytest.raises(LaunchError, match=f"^{words}; {words}$"):
        await deployment.follow(config)
    assert deployment.launched[1].follows is config


class Broken:
    """A model server that cannot run; it is tried again and again."""

    fault = LaunchError("a@w cannot run here: /nowhere: No such file or directory")
    trouble = str(fault)

    def __init__(self):
        self.fatal = asyncio.get_running_loop().create_future()

    def start(self):
        pass


@pytest.mark.parametrize("renamed", [False, True])
async def test_only_at_its_start_does_a_deployment_end_since_no_model_server_can_run(
    tmp_path, monkeypatch, renamed
):
    async def serve(_):
        pass

    monkeypatch.setattr(up, "_until_serving", serve)
    monkeypatch.setattr(up, "_check_free", lambda _: None)
    monkeypatch.setattr(up, "model_server", lambda *_, **__: Broken())
    config = schema.parse(ONE)
    deployment = up.Deployment(config, tmp_path / "roma.yaml", None, None)
    if renamed:
        await deployment.follow(schema.parse(ONE.replace("{a:", "{b:")))
    else:
        await deployment._add(up._local(config), deployment._cgroups)
    failing = asyncio.create_task(deployment.failed())
    await asyncio.wait([failing], timeout=10)
    assert failing.done() is not renamed
    failing.cancel()
    await asyncio.gather(failing, return_exceptions=True)
