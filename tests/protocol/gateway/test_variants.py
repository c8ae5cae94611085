"""Variants of a model behind one name: a real gateway, a real wire, a worker in this process."""

import asyncio
import json
import time

import numpy as np
import pytest

from dispatcher.live.planned import translation
from roma.device_protocol import Signature, TensorSpec
from roma.domain.actions import ModelCapabilities
from roma.domain.variants import RequestOptions
from tests.support.planned import PAIR, TIMES, PlannedDeployment, doubled

NAMES = ("large", "small")
ACCURACY = {"large": {"accuracy": 1}, "small": {"accuracy": 0.75}}


def offers(large=TIMES, small=TIMES, **how):
    return {
        name: ModelCapabilities(1, 0.001, times, **how)
        for name, times in zip(NAMES, (large, small), strict=True)
    }


async def opened(harness, *, ready=True, **worker):
    """Return a gateway that has both variants of `m` loaded."""
    worker = {"models": dict.fromkeys(NAMES, PAIR), "offers": offers(), **worker}
    deployment = await PlannedDeployment(harness).open(
        worker=worker, models=("m",), model={"variants": ACCURACY}, policy="fixed", serve=ready
    )
    if ready:
        device = deployment.executor.planned
        await harness.until(lambda: all(device.has(name) for name in NAMES))
    return deployment


@pytest.fixture
async def deployment(harness):
    return await opened(harness)


async def told(asking):
    """Return status, document, and which variants answered."""
    status, body, headers = await asking
    return status, json.loads(body), headers.get("X-Roma-Variant")


async def held(deployment):
    """Return a request that the device runs until `results` is set."""
    deployment.tap.results.clear()
    count = len(deployment.tap.infers)
    asked = deployment.ask((0, 0))
    await deployment.harness.until(lambda: len(deployment.tap.infers) == count + 1)
    return asked


@pytest.mark.parametrize(
    ("headers", "variant"),
    [
        ({}, "large"),
        ({"X-Roma-Variant": "large"}, "large"),
        ({"X-Roma-Variant": "small"}, "small"),
        ({"X-Roma-Min-Accuracy": "0.95"}, "large"),
        ({"X-Request-Soft-Timeout-Ms": "1"}, "large"),
    ],
)
async def test_who_answers_is_who_may_and_is_told(deployment, headers, variant):
    found = await told(deployment.ask((1, 2), headers=headers))
    assert found == (200, {"predictions": doubled((1, 2))}, variant)
    assert [m.action.model for m in deployment.tap.infers] == [variant]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-Roma-Variant": "m"}, "X-Roma-Variant: m: must be one of large, small"),
        ({"X-Roma-Min-Accuracy": "2"}, "X-Roma-Min-Accuracy: 2: must be a number, > 0 and ≤ 1"),
        (
            {"X-Request-Soft-Timeout-Ms": "300", "X-Request-Timeout-Ms": "200"},
            "X-Request-Soft-Timeout-Ms: 300: must be ≤ X-Request-Timeout-Ms (200)",
        ),
        ({"X-Request-Start": "soon"}, "X-Request-Start: soon: must be t= and a time"),
    ],
)
async def test_bad_terms_are_refused_before_they_wait(deployment, headers, words):
    status, found, variant = await told(deployment.ask((1, 2), headers=headers))
    assert (status, variant) == (400, None)
    assert found["error"].startswith(words)
    assert deployment.harness.queue.arrivals == 0


async def test_terms_and_time_on_the_way_are_the_requests_own(deployment):
    first = await held(deployment)
    headers = {
        "X-Roma-Variant": "small",
        "X-Roma-Min-Accuracy": "0.75",
        "X-Request-Soft-Timeout-Ms": "30000",
        "X-Request-Start": f"t={time.time() - 10:.3f}",
    }
    asked = [deployment.ask((1, 2), (3, 4), headers=headers)]
    await deployment.waiting(2)
    asked.append(deployment.ask((1, 2)))
    await deployment.waiting(3)
    *examples, other = deployment.harness.queue.waiting.values()
    for request in examples:
        assert request.terms == RequestOptions(request.terms.soft, "small", 0.75)
        # 30 and 60, less the 10 on the way, which the header says in whole milliseconds.
        assert request.terms.soft - request.arrived <= 20.001
        assert request.deadline - request.arrived <= 50.001
        assert not request.strict  # the deadline is the model's
    assert (other.terms, other.deadline - other.arrived) == (None, pytest.approx(60))
    deployment.tap.results.set()
    assert [(await one)[0] for one in (first, *asked)] == [200] * 3


async def test_what_was_too_long_on_the_way_is_too_late(deployment):
    headers = {"X-Request-Start": f"t={time.time() - 3600:.3f}"}
    status, _, _ = await told(deployment.ask((1, 2), headers=headers))
    assert status == 504
    assert deployment.tap.infers == []
    headers = {"X-Request-Start": f"t={time.time() + 3600:.3f}"}
    assert (await deployment.ask((1, 2), headers=headers))[0] == 200


async def test_a_request_that_several_variants_answer_names_them_all(harness):
    slow = {1: 0.02, 8: 1e9}
    deployment = await opened(harness, offers=offers(large=slow))
    rows = [(i, -i) for i in range(9)]
    # The first example runs alone; a batch of the others would take the large one for ever.
    found = await told(deployment.ask(*rows))
    assert found == (200, {"predictions": doubled(*rows)}, "large, small")
    assert [(m.action.model, m.action.batch) for m in deployment.tap.infers] == [
        ("large", 1),
        ("small", 8),
    ]


@pytest.mark.parametrize(("any_batch", "size"), [(False, 4), (True, 3)])
async def test_a_batch_is_filled_up_only_where_it_must_be(harness, any_batch, size):
    deployment = await opened(harness, offers=offers(any_batch=any_batch))
    first = await held(deployment)
    asked = [deployment.ask((i, -i)) for i in range(3)]
    await deployment.waiting(3)
    deployment.tap.results.set()
    for i, asking in enumerate(asked):
        assert await told(asking) == (200, {"predictions": doubled((i, -i))}, "large")
    assert (await first)[0] == 200
    submitted = deployment.tap.infers[-1]
    assert submitted.action.batch == len(submitted.inputs["x"]) == size
    assert (submitted.inputs["x"][2:] == submitted.inputs["x"][2]).all()


async def test_outputs_that_lack_the_padding_are_a_failure(harness):
    deployment = await opened(harness)
    first = await held(deployment)
    asked = [deployment.ask((i, -i)) for i in range(3)]
    await deployment.waiting(3)
    deployment.worker.runtime.execute = lambda *_: {"y": np.zeros((3, 2), np.float32)}
    deployment.tap.results.set()
    await first
    for asking in asked:
        status, found, _ = await told(asking)
        assert status == 502
        assert "output y: shape = [3, 2]: must have batch 4 first" in found["error"]


async def test_an_example_may_be_as_large_as_the_largest_batch_allows(harness, monkeypatch):
    sizes = {1: 0.02, 64: 0.1}
    deployment = await opened(harness, offers=offers(small=sizes))
    monkeypatch.setattr(translation, "MAX_PAYLOAD", 64 * 7)
    status, found, _ = await told(deployment.ask((1, 1)))
    assert (status, found) == (400, {"error": "example = 8 bytes: must be ≤ 7"})


DOUBLE = Signature((TensorSpec("x", "float64", (-1, 2)),), PAIR.outputs)
WIDE = Signature(PAIR.inputs, (TensorSpec("y", "float32", (-1, 3)),))


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"large": PAIR}, "models: lacks small of roma.yaml, has large"),
        (
            {"large": PAIR, "small": DOUBLE},
            "variants large, small: inputs of serving_default: must be the same, are "
            "x float32 [-1, 2]; x float64 [-1, 2]",
        ),
        (
            {"large": PAIR, "small": WIDE},
            "variants large, small: outputs of serving_default: must be the same, are "
            "y float32 [-1, 2]; y float32 [-1, 3]",
        ),
    ],
)
async def test_a_worker_without_the_variants_is_refused(harness, caplog, models, words):
    deployment = await opened(harness, ready=False, models=models, offers=None)
    await deployment.serve(ready=False)
    await harness.until(lambda: words in caplog.text)
    assert not deployment.executor.live


async def test_look_ups_know_the_public_name_alone(deployment):
    status, body = await deployment.harness.get("/v1/models/m")
    assert (status, json.loads(body)["model_version_status"][0]["state"]) == (200, "AVAILABLE")
    status, body = await deployment.harness.get("/v1/models/m/metadata")
    found = json.loads(body)
    assert (status, found["model_spec"]["name"]) == (200, "m")
    assert "x" in found["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert (await deployment.harness.get("/v1/models/small"))[0] == 404
    assert (await deployment.ask((1, 2), model="small"))[0] == 404


async def test_metrics_tell_of_variants(deployment):
    for variant in ("large", "small", "small"):
        await deployment.ask((1, 1), headers={"X-Roma-Variant": variant})
    _, body = await deployment.harness.get("/metrics", deployment.harness.admin)
    lines = body.decode().splitlines()
    for line in (
        'roma_variant_answers_total{model="m",variant="large"} 1.0',
        'roma_variant_answers_total{model="m",variant="small"} 2.0',
        'roma_quality_total{model="m"} 2.5',
    ):
        assert line in lines


async def test_a_model_without_variants_has_promises_alone(harness):
    deployment = await PlannedDeployment(harness).open(worker={})
    for name in ("X-Roma-Variant", "X-Roma-Min-Accuracy"):
        status, found, _ = await told(deployment.ask((1, 2), headers={name: "1"}))
        expected = f"{name}: 1: must be absent: model m has no variants"
        assert (status, found["error"]) == (400, expected)
    headers = {"X-Request-Soft-Timeout-Ms": "5", "X-Request-Start": f"t={time.time():.3f}"}
    found = await told(deployment.ask((1, 2), headers=headers))
    assert found == (200, {"predictions": doubled((1, 2))}, None)
    _, body = await harness.get("/metrics", harness.admin)
    assert b"roma_quality_total{" not in body


async def test_elsewhere_they_are_unknown_headers(harness):
    await harness.open()
    names = ("X-Roma-Variant", "X-Roma-Min-Accuracy", "X-Request-Soft-Timeout-Ms")
    headers = dict.fromkeys((*names, "X-Request-Start"), "nonsense")
    asked = [harness.predict(headers=headers) for _ in range(2)]
    assert [status for status, _, _ in await asyncio.gather(*asked)] == [200, 200]
