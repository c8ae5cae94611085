"""The live driver in virtual time: the same code, a clock that only moves when all wait."""

import asyncio
import json

import pytest

from dispatcher.core import Dispatcher
from dispatcher.live.backends.verdicts import judge, judge_grpc
from dispatcher.live.driver import Call, Driver
from dispatcher.live.http.messages import Message, Response, request_template
from dispatcher.schedulers import registry
from roma.domain.errors import BackendLost, BackendUnreachable
from roma.domain.events import ExecutorAdded, ExecutorReady, Fail, Reason, Reject, Result, Woken
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla

pytestmark = pytest.mark.looptime


class Attempt:
    def abort(self):
        self.timer.cancel()


class Asked(Call):
    def __init__(self, body, **options):
        super().__init__("m", Message(request_template("/v1/models/m:predict"), body), **options)
        self.future = asyncio.get_running_loop().create_future()

    def on_outcome(self, outcome):
        self.future.set_result(outcome)


class SlowPool:
    """A model server in virtual time: answers after `service` seconds, or fails as told."""

    def __init__(self, service=1.0):
        self.service = service
        self.started = []
        self.errors = []
        self.told = []

    def send(self, message, done, *, timeout, more):
        self.told.append(more)
        loop, body = asyncio.get_running_loop(), message.body
        self.started.append((loop.time(), body))
        answer = self.errors.pop(0) if self.errors else Response(200, "", None, body)
        attempt = Attempt()
        attempt.timer = loop.call_later(self.service, done, answer)
        return attempt


async def build(*pools, deadline=10.0, cores=1.0):
    core = Dispatcher(
        [ModelSpec("m", Sla(5.0), deadline)],
        gpu=registry.GPU["roma"],
        cpu=registry.CPU["round_robin"],
    )
    clock = asyncio.get_running_loop().time
    named = {f"m{i}": p for i, p in enumerate(pools)}
    driver = Driver(core, named, backend_timeout=60, clock=clock)
    for i in range(len(pools)):
        spec = ExecutorSpec(f"m{i}", Device.CPU, ("m",), cores=cores)
        driver.handle(ExecutorAdded(spec))
        driver.handle(ExecutorReady(f"m{i}"))
    return driver


def call(driver, body=b"x", **options):
    """Ask as the gateway does."""
    pending = Asked(body, **options)
    driver.submit(pending)

    async def ask():
        try:
            return await pending.future
        except asyncio.CancelledError:
            driver.cancel(pending)
            raise

    return asyncio.create_task(ask())


async def test_three_requests_on_one_core_take_three_services(looptime):
    driver = await build(SlowPool(1.0))
    outcomes = await asyncio.gather(*(call(driver, b"%d" % i) for i in range(3)))
    assert [o.body for o in outcomes] == [b"0", b"1", b"2"]
    assert looptime == 3


@pytest.mark.parametrize("options", [{}, {"deadline": 60.0}], ids=["its model's", "looser"])
async def test_a_waiting_request_is_answered_at_its_models_deadline_not_at_its_turn(
    looptime, options
):
    driver = await build(SlowPool(100.0), deadline=4.0)
    first = call(driver)
    await asyncio.sleep(1)
    rejected = await call(driver, **options)
    assert isinstance(rejected, Reject)
    assert rejected.reason is Reason.DEADLINE
    assert looptime == 5
    first.cancel()


async def test_an_earlier_deadline_moves_the_timer_forward(looptime):
    driver = await build(SlowPool(100.0), deadline=50.0)
    running = call(driver)
    patient = call(driver)
    await asyncio.sleep(1)
    driver.core.queues["m"].spec = ModelSpec("m", Sla(5.0), 2.0)
    hasty = await call(driver)
    assert isinstance(hasty, Reject)
    assert looptime == 3
    for task in (running, patient):
        task.cancel()


async def test_cancelling_frees_the_place_but_not_the_executor(looptime):
    pool = SlowPool(10.0)
    driver = await build(pool, deadline=100.0)
    await call(driver, b"0")  # so long does one take
    first, second, third = call(driver, b"1"), call(driver, b"2"), call(driver, b"3")
    await asyncio.sleep(1)
    first.cancel()
    second.cancel()
    await third
    assert pool.started == [(0, b"0"), (10, b"1"), (20, b"3")]  # as if it had computed on
    assert looptime == 30


async def test_a_clients_own_deadline_ends_what_runs_and_is_told_to_the_model_server(looptime):
    pool = SlowPool(10.0)
    driver = await build(pool, deadline=8.0)
    outcome = await call(driver, deadline=3.0)
    assert isinstance(outcome, Reject)
    assert (outcome.reason, looptime) == (Reason.DEADLINE, 3)
    assert pool.told == ["X-Request-Timeout-Ms: 3000\r\n"]


@pytest.mark.parametrize(
    ("status", "took", "verdict"),
    [
        (504, 2.96, Result.INVALID),  # it kept the client's deadline of 3 s
        (504, 2.9, Result.ERROR),
        (500, 2.96, Result.ERROR),  # a crash is a crash, whenever it comes
    ],
)
async def test_a_server_that_kept_a_clients_deadline_is_not_at_fault(
    looptime, status, took, verdict
):
    pool = SlowPool(took)
    pool.errors.append(Response(status, "text/plain", None, b"x"))
    driver = await build(pool, deadline=8.0)
    await call(driver, deadline=3.0)
    queue = driver.core.queues["m"]
    assert (queue.invalid, queue.failed) == ((1, 0) if verdict is Result.INVALID else (0, 1))


async def test_a_short_deadline_hides_no_failure(looptime):
    driver = await build(pool := SlowPool(0.001), deadline=8.0)
    pool.errors += [Response(504, "text/plain", None, b"x")] * 5
    for _ in range(5):
        await call(driver, deadline=0.05)
    assert driver.core.queues["m"].failed == 5


async def test_a_lost_answer_fails_and_is_not_repeated(looptime):
    pool = SlowPool(1.0)
    pool.errors = [BackendLost("gone")]
    driver = await build(pool)
    outcome = await call(driver)
    assert isinstance(outcome, Fail)
    assert outcome.detail == "executable m0: gone"
    assert len(pool.started) == 1
    assert looptime == 1


async def test_an_unreached_request_runs_elsewhere(looptime):
    dead, alive = SlowPool(1.0), SlowPool(1.0)
    dead.errors = [BackendUnreachable("refused")]
    driver = await build(dead, alive)
    outcome = await call(driver, b"x")
    assert outcome.body == b"x"
    assert [len(dead.started), len(alive.started)] == [1, 1]
    assert looptime == 2


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, Result.OK),
        (400, Result.INVALID),
        (404, Result.INVALID),
        (408, Result.FAILURE),
        (429, Result.FAILURE),
        (500, Result.ERROR),
        (501, Result.INVALID),
        (502, Result.ERROR),
        (503, Result.ERROR),
        (504, Result.ERROR),
        (507, Result.ERROR),
    ],
)
def test_what_a_status_says_about_the_promise(status, result):
    assert judge(Response(status, "text/html", None, b"<html>")) is result


def said(text):
    return json.dumps({"error": text}).encode()


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (500, said("out of memory"), Result.FAILURE),
        (507, said("no room"), Result.FAILURE),
        (502, said("upstream"), Result.ERROR),
        (503, said("Exceeds maximum queue size"), Result.ERROR),
        (504, said("too slow"), Result.ERROR),
        # Triton's words for what is wrong with the input.
        (500, said("Unable to set 'classification': attempt to access JSON …"), Result.INVALID),
        (500, said("Unable to parse 'shape': attempt to access JSON …"), Result.INVALID),
        (500, said("failed to parse the request JSON buffer: Invalid value. at 0"), Result.INVALID),
        (500, said("attempt to access JSON non-string as string"), Result.INVALID),
        (500, said("the GPU was Unable to parse 'shape'"), Result.FAILURE),
        # No error object.
        (500, b"", Result.ERROR),
        (500, b"[" * 60_000, Result.ERROR),
        (500, b'{"error": 7}', Result.ERROR),
        (500, said(""), Result.ERROR),
        (500, b'["error"]', Result.ERROR),
        (500, said("x" * 70_000), Result.ERROR),
    ],
)
def test_what_an_error_object_says(status, body, result):
    assert judge(Response(status, "application/json", None, body)) is result


def test_what_is_compressed_is_not_read():
    assert judge(Response(500, "application/json", "gzip", said("x"))) is Result.ERROR


@pytest.mark.parametrize(
    ("result", "codes"),
    [
        (Result.OK, {0}),
        (Result.INVALID, {3, 5, 6, 7, 9, 11, 12, 16}),
        (Result.FAILURE, {1, 2, 8, 10, 13, 15}),
        (Result.ERROR, {4, 14}),
    ],
)
def test_what_a_grpc_status_says(result, codes):
    assert {code for code in range(17) if judge_grpc(code, "") is result} == codes


async def test_an_outcome_may_bring_the_next_request_while_others_end(looptime):
    """What a client asks next, on hearing of one outcome, must not get between the commands."""
    driver = await build(SlowPool(1.0), deadline=50.0)
    told = []

    class Next(Asked):
        def on_outcome(self, outcome):
            told.append(self.message.body)
            if len(told) < 6:
                driver.submit(Next(b"next", deadline=0.2))
            super().on_outcome(outcome)

    first = Next(b"first")
    driver.submit(first)
    for i in range(3):
        driver.submit(Next(b"%d" % i, deadline=1.0 + i * 1e-6))
    await first.future
    await asyncio.sleep(30)
    assert told[0] in (b"first", b"0")
    assert len(told) == len([b"first", b"0", b"1", b"2"]) + 5
    assert driver.core.live == 0
    assert not driver._calls
    assert not driver._attempts


async def test_what_a_bug_in_one_outcome_left_is_told_at_the_next_event():
    driver = await build(SlowPool())
    first, others = Asked(b"0"), [call(driver, body) for body in (b"1", b"2", b"3")]
    driver.submit(first)
    await asyncio.sleep(0.1)
    others[0].cancel()
    await asyncio.sleep(0.1)
    waiting = [Asked(b"4"), Asked(b"5")]
    for pending in waiting:
        driver.submit(pending)

    def broken(_):
        raise RuntimeError("bug")

    first.on_outcome = broken
    with pytest.raises(RuntimeError, match="bug"):
        driver.on_lost("m0", "gone")
    driver.handle(Woken())
    assert all(pending.future.done() for pending in waiting)
    await asyncio.gather(*others, return_exceptions=True)
