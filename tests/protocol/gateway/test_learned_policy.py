"""A learned policy behind a real gateway: it serves the device it knows, and refuses another."""

import json

import pytest

from tests.support.planned import TIMES, PlannedDeployment, doubled
from tests.support.policy import data


def learned(seconds):
    inputs = 4 + 6 + 2 + 1 + 1
    return data(
        variants=[{"name": "m", "accuracy": 1.0}],
        devices=[{"name": "a", "count": 1, "seconds": {"m": seconds}}],
        actions=[{"batch": 1, "variant": "m"}],
        mean=[0.0] * inputs,
        scale=[1.0] * inputs,
        hidden={"weights": [[0.0]] * inputs, "bias": [0.0]},
        output={"weights": [[0.0]], "bias": [0.0]},
    )


@pytest.fixture
async def deployment(harness, tmp_path):
    found = await PlannedDeployment(harness).open(models=("m",), serve=False)
    quality = {"policy": str(tmp_path / "policy.json")}
    found.data["scheduling"] = {"gpu": "qos-rl", "quality": quality}
    await found.start_worker()
    return found


async def test_a_device_that_it_knows_answers(deployment, tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(learned(TIMES)))
    await deployment.serve()
    status, body, _ = await deployment.ask((1, 2))
    assert (status, json.loads(body)) == (200, {"predictions": doubled((1, 2))})


async def test_a_device_that_it_does_not_know_is_refused_in_one_line(
    deployment, harness, tmp_path, caplog
):
    (tmp_path / "policy.json").write_text(json.dumps(learned({b: 2 * t for b, t in TIMES.items()})))
    await deployment.serve(ready=False)
    words = "a: models.m: batch 1 = 0.02 s: must be 0.032 to 0.048"
    await harness.until(lambda: words in caplog.text)
    await harness.until(lambda: len(deployment.tap.hellos) >= 3)
    assert not deployment.executor.live
    assert len([r for r in caplog.records if words in r.getMessage()]) == 1
