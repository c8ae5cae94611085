"""What removes the cgroups of a model ends with it, however often models come and go."""

import contextlib

from roma.config import schema
from roma.deploy import up
from roma.deploy.child import Child

ONE = "models: {a: {path: /nowhere, sla: {response_time: 1}}}"
TWO = ONE.replace("}}}", "}}, b: {path: /nowhere, sla: {response_time: 1}}}")
REST = "\nworkers: [{cores: 1}]\ncontrol: {dry_run: true}"


async def test_reapers_of_removed_models_end(tmp_path, monkeypatch):
    reaped = []

    @contextlib.asynccontextmanager
    async def cgroups(_config, _hierarchy, local, **_):
        names = [e.name for e in local]
        reaped.append(names)
        yield {}
        reaped.remove(names)

    async def serving(_):
        pass

    monkeypatch.setattr(up, "cgroups", cgroups)
    monkeypatch.setattr(up, "_until_serving", serving)
    monkeypatch.setattr(Child, "start", lambda _: None)
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
