"""A device that executes segments of several batches at once, over a real socket."""

import numpy as np
import pytest

from roma.device import models_table
from roma.device.emulated import CoExecutingEmulatedRuntime
from roma.device_protocol import Submit
from roma.domain.actions import ActionStatus, Discard, ExecutionPart, Infer, Load, Segment

OK, ERROR, INVALID = ActionStatus.OK, ActionStatus.ERROR, ActionStatus.INVALID
A, B = "resnet18-0", "resnet18-1"
ONE = {"input": np.zeros((1,), np.float32)}


@pytest.fixture
async def link(working):
    runtime = CoExecutingEmulatedRuntime(
        models_table.copies({"resnet18": 2}), segments=3, together=2, overlap=0.4
    )
    async with working(runtime, pages=9) as connect:
        link = await connect()
        for model in (A, B):
            assert await link.status(Load, model) is OK
        link.device = connect.device
        yield link


def send(link, number, model, part, inputs=None):
    inputs = ({} if part.continues else ONE) if inputs is None else inputs
    link.send(Submit(Infer(number, model, 1, 0.0, float("inf"), part), "", inputs))


async def results(link, count):
    """Return the next results by their number."""
    found = [await link.read() for _ in range(count)]
    return {result.outcome.id: result for result in found}


def statuses(found):
    return {number: result.outcome.status for number, result in found.items()}


async def test_it_says_what_it_can_do(link):
    offer = link.hello.offer
    assert (offer.together, offer.models[A].segments) == (2, 3)


async def test_two_items_with_segments_run_at_once(link):
    send(link, 11, A, ExecutionPart(Segment(0, 2, 3), with_next=True))
    send(link, 12, B, ExecutionPart())
    found = await results(link, 2)
    assert statuses(found) == {11: OK, 12: OK}
    both = [(r.outcome.began, r.outcome.ended) for r in found.values()]
    assert both[0][0] == both[1][0], "they begin together"
    assert list(found[11].outputs) == [], "what a segment leaves stays on the device"
    assert found[12].outputs["output"].shape == (1,)
    send(link, 13, A, ExecutionPart(Segment(2, 3, 3), continues=11))
    (last,) = (await results(link, 1)).values()
    assert last.outputs["output"].shape == (1,)


async def test_one_that_is_refused_does_not_hold_up_its_group(link):
    wrong = {"input": np.zeros((7,), np.float32)}
    send(link, 11, A, ExecutionPart(with_next=True))
    send(link, 12, B, ExecutionPart(), wrong)
    assert statuses(await results(link, 2)) == {11: OK, 12: INVALID}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (ExecutionPart(Segment(0, 1, 2)), "segment.total = 2: must be 3"),
        (ExecutionPart(Segment(1, 2, 3)), "segment.begin = 1: must be where 0 ended (0)"),
        (ExecutionPart(Segment(2, 3, 3), 11), "segment.begin = 2: must be where 11 ended (1)"),
        (ExecutionPart(Segment(1, 2, 3), 99), "segment.begin = 1: must be where 99 ended (0)"),
        (ExecutionPart(None, 11), "segment.begin = 0: must be where 11 ended (1)"),
        (ExecutionPart(None, 99), "segment.begin = 0: must be where 99 ended (0)"),
    ],
)
async def test_a_segment_goes_on_where_the_one_before_it_ended(link, part, message):
    send(link, 11, A, ExecutionPart(Segment(0, 1, 3)))
    await results(link, 1)
    send(link, 12, A, part)
    (result,) = (await results(link, 1)).values()
    assert (result.outcome.status, result.outcome.detail) == (ERROR, message)


async def test_no_other_model_goes_on_with_what_a_segment_left(link):
    send(link, 11, A, ExecutionPart(Segment(0, 1, 3)))
    await results(link, 1)
    send(link, 12, B, ExecutionPart(Segment(1, 3, 3), continues=11))
    (result,) = (await results(link, 1)).values()
    assert result.outcome.status is ERROR
    assert result.outcome.detail == f"continues = 11: is {A}, batch 1"
    send(link, 13, A, ExecutionPart(Segment(1, 3, 3), continues=11))
    assert statuses(await results(link, 1)) == {13: OK}, "it is still there"


async def test_more_at_once_than_it_can_are_refused(link):
    for number in (11, 12, 13):
        send(link, number, A, ExecutionPart(with_next=number < 13))
    found = await results(link, 3)
    assert statuses(found) == {11: OK, 12: ERROR, 13: OK}
    assert found[12].outcome.detail == "with_next: this device executes 2 at once"


async def test_what_is_discarded_cannot_be_continued(link):
    send(link, 11, A, ExecutionPart(Segment(0, 1, 3)))
    await results(link, 1)
    link.send(Submit(Discard(12, A, 11)))
    send(link, 13, A, ExecutionPart(Segment(1, 2, 3), continues=11))
    assert statuses(await results(link, 2)) == {12: OK, 13: ERROR}


async def test_two_that_continue_the_same_segment_are_answered(link):
    send(link, 11, A, ExecutionPart(Segment(0, 1, 3)))
    await results(link, 1)
    send(link, 12, A, ExecutionPart(Segment(1, 2, 3), continues=11, with_next=True))
    send(link, 13, A, ExecutionPart(Segment(1, 2, 3), continues=11))
    assert statuses(await results(link, 2)) == {12: OK, 13: INVALID}


async def test_a_device_of_whole_models_refuses_segments(working, hand):
    async with working(hand) as connect:
        link = await connect()
        await link.did(Load)
        send(link, 11, "m", ExecutionPart(Segment(0, 1, 2)), {"x": np.ones((1, 2), np.float32)})
        (result,) = (await results(link, 1)).values()
        assert result.outcome.detail == "segment: this device executes whole models alone"
