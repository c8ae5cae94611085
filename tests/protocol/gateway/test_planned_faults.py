"""Planned devices that go, are late, or are not what the dispatcher thought."""

import asyncio
import dataclasses
import itertools
import json
import re
import threading
import time

import numpy as np
import pytest

from dispatcher.live.planned import client
from roma.config.watched_file import Watched
from roma.device_protocol import ActionResult, Connect, Hello, Pong, Submit, encode
from roma.domain.actions import ActionStatus, Infer, Load, ModelCapabilities
from roma.domain.errors import ConfigError
from roma.security.tokens import Token
from tests.support.planned import PlannedDeployment, doubled, passed

SECRETS = ["one-secret-of-at-least-32-characters", "another-secret-of-32-characters-and-more"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(client, "PATIENCE", (0.01, 0.05))


async def told(asking):
    status, body, _ = await asking
    found = json.loads(body)
    return status, found.get("error", found)


@pytest.fixture
async def deployment(harness):
    return await PlannedDeployment(harness).open(worker={})


async def test_a_broken_connection_fails_what_runs_once_and_serves_again(deployment):
    first = await deployment.fill()
    queue = deployment.harness.queue
    arrived, completed = queue.arrivals, queue.completed.total()  # more if it took a second try
    waiting = deployment.ask((3, 3))
    await deployment.waiting(1)
    deployment.tap.cut()
    for asking in first:
        status, words = await told(asking)
        assert status == 502
        assert "gpu0@local was lost" in words
    assert (await told(waiting))[0] == 503
    deployment.tap.results.set()
    await deployment.ready()
    assert await told(deployment.ask((4, 4))) == (200, {"predictions": doubled((4, 4))})
    assert deployment.tap.hellos[-1].offer.loaded == ("m",)
    assert deployment.worker.runtime.loaded == ["m"]  # read back, not loaded again
    assert (queue.failed, queue.rejected.total()) == (2, 1)
    assert (queue.arrivals - arrived, queue.completed.total() - completed) == (2, 1)
    assert deployment.executor.losses == 1


async def test_a_worker_that_dies_in_a_batch_and_comes_back_empty(deployment):
    await deployment.ask((0, 0))
    runtime = deployment.worker.runtime
    runtime.gate.clear()
    runtime.began.clear()
    asking = deployment.ask((1, 1))
    await deployment.harness.until(runtime.began.is_set)
    deployment.tap.cut()
    assert (await told(asking))[0] == 502
    await deployment.worker.stop()
    await deployment.start_worker()
    await deployment.ready()
    assert (await told(deployment.ask((2, 2))))[0] == 200
    assert deployment.worker.runtime.loaded == ["m"]


async def test_a_worker_that_ends_answers_what_runs_and_is_asked_for_nothing_more(deployment):
    runtime = deployment.worker.runtime
    running, waiting = await deployment.fill(gate=runtime.gate)
    late = deployment.ask((3, 3))
    await deployment.waiting(1)
    asked = len(deployment.tap.asked)
    ending = asyncio.ensure_future(deployment.worker.server.stop(60.0))
    await deployment.harness.until(lambda: deployment.executor.suspected)
    assert len(deployment.tap.asked) == asked
    runtime.gate.set()
    assert await ending
    assert await told(running) == (200, {"predictions": doubled((0, 0))})
    for asking in (waiting, late):
        status, words = await told(asking)
        assert status == 503
        assert "no executable of model m is left" in words
    assert deployment.harness.queue.failed == 0


async def test_a_worker_that_is_late_skips_and_the_next_request_is_served(harness):
    deployment = await PlannedDeployment(harness).open(worker={}, deadline=0.4)
    assert (await told(deployment.ask((0, 0))))[0] in (200, 504)  # 504: a machine that was busy
    await harness.until(lambda: deployment.executor.planned.has("m"))
    deployment.tap.submits.clear()
    asked = len(deployment.tap.asked)
    late = deployment.ask((1, 1))
    await harness.until(lambda: len(deployment.tap.asked) > asked)
    await passed(deployment.tap.asked[-1].action.latest)
    deployment.tap.submits.set()
    assert (await told(late))[0] == 504
    assert deployment.tap.told[-1].outcome.status is ActionStatus.MISSED
    status, row = None, 0
    async with asyncio.timeout(60):
        while status != 200:  # on a busy machine some may be late as well
            row += 1
            status, found = await told(deployment.ask((row, row)))
    assert (status, found) == (200, {"predictions": doubled((row, row))})
    assert harness.core.live == 0
    assert deployment.executor.losses == 0


async def test_a_device_that_sleeps_misses_what_comes_after(harness):
    deployment = await PlannedDeployment(harness).open(worker={}, deadline=0.5)
    await harness.until(lambda: deployment.executor.live)
    gate = deployment.worker.runtime.gate
    slow, late = await deployment.fill(gate=gate)
    await passed(deployment.tap.infers[-1].action.latest)
    gate.set()
    assert (await told(slow))[0] == 200  # late, but it ran
    assert (await told(late))[0] == 504
    statuses = [m.outcome.status for m in deployment.tap.told[-2:]]
    assert statuses == [ActionStatus.OK, ActionStatus.MISSED]
    assert harness.core.live == 0


def lying(pages):
    """Return a change by which a worker promises other pages than it has."""

    def change(message):
        if not isinstance(message, Hello):
            return message
        return dataclasses.replace(message, offer=dataclasses.replace(message.offer, pages=pages))

    return change


async def test_a_load_without_pages_ends_and_the_state_is_read_back(harness):
    deployment = await PlannedDeployment(harness).open(worker={"pages": 1}, serve=False)
    deployment.tap.change = lying(2)
    await deployment.serve()
    assert (await told(deployment.ask((1, 1))))[0] == 200
    asking = deployment.ask((1, 1), model="n")
    await harness.until(lambda: deployment.executor.losses >= 1)
    assert deployment.tap.told[-1].outcome.status is ActionStatus.NO_PAGES
    deployment.tap.change = lambda message: message
    assert (await told(asking))[0] == 503  # it waited when the state was read again
    await harness.until(
        lambda: deployment.executor.live and deployment.executor.planned.offer.pages == 1
    )
    assert (await told(deployment.ask((1, 1), model="n")))[0] == 200
    assert deployment.worker.runtime.loaded == ["m", "n"]


async def test_a_model_that_fits_on_no_device_is_refused_in_time(harness):
    deployment = await PlannedDeployment(harness).open(
        worker={"pages": 4, "needs": 5}, deadline=0.2
    )
    status, words = await told(deployment.ask((1, 1)))
    assert status == 504
    # A busy machine looks when the deadline itself has passed.
    assert re.search("the deadline is before that|deadline passed after", words)
    assert not deployment.tap.loads


async def test_a_model_that_was_not_loaded_after_all(deployment):
    def change(message):
        if isinstance(message, ActionResult) and message.outcome.id == number:
            outcome = dataclasses.replace(message.outcome, status=ActionStatus.NOT_LOADED)
            return ActionResult(outcome)
        return message

    await deployment.ask((1, 1))
    number = deployment.tap.asked[-1].action.id + 1
    deployment.tap.change = change
    assert (await told(deployment.ask((2, 2))))[0] == 502
    await deployment.harness.until(
        lambda: deployment.executor.losses == 1 and deployment.executor.live
    )
    assert (await told(deployment.ask((3, 3))))[0] == 200
    assert len(deployment.tap.hellos) == 2


async def test_a_load_that_fails_is_tried_again(deployment):
    fails = [RuntimeError("a bus error")]
    load = deployment.worker.runtime.load

    def stumble(name):
        if fails:
            raise fails.pop()
        load(name)

    deployment.worker.runtime.load = stumble
    assert (await told(deployment.ask((1, 1))))[0] == 200
    assert [isinstance(m.action, Load) for m in deployment.tap.asked] == [True, True, False]
    assert deployment.executor.losses == 0


async def test_a_device_that_hangs_is_given_up(harness):
    deployment = await PlannedDeployment(harness).open(worker={}, gateway={"backend_timeout": 0.3})
    await deployment.ask((0, 0))
    deployment.worker.runtime.gate.clear()
    status, words = await told(deployment.ask((1, 1)))
    assert status == 502
    assert "was lost" in words
    deployment.worker.runtime.gate.set()
    await deployment.ready()
    assert (await told(deployment.ask((2, 2))))[0] == 200


async def test_a_worker_that_says_nothing_is_given_up(deployment, monkeypatch, caplog):
    monkeypatch.setattr(client, "SILENCE", 0.5)
    monkeypatch.setattr(client, "PERIOD", 0.05)
    deployment.tap.change = lambda message: None if isinstance(message, Pong) else message
    await deployment.harness.until(lambda: not deployment.executor.live)
    assert "said nothing for 0.5 s" in caplog.text
    deployment.tap.change = lambda message: message
    monkeypatch.setattr(client, "SILENCE", 60.0)
    await deployment.ready()
    assert (await told(deployment.ask((2, 2))))[0] == 200


async def test_windows_are_told_on_the_workers_clock(harness):
    ahead = 1000.0
    deployment = await PlannedDeployment(harness).open(worker={}, serve=False)

    def change(message):  # the worker's clock is ahead, as that of another host may be
        if isinstance(message, Pong):
            return dataclasses.replace(message, clock=message.clock + ahead)
        if isinstance(message, Submit):
            action = message.action
            window = {key: getattr(action, key) - ahead for key in ("earliest", "latest")}
            return dataclasses.replace(message, action=dataclasses.replace(action, **window))
        return message

    deployment.tap.change = change
    await deployment.serve()
    assert (await told(deployment.ask((1, 1))))[0] == 200
    for message in deployment.tap.asked:
        assert message.action.latest - time.monotonic() > ahead / 2
        assert message.action.earliest <= time.monotonic() + ahead + 0.1


async def test_a_result_that_nobody_asked_for_ends_the_connection(deployment, caplog):
    def change(message):
        if isinstance(message, ActionResult):
            return ActionResult(dataclasses.replace(message.outcome, id=10**6))
        return message

    deployment.tap.change = change
    assert (await told(deployment.ask((1, 1))))[0] in (502, 503)
    assert "action 1000000: was not asked for" in caplog.text
    deployment.tap.change = lambda message: message
    await deployment.ready()
    assert (await told(deployment.ask((1, 1))))[0] == 200


async def test_what_is_no_protocol_is_told_once(harness, caplog):
    deployment = await PlannedDeployment(harness).open(serve=False)
    talks = 0

    async def talk(reader, writer):
        nonlocal talks
        talks += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", deployment.device_port)
    harness.stack.callback(server.close)
    (worker,) = deployment.data["workers"]
    worker["executables"][0]["actions"] = f"127.0.0.1:{deployment.device_port}"
    await deployment.serve()
    await harness.until(lambda: talks >= 3)
    said = [r for r in caplog.records if "this is another protocol" in r.getMessage()]
    assert len(said) == 1
    assert not deployment.executor.live


async def test_a_device_that_closes_before_it_is_greeted_is_tried_again(
    harness, tmp_path, monkeypatch, caplog
):
    """A tunnel whose other end is gone does so: it accepts, and closes while the token is read."""
    lost = threading.Event()

    class Watching(client.Link):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(client, "Link", Watching)
    monkeypatch.setattr(Watched, "look", lambda _: lost.wait(60))
    file = tmp_path / "token"
    file.write_text(SECRETS[0])
    deployment = await PlannedDeployment(harness).open(serve=False, token=file)  # and no worker
    await deployment.serve()
    await harness.until(lambda: "the connection was closed" in caplog.text)
    await deployment.start_worker(token=Watched([], lambda: Token(SECRETS[0])))
    await deployment.ready()
    assert (await told(deployment.ask((1, 1))))[0] == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": {}}, "models: lacks m, n of roma.yaml, has none"),
        ({"pages": 0}, "pages = 0: must be ≥ 1"),
        ({"loaded": ("m", "m")}, "loaded: names a model twice"),
        ({"loaded": ("other",)}, "loaded: names other"),
        ({"pages": 1, "loaded": ("m", "n")}, "loaded = 2 pages: must be ≤ 1"),
        ({"m": ModelCapabilities(1, -1.0, {1: 1.0})}, "models.m.load = -1.0: must be seconds, ≥ 0"),
        (
            {"m": ModelCapabilities(1, 1.0, {1: -1.0})},
            "models.m: batch 1 = -1.0: must be seconds, > 0",
        ),
        (
            {"m": ModelCapabilities(1, 1.0, {1: 1.0, 65: 1.0})},
            "models.m: batch = 65: must be from 1 to 64",
        ),
        ({"m": ModelCapabilities(1, 1.0, {2: 1.0})}, "models.m: batch sizes: must have 1"),
    ],
)
async def test_an_offer_that_does_not_hold_together_is_refused(harness, caplog, change, words):
    deployment = await PlannedDeployment(harness).open(serve=False)

    def lie(message):
        if not isinstance(message, Hello):
            return message
        offer = message.offer
        if "m" in change:
            new = dataclasses.replace(offer, models={**offer.models, **change})
        else:
            new = dataclasses.replace(offer, **change)
        return dataclasses.replace(message, offer=new)

    deployment.tap.change = lie
    await deployment.start_worker()
    await deployment.serve(ready=False)
    await harness.until(lambda: words in caplog.text)
    await harness.until(lambda: len(deployment.tap.hellos) >= 3)
    assert not deployment.executor.live
    said = [r for r in caplog.records if words in r.getMessage()]
    assert len(said) == 1  # however often it is tried
    deployment.tap.change = lambda message: message
    await deployment.ready()
    assert (await told(deployment.ask((1, 1))))[0] == 200
    assert deployment.worker.runtime.loaded == ["m"]


async def test_another_token_is_refused_and_a_new_one_is_read(harness, tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text(SECRETS[1])
    deployment = await PlannedDeployment(harness).open(serve=False, token=file)
    await deployment.start_worker(token=Watched([], lambda: Token(SECRETS[0])))
    await deployment.serve(ready=False)
    await harness.until(lambda: "token: is not the one" in caplog.text)
    assert not deployment.executor.live
    file.write_text(SECRETS[0])
    await deployment.ready()
    assert (await told(deployment.ask((1, 1))))[0] == 200
    assert not any(secret in caplog.text for secret in SECRETS)


async def test_a_token_file_that_is_not_there_ends_the_start(harness, tmp_path):
    deployment = await PlannedDeployment(harness).open(serve=False, token=tmp_path / "none")
    with pytest.raises(ConfigError, match="none: cannot be read"):
        await deployment.serve()


async def test_a_worker_that_has_a_dispatcher_is_waited_for(harness, caplog):
    deployment = await PlannedDeployment(harness).open(serve=False)
    await deployment.start_worker()
    reader, writer = await asyncio.open_connection("127.0.0.1", deployment.device_port)
    writer.writelines(encode(Connect("another")))
    assert await reader.read(1)
    await deployment.serve(ready=False)
    await harness.until(
        lambda: "it refuses us: a device takes one dispatcher: another" in caplog.text
    )
    assert not deployment.executor.live
    writer.close()
    await deployment.ready()


async def test_operators_are_told_why_a_device_is_not_connected(harness):
    deployment = await PlannedDeployment(harness).open(serve=False)
    (listed,) = deployment.data["workers"][0]["executables"]
    listed["actions"] = f"127.0.0.1:{deployment.device_port}"
    await deployment.serve()
    reasons = harness.service.reasons
    await harness.until(lambda: reasons.for_operators("gpu0@local"))
    why = f"gpu0@local: cannot connect to {listed['actions']}: connection refused"
    assert reasons.for_operators("gpu0@local") == why
    assert reasons.of_model("m") == ""  # the device may come
    await deployment.start_worker()
    await deployment.ready()
    assert reasons.for_operators("gpu0@local") == ""
    assert reasons.unreached == {}


async def test_every_request_ends_once_whatever_the_wire_does(deployment):
    asked = []
    for round_ in range(4):
        asked += [deployment.ask((i, i), (i, i), model="mn"[i % 2]) for i in range(12)]
        await asyncio.sleep(0.01 * round_)
        await deployment.reconnected()
    statuses = [(await told(a))[0] for a in asked]
    assert set(statuses) <= {200, 502, 503}
    core = deployment.harness.core
    assert core.live == 0
    for queue in core.queues.values():
        ends = queue.completed.total(), queue.failed, queue.rejected.total(), queue.cancelled
        assert sum(ends) == queue.arrivals
    assert (await told(deployment.ask((1, 1))))[0] == 200
    assert all(isinstance(m, Submit) for m in deployment.tap.asked)
    assert all(m.action.batch == len(m.inputs["x"]) for m in deployment.tap.infers)
    assert all(isinstance(m.action, Infer) for m in deployment.tap.infers)


async def test_outputs_that_depend_on_the_input_cost_nobody_else_his_answer(deployment):
    """Two examples of one request whose outputs have different lengths cannot be one answer."""
    lengths = itertools.count(1)
    execute = deployment.worker.runtime.execute

    def ragged(name, signature, staged):
        found = execute(name, signature, staged)
        return {"y": np.repeat(found["y"], next(lengths), axis=1)}

    deployment.worker.runtime.execute = ragged
    await deployment.ask((0, 0))
    # The device is idle: the first example runs alone, the second after it.
    status, words = await told(deployment.ask((1, 1), (2, 2)))
    assert status == 502
    assert "differ in name or shape" in words
    assert deployment.executor.losses == 0
    assert deployment.harness.core.live == 0
    assert (await told(deployment.ask((3, 3))))[0] == 200
