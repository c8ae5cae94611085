"""Reapers, which remove the cgroups of models, end with them, however often these come and go."""

import asyncio
import contextlib

import pytest

from roma.config import schema
from roma.deploy import up
from roma.deploy.child import Child
from roma.deploy.model_servers import cgroups
from roma.domain.errors import LaunchError

ONE = "models: {a: {path: /nowhere, sla: {response_time: 1}}}"
TWO = ONE.replace("}}}", "}}, b: {path: /nowhere, sla: {response_time: 1}}}")
REST = "\nworkers: [{cores: 1}]\ncontrol: {dry_run: true}"


@pytest.fixture
def reaped(monkeypatch):
    """The executables of each reaper that runs; no model server is started."""
    reaped = []

    @contextlib.asynccontextmanager
    async def cgroups(_config, _hierarchy, local, **_):
        names = [e.name for e in local]
        reaped.append(names)
        try:
            yield {}
        finally:
            reaped.remove(names)

    async def serving(_):
        pass

    monkeypatch.setattr(up, "cgroups", cgroups)
    monkeypatch.setattr(up, "_until_serving", serving)
    monkeypatch.setattr(Child, "start", lambda _: None)
    return reaped


async def test_reapers_of_removed_models_end(tmp_path, reaped):
    one, two = schema.parse(ONE + REST), schema.parse(TWO + REST)
    deployment = up.Deployment(one, tmp_path / "roma.yaml", object(), None)
    await deployment.start()
    for _ in range(3):
        await deployment.follow(two)
        assert reaped == [["a@local"], ["b@local"]]
        await deployment.follow(one)
        assert reaped == [["a@local"]]
    await deployment.follow(two)
    await deployment.stop()
    assert reaped == []


async def test_the_reaper_of_a_model_that_cannot_be_started_ends(tmp_path, monkeypatch, reaped):
    deployment = up.Deployment(schema.parse(ONE + REST), tmp_path / "roma.yaml", object(), None)
    await deployment.start()

    def refused(*_, **__):
        raise LaunchError("no directory for its socket")

    monkeypatch.setattr(up, "model_server", refused)
    for _ in range(2):
        with pytest.raises(LaunchError):
            await deployment.follow(schema.parse(TWO + REST))
        assert reaped == [["a@local"]]
    await deployment.stop()
    assert reaped == []


async def test_a_machine_without_room_for_a_reaper_is_one_line(monkeypatch):
    async def none_left(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
    named = "^no program to remove cgroups: Resource temporarily unavailable$"
    with pytest.raises(LaunchError, match=named):
        async with cgroups(schema.parse(ONE + REST), object(), ()):
            pass
