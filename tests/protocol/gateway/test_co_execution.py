"""Two models on a device that executes segments of both at once: a real gateway, a real wire."""

import asyncio

import pytest

from dispatcher.schedulers import registry
from roma.device import models_table
from roma.device.emulated import CoExecutingEmulatedRuntime
from roma.domain.actions import ActionStatus, Discard
from tests.support.co_execution import OVERLAP, Segments
from tests.support.planned import PlannedDeployment

MODELS = ("resnet18-0", "resnet18-1")
SEGMENTS = 3


@pytest.fixture
async def deployment(harness, monkeypatch):
    monkeypatch.setitem(registry.GPU, "clockwork", Segments)
    runtime = CoExecutingEmulatedRuntime(
        models_table.copies({"resnet18": 2}), segments=SEGMENTS, together=2, overlap=OVERLAP
    )
    offers = {model: runtime.known(model) for model in MODELS}
    deployment = PlannedDeployment(harness)
    return await deployment.open(
        models=MODELS, worker={"runtime": runtime, "offers": offers, "pages": 9}
    )


def ask(deployment, model):
    body = b'{"instances": [1.0]}'
    path = f"/v1/models/{model}:predict"
    return asyncio.ensure_future(deployment.harness.predict(body, path=path))


def pieces(deployment, model):
    infers = [submit.action for submit in deployment.tap.infers]
    return [a.part.segment.begin for a in infers if a.model == model]


async def test_requests_of_two_models_are_answered_after_segments_that_run_together(deployment):
    asked = [ask(deployment, model) for model in MODELS * 5]
    assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 10
    together = [
        (a.action.model, b.action.model)
        for a, b in zip(deployment.tap.infers, deployment.tap.infers[1:], strict=False)
        if a.action.part.with_next
    ]
    assert set(together) & {MODELS, MODELS[::-1]}
    for model in MODELS:
        begun = pieces(deployment, model)
        assert [begun.count(piece) for piece in range(SEGMENTS)] == [begun.count(0)] * SEGMENTS
    assert {result.outcome.status for result in deployment.tap.told} == {ActionStatus.OK}
    assert not deployment.harness.core.partial
    assert not deployment.worker.device._kept


async def test_the_device_forgets_what_a_client_that_left_does_not_wait_for(deployment):
    await ask(deployment, MODELS[0])  # both are loaded
    deployment.tap.results.clear()
    asking = ask(deployment, MODELS[0])
    await deployment.harness.until(lambda: pieces(deployment, MODELS[0]) == [0, 1, 2, 0])
    asking.cancel()
    await deployment.harness.until(lambda: deployment.harness.core.live == 0)
    deployment.tap.results.set()
    await deployment.harness.until(
        lambda: (
            isinstance(deployment.tap.asked[-1].action, Discard)
            and not deployment.worker.device._kept
        )
    )
    assert (await ask(deployment, MODELS[1]))[0] == 200


async def test_a_device_that_is_lost_loses_what_it_kept_and_serves_again(deployment):
    await ask(deployment, MODELS[0])
    deployment.tap.results.clear()
    asking = [ask(deployment, model) for model in MODELS]
    await deployment.harness.until(lambda: len(pieces(deployment, MODELS[0])) == SEGMENTS + 1)
    await deployment.reconnected()
    deployment.tap.results.set()
    assert [(await one)[0] for one in asking] == [502, 503]  # one ran, one waited
    assert (await ask(deployment, MODELS[1]))[0] == 200
    assert not deployment.harness.core.partial
