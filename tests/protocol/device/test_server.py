"""A worker over a real socket: what it is told, it does, in its window, for one dispatcher."""

import asyncio
import math
import time

import numpy as np
import pytest

from roma.device import models_table, server
from roma.device.emulated import EmulatedRuntime
from roma.device_protocol import (
    MAX_PAYLOAD,
    ActionResult,
    Connect,
    Hello,
    Ping,
    Refused,
    Submit,
)
from roma.domain.actions import ActionStatus, Capabilities, Infer, Load, Unload
from roma.domain.errors import TensorError
from roma.security import tokens
from tests.support.waiting import until


@pytest.fixture
async def connect(working, hand):
    """A worker that runs: `connect()` is a dispatcher."""
    async with working(hand) as connect:
        yield connect


@pytest.fixture
async def link(connect):
    """A dispatcher whose device has loaded m."""
    link = await connect()
    await link.did(Load)
    return link


@pytest.fixture
def _copying(hand):
    """Let the device copy inputs and outputs beside executions."""
    hand.copies = True


async def test_the_first_answer_says_what_the_device_can_do(working, hand):
    async with working(hand, pages=7) as connect:
        link = await connect()
        assert link.hello.worker == "w"
        assert link.hello.offer == Capabilities(7, {n: hand.known(n) for n in ("m", "n")}, ())
        assert link.hello.signatures["m"] == hand.models["m"].signatures


async def test_load_infer_unload(connect, hand):
    link = await connect()
    assert await link.status(Infer) is ActionStatus.NOT_LOADED
    assert await link.status(Load) is ActionStatus.OK
    result = await link.did(Infer, batch=2)
    assert result.outcome.status is ActionStatus.OK
    assert result.outputs["y"].tolist() == [[2, 2], [2, 2]]
    assert result.outcome.began <= result.outcome.ended
    assert await link.status(Unload) is ActionStatus.OK
    assert await link.status(Infer) is ActionStatus.NOT_LOADED
    assert await link.status(Load) is ActionStatus.OK
    assert hand.done == [("load", "m"), ("execute", "m"), ("unload", "m"), ("load", "m")]


async def test_the_emulated_device_answers_zeros(working):
    runtime = EmulatedRuntime(models_table.copies({"resnet18": 2}), full=True)
    async with working(runtime, pages=3) as connect:
        link = await connect()
        assert link.hello.offer.models == models_table.offers({"resnet18": 2})
        assert await link.status(Load, "resnet18-1") is ActionStatus.OK
        assert await link.status(Load, "resnet18-0") is ActionStatus.NO_PAGES
        inputs = {"input": np.zeros((1, 3, 224, 224), np.float32)}
        result = await link.did(Infer, "resnet18-1", inputs=inputs)
        assert result.outcome.status is ActionStatus.OK
        assert result.outputs["output"].shape == (1, 1000)
        assert not result.outputs["output"].any()
        assert result.outcome.duration >= runtime.known("resnet18-1").executions[1]


async def test_an_action_waits_for_its_window(link):
    earliest = time.monotonic() + 0.05
    outcome = (await link.did(Infer, earliest=earliest)).outcome
    assert outcome.status is ActionStatus.OK
    assert outcome.began >= earliest


async def test_an_infer_runs_while_a_load_does(link, hand):
    hand.gate.clear()
    link.submit(Infer)
    link.submit(Load, "n")
    await until(lambda: len(hand.done) == 3)
    assert set(hand.done[1:]) == {("execute", "m"), ("load", "n")}


@pytest.mark.parametrize(
    ("kwargs", "detail"),
    [
        ({"inputs": {}}, "input x: is not there: must be x"),
        ({"inputs": {"x": np.ones((1, 3), np.float32)}}, "input x: shape = [1, 3]: must be"),
        ({"inputs": {"x": np.ones((1, 2))}}, "input x: dtype = float64: must be float32"),
        ({"batch": 3}, "batch = 3: must be one of 1, 2"),
        ({"model": "z"}, "model = z: must be one that this device has"),
    ],
)
async def test_what_does_not_fit_never_reaches_the_device(link, hand, kwargs, detail):
    outcome = (await link.did(Infer, **kwargs)).outcome
    assert outcome.status is ActionStatus.INVALID
    assert outcome.detail.startswith(detail)
    assert hand.done == [("load", "m")]


async def test_an_unknown_signature_is_told_by_name(connect):
    link = await connect()
    link.send(Submit(Infer(1, "m", 1, 0.0, math.inf), "other"))
    outcome = (await link.read()).outcome
    assert outcome.detail == "signature = other: must be one of serving_default"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ValueError("no kernel"), ActionStatus.ERROR),
        (TensorError("no kernel"), ActionStatus.INVALID),
    ],
)
async def test_what_a_model_raises_is_its_outcome(link, hand, fault, status):
    hand.fault = fault
    outcome = (await link.did(Infer)).outcome
    assert (outcome.status, outcome.detail) == (status, "no kernel")
    hand.fault = None
    assert await link.status(Infer) is ActionStatus.OK


async def test_a_failed_load_gives_its_pages_back(working, hand):
    async with working(hand, pages=1) as connect:
        link = await connect()
        hand.fault = RuntimeError("out of memory")
        assert await link.status(Load) is ActionStatus.ERROR
        hand.fault = None
        assert await link.status(Load, "n") is ActionStatus.OK


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (np.array(["text"]), "cannot be sent"),
        (np.zeros(MAX_PAYLOAD + 8, np.uint8), "payload = 268435464 bytes: must be ≤ 268435456"),
    ],
    ids=["type", "size"],
)
async def test_an_output_that_cannot_be_sent_is_an_error(link, hand, output, words):
    hand.output = output
    outcome = (await link.did(Infer)).outcome
    assert outcome.status is ActionStatus.ERROR
    assert words in outcome.detail


@pytest.mark.parametrize("bounds", [{"max_waiting": 2}, {"max_waiting_bytes": 16}])
async def test_what_waits_is_bounded(working, hand, bounds):
    async with working(hand, **bounds) as connect:
        link = await connect()
        await link.did(Load)
        hand.gate.clear()
        link.submit(Infer)
        link.submit(Infer)
        link.submit(Infer)
        refused = (await link.read()).outcome
        assert (refused.id, refused.status) == (4, ActionStatus.BUSY)
        hand.gate.set()
        assert [(await link.read()).outcome.status for _ in range(2)] == [ActionStatus.OK] * 2
        assert await link.status(Infer) is ActionStatus.OK


async def test_a_second_dispatcher_is_refused_until_the_first_is_gone(connect):
    first = await connect()
    second = await connect(greet=False)
    answer = await second.greet()
    assert isinstance(answer, Refused)
    assert answer.reason.startswith("a device takes one dispatcher: test at 127.0.0.1:")
    assert await second.read() is None
    assert await first.status(Load) is ActionStatus.OK
    await first.close()
    await until(
        lambda: connect.server.unauthenticated == 0 and "no dispatcher" in repr(connect.server)
    )
    third = await connect()
    assert third.hello.offer.loaded == ("m",)


async def test_a_lost_connection_drops_what_waits_and_keeps_what_is_loaded(connect, hand):
    first = await connect()
    await first.did(Load)
    hand.gate.clear()
    first.submit(Infer)
    first.submit(Load, "n")
    first.submit(Infer)
    first.submit(Infer, earliest=time.monotonic() + 3600)
    await until(lambda: len(hand.done) == 3)
    await first.close()
    await until(lambda: "no dispatcher" in repr(connect.server))
    second = await connect(greet=False)
    second.send(Connect("again"))
    await until(lambda: "again" in repr(connect.server))
    # What the first one left running is not over, so that nothing can be promised yet.
    hand.gate.set()
    hello = await second.read()
    assert isinstance(hello, Hello)
    assert hello.offer.loaded == ("m", "n")
    # The second one's numbers begin anew, and mean its own actions.
    assert await second.status(Infer) is ActionStatus.OK
    assert await second.status(Unload) is ActionStatus.OK
    assert hand.done.count(("execute", "m")) == 2


async def test_a_token_lets_in_who_shows_it(working, hand, tmp_path):
    secret = tokens.new()
    file = tmp_path / "token"
    file.write_text(secret)
    async with working(hand, token=tokens.watched(file)) as connect:
        for wrong in ("", "x" * 43):
            unknown = await connect(greet=False)
            answer = await unknown.greet(wrong)
            assert answer == Refused("token: is not the one that this device was given")
            assert await unknown.read() is None
        link = await connect(greet=False)
        assert isinstance(await link.greet(secret), Hello)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Ping(1.0), "Ping: must not come now"),
        (Submit(Unload(1, "m")), "Submit: must not come now"),
        (Submit(Unload(1, "m"), "", {"x": np.zeros(1)}), "payload = 8 bytes: must be ≤ 0"),
        (Connect("x" * 2**15), "header = "),
    ],
    ids=["ping", "submit", "payload", "header"],
)
async def test_a_stranger_can_do_nothing(connect, message, reason):
    link = await connect(greet=False)
    link.send(message)
    answer = await link.read()
    assert isinstance(answer, Refused)
    assert answer.reason.startswith(reason)


async def test_another_protocol_is_told(connect):
    link = await connect(greet=False)
    link.writer.write(b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n")
    answer = await link.read()
    assert "this is another protocol" in answer.reason
    assert await link.read() is None


async def test_a_second_connect_ends_the_connection_and_frees_the_worker(connect):
    link = await connect()
    assert await link.greet() == Refused("Connect: must not come now")
    await until(lambda: "no dispatcher" in repr(connect.server))
    await connect()


async def test_inputs_beyond_the_limit_are_refused(working, hand):
    async with working(hand, max_payload=64) as connect:
        link = await connect()
        link.submit(Infer, inputs={"x": np.zeros((1, 200), np.float32)})
        assert (await link.read()) == Refused("payload = 800 bytes: must be ≤ 64")


async def test_strangers_are_few(connect, monkeypatch):
    monkeypatch.setattr(server, "MAX_UNAUTHENTICATED", 1)
    await connect(greet=False)
    second = await connect(greet=False)
    assert await second.read() == Refused("connections = 2: must be ≤ 1")


async def test_who_says_nothing_is_let_go(connect, monkeypatch):
    monkeypatch.setattr(server, "CONNECT_LIMIT", 0.01)
    link = await connect(greet=False)
    assert isinstance(await link.read(), Refused)


async def test_a_worker_that_ends_tells_of_what_runs_and_begins_nothing(connect, link, hand):
    hand.gate.clear()
    running = link.submit(Infer)
    waiting = [link.submit(Infer), link.submit(Infer, earliest=time.monotonic() + 3600)]
    await until(lambda: len(hand.done) == 2)
    ending = asyncio.ensure_future(connect.server.stop(60.0))
    await asyncio.sleep(0)
    waiting.append(link.submit(Infer))
    # They were not begun, so that their dispatcher may have another device execute them.
    for asked in waiting:
        refused = await link.read()
        assert (refused.outcome.id, refused.outcome.status) == (asked, ActionStatus.ENDING)
    hand.gate.set()
    result = await link.read()
    assert isinstance(result, ActionResult)
    assert (result.outcome.id, result.outcome.status) == (running, ActionStatus.OK)
    assert await link.read() is None
    assert await ending
    assert hand.done.count(("execute", "m")) == 1


@pytest.mark.usefixtures("_copying")
async def test_inputs_are_staged_and_outputs_fetched_beside_executions(link, hand):
    hand.gated = {"execute"}
    hand.gate.clear()
    link.submit(Infer)
    link.submit(Infer)
    await until(lambda: len(hand.done) == 4)
    # The second one's inputs are there while the first is executed.
    assert sorted(hand.done[1:]) == [("execute", "m"), ("stage", "m"), ("stage", "m")]
    hand.gate.set()
    for _ in range(2):
        result = await link.read()
        assert result.outcome.status is ActionStatus.OK
        assert result.outputs["y"].tolist() == [[2, 2]]
    hand.gated = {"fetch"}
    hand.gate.clear()
    link.submit(Infer)
    link.submit(Infer)
    # The second one is executed while the first one's outputs are fetched.
    await until(lambda: hand.done.count(("execute", "m")) == 4)
    await until(lambda: hand.done.count(("fetch", "m")) == 3)
    hand.gate.set()
    assert [(await link.read()).outcome.status for _ in range(2)] == [ActionStatus.OK] * 2


@pytest.mark.parametrize("step", ["stage", "fetch"])
@pytest.mark.usefixtures("_copying")
async def test_a_copy_that_fails_is_its_actions_outcome(link, hand, step):
    hand.gated = {step}
    hand.fault = RuntimeError("the bus is gone")
    result = await link.did(Infer)
    assert (result.outcome.status, result.outcome.detail) == (
        ActionStatus.ERROR,
        "the bus is gone",
    )
    assert not result.outputs
    hand.fault = None
    assert await link.status(Infer) is ActionStatus.OK


@pytest.mark.usefixtures("_copying")
async def test_a_worker_that_ends_fetches_what_was_executed(connect, link, hand):
    hand.gated = {"fetch"}
    hand.gate.clear()
    link.submit(Infer)
    await until(lambda: hand.done[-1] == ("fetch", "m"))
    ending = asyncio.ensure_future(connect.server.stop(60.0))
    await asyncio.sleep(0)
    hand.gate.set()
    result = await link.read()
    assert result.outputs["y"].tolist() == [[2, 2]]
    assert await ending


async def test_nothing_is_left_of_dispatchers_that_are_gone(working, hand):
    hand.copies = True
    async with working(hand, pages=2) as connect:
        for turn in range(20):
            link = await connect()
            for model in ("m", "n"):
                link.submit(Load, model, earliest=float(turn))
                link.submit(Infer, model, batch=1 + turn % 2)
                link.submit(Infer, model, earliest=time.monotonic() + 3600)
                link.submit(Unload, model)
            for _ in range(turn % 7):
                await link.read()
            link.writer.transport.abort()
            await until(lambda: "no dispatcher" in repr(connect.server))
            await connect.device.quiet()
            assert not connect.device._tasks
            assert connect.device._bytes == 0
        assert hand.done.count(("execute", "m")) > 0
        link = await connect()
        assert set(link.hello.offer.loaded) <= {"m", "n"}


async def test_a_dispatcher_that_reads_late_misses_nothing(link, hand):
    hand.output = np.zeros((1, 2**18), np.float32)
    link.writer.transport.pause_reading()
    numbers = [link.submit(Infer) for _ in range(40)]
    await until(lambda: hand.done.count(("execute", "m")) > 20)
    link.writer.transport.resume_reading()
    found = [(await link.read()).outcome for _ in numbers]
    assert [outcome.id for outcome in found] == numbers
    assert {outcome.status for outcome in found} == {ActionStatus.OK}


async def test_a_dispatcher_that_never_reads_is_let_go(connect, link, hand, monkeypatch):
    monkeypatch.setattr(server, "MAX_UNREAD", 2**20)
    hand.output = np.zeros((1, 2**18), np.float32)
    link.writer.transport.pause_reading()
    for _ in range(100):  # 100 MiB: more than the kernel keeps for both ends
        link.submit(Infer)
    await until(lambda: "no dispatcher" in repr(connect.server))
    assert (await connect()).hello.offer.loaded == ("m",)
