"""Models that come and go while the dispatcher runs; the others notice nothing."""

import asyncio
import json

import pytest

from dispatcher.live.service import STARTING
from roma.config import schema
from roma.domain.errors import ConfigError
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import FakeModelServer
from tests.support.handler import Passing

MODEL = "{path: /m, sla: {response_time: 5}, cpu: {max: 1, initial: 1}, slot: %d}"
# A worker whose model servers somebody starts for these tests, at the ports that roma.yaml means.
YAML = """
models:
MODELS
workers:
  - {name: w, backend: BACKEND, cores: 4, base_port: PORT}
gateway: {port: GATEWAY, admin_port: ADMIN, drain_timeout: 5}
"""


@pytest.fixture
async def town(harness):
    """A dispatcher with models a and b, and a third model server; `file(names)` is a roma.yaml."""
    gateway, admin, *ports = free_ports(5)
    base = min(ports)
    text = YAML.replace("GATEWAY", str(gateway)).replace("ADMIN", str(admin))
    text = text.replace("PORT", str(base)).replace("BACKEND", "process")

    def file(names, extra=""):
        models = "\n".join(f"  {m}: " + MODEL % (ports["abc".index(m)] - base) for m in names)
        return schema.parse(text.replace("MODELS", models) + extra)

    harness.file = file
    harness.servers = {m: FakeModelServer(port) for m, port in zip("abc", ports, strict=True)}
    for server in harness.servers.values():
        await harness.stack.enter_async_context(server)
    await harness.serve(file("ab"))
    await harness.until(lambda: all(e.live for e in harness.core.executors))
    return harness


async def predict(town, model):
    return (await town.predict(path=f"/v1/models/{model}:predict"))[0]


async def test_a_model_that_comes_is_served_when_it_is_loaded(town):
    third = town.servers["c"]
    third.available = False
    assert await predict(town, "c") == 404
    await town.registry.follow(town.file("abc"))
    assert await predict(town, "c") == 503  # known, and not loaded yet
    assert (await town.get("/readyz"))[0] == 200  # the others are as ready as before
    third.available = True
    await town.until(lambda: town.core.executors["c@w"].live)
    assert await predict(town, "c") == 200
    assert len(third.seen) == 1
    await third.stop()
    await town.until(lambda: not town.core.executors["c@w"].live)
    assert (await town.get("/readyz"))[0] == 503  # once it was served, it is missed


async def test_a_gateway_beside_others_is_ready_while_it_serves_any_model(town):
    assert (await town.get("/readyz?any=1"))[0] == 200
    for model, status in (("a", 200), ("b", 503)):
        assert (await town.get("/readyz?any"))[0] == 200
        await town.servers[model].stop()
        await town.until(lambda model=model: not town.core.executors[f"{model}@w"].live)
        assert (await town.get("/readyz"))[0] == 503
        assert (await town.get("/readyz?any"))[0] == status


async def test_one_that_starts_beside_others_is_ready_for_any_once_it_had_time_for_all(town):
    town.service._was_ready = False  # as if it had just started
    await town.servers["b"].stop()
    await town.until(lambda: not town.core.executors["b@w"].live)
    assert (await town.get("/readyz?any"))[0] == 503
    town.service._began -= STARTING
    assert (await town.get("/readyz?any"))[0] == 200


async def test_a_model_that_goes_answers_those_who_wait_and_nobody_else(town):
    server = town.servers["a"]
    server.gate = asyncio.Event()
    calls = [asyncio.create_task(predict(town, "a")) for _ in range(3)]
    await town.until(lambda: len(town.core.queues["a"]) == 2)
    going = asyncio.create_task(town.registry.follow(town.file("b")))
    await town.until(lambda: "a" in town.service.closing)
    assert await predict(town, "a") == 404
    assert await predict(town, "b") == 200
    server.gate.set()
    assert await asyncio.gather(*calls) == [200, 200, 200]
    await going
    assert list(town.core.queues) == ["b"]
    assert [e.spec.name for e in town.core.executors] == ["b@w"]
    assert (await town.get("/readyz"))[0] == 200
    assert (await town.get("/v1/models/a"))[0] == 404
    await town.registry.follow(town.file("ab"))  # and it may come back
    await town.until(lambda: town.core.executors["a@w"].live)
    assert await predict(town, "a") == 200


async def test_a_body_that_comes_while_its_model_goes_is_not_queued(town):
    reading, handler = asyncio.Event(), town.server.handler

    class Watched(Passing):
        def check_before_body(self, request):
            refusal = handler.check_before_body(request)
            reading.set()
            return refusal

    async def body():
        yield b'{"instances": '
        await reading.wait()  # it has passed the first look at its model
        await town.registry.follow(town.file("b"))
        yield b"[1]}"

    town.server.handler = Watched(handler)
    assert (await town.predict(body(), path="/v1/models/a:predict"))[0] == 404


async def test_what_takes_a_restart_is_named_and_changes_nothing(town):
    with pytest.raises(ConfigError, match=r"scheduling\.gpu changed: takes a restart"):
        await town.registry.follow(town.file("b", "scheduling: {gpu: fcfs}\n"))
    assert list(town.core.queues) == ["a", "b"]
    assert await predict(town, "a") == 200


async def test_models_come_and_go_under_load_and_the_others_lose_nothing(town):
    async def steady():
        return [await predict(town, "b") for _ in range(150)]

    load = [asyncio.create_task(steady()) for _ in range(3)]
    for names in ("b", "bc", "abc", "bc", "b", "ab"):
        await town.registry.follow(town.file(names))
    assert {s for statuses in await asyncio.gather(*load) for s in statuses} == {200}
    assert list(town.core.queues) == ["b", "a"]


async def test_of_what_has_gone_nothing_is_kept(town):
    """Pods have new names each time: what is kept of each fills the memory in the end."""
    town.servers["c"].available = False
    await town.registry.follow(town.file("abc"))
    await town.registry.follow(town.file("b"))
    assert list(town.service.driver.suspects) == ["b@w"]
    assert list(town.core.executors._by_model) == ["b"]
    assert not town.service.warming_up
    await town.registry.follow(town.file("ab"))
    await town.until(lambda: town.core.executors["a@w"].live)
    assert await predict(town, "a") == 200


END = {
    "model_version_status": [
        {
            "version": "1",
            "state": "END",
            "status": {"error_code": "INVALID_ARGUMENT", "error_message": "no such op:\n  Gelu"},
        }
    ]
}


async def tells(town, state):
    """Wait until the gateway's status of model c is this one; return what it says."""
    async with asyncio.timeout(60):  # a look may fail where the machine is busy
        while True:
            status, body = await town.get("/v1/models/c")
            if (
                status == 200
                and (found := json.loads(body))["model_version_status"][0]["state"] == state
            ):
                return found
            await asyncio.sleep(0.05)


async def test_a_model_whose_server_says_why_it_cannot_load_is_unavailable_for_that_reason(town):
    third, why = town.servers["c"], "c@w: model c is not available: no such op: Gelu"
    third.status_body = json.dumps(END).encode()
    await town.registry.follow(town.file("abc"))
    service = town.registry._service
    await town.until(lambda: service.reasons.of("c@w") == why)
    # Its own server tells its status; everything else is told the reason.
    assert await tells(town, "END") == END
    status, body = await town.get("/v1/models/c/metadata")
    assert (status, json.loads(body)["error"]) == (
        503,
        f"no executable of model c is ready: {why}",
    )
    assert (await town.get("/readyz"))[0] == 200
    # Nobody needs a key for that, so it has no paths of models.
    town.service.warming_up.clear()
    status, body = await town.get("/readyz")
    assert (status, json.loads(body)["error"]) == (503, "no executable is ready for: c")
    # Put right, it is forgotten; what only starts has no fault.
    third.status_body = None
    third.available = False
    await town.until(lambda: not service.reasons.of("c@w"))
    await tells(town, "LOADING")
    third.available = True
    await town.until(lambda: town.core.executors["c@w"].live)
    assert (await town.get("/v1/models/c"))[0] == 200
