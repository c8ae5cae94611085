"""The whole system in containers: two real TensorFlow models, their real quotas, one control loop."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from roma.tools.demo import inputs
from tests.support.containers import DockerUp, balanced
from tests.support.up import write_config

PHOTOS = 16

# TensorFlow stays out of the process that runs the tests.
DIRECT = """
import json, sys
import tensorflow as tf
from roma.tools.demo import inputs

module = tf.saved_model.load(sys.argv[1])
serve = module.signatures["serving_default"]
answers = [serve(image_bytes=tf.constant([jpeg])) for jpeg in inputs.photo_jpegs(int(sys.argv[2]), 1)]
print(json.dumps([float(answer["score"].numpy()[0]) for answer in answers]))
"""


@pytest.fixture
def direct_scores(demo_models):
    """What the model of the photos says of each when nobody is between."""
    argv = [sys.executable, "-c", DIRECT, str(demo_models["photos"] / "1"), str(PHOTOS)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


class Checked:
    """Counts answers that are right and that are wrong, by model."""

    def __init__(self, digits, scores):
        self.digits, self.scores = digits, scores
        self.right = {"digits": 0, "photos": 0}
        self.wrong = {"digits": 0, "photos": 0}

    def __call__(self, result):
        if result.status == 200:
            counted = self.right if self._is_right(result) else self.wrong
            counted[result.model] += 1

    def _is_right(self, result):
        if result.model == "digits":
            digit = self.digits[result.index % len(self.digits)]
            return inputs.predicted_class(result.answer) == digit
        (prediction,) = json.loads(result.answer)["predictions"]
        return prediction["score"] == pytest.approx(self.scores[result.index % PHOTOS], rel=1e-3)


async def test_two_models_in_containers_under_a_stepping_load(
    tmp_path, demo_models, model_server_image, direct_scores
):
    held_out = inputs.digits_held_out()
    bodies = {
        "digits": [body for body, _ in held_out],
        "photos": inputs.photo_bodies(PHOTOS, seed=1),
    }
    check = Checked([digit for _, digit in held_out], direct_scores)
    docker = {"server": "roma", "image": model_server_image, "run_dir": str(tmp_path)}
    file = write_config(
        tmp_path,
        demo_models,
        name=f"models-{os.getpid()}",
        response_time=1.0,
        worker={"backend": "docker", "docker": docker},
    )

    async def load(up, photos, seconds):
        rates = {"digits": 5, "photos": photos}
        total = balanced(await up.load(rates, bodies, seconds, sla=1.0, on_result=check))
        assert total.failed == total.invalid == 0
        return total

    with DockerUp(file) as up:
        await up.ready()
        ids = {m: up.id(m) for m in demo_models}
        started = {m: up.inspect(m, ".State.StartedAt") for m in demo_models}

        def quota(model):
            return up.quota(model, ids[model])

        await load(up, 2, 5)
        calm = quota("photos")
        step = asyncio.create_task(load(up, 40, 8))
        # The kernel's own numbers: what the loaded one gets is more than what it had, and more
        # than what its idle neighbour has.
        await up.until(lambda: step.done() or quota("photos") > 1.5 * max(calm, quota("digits")))
        peak = quota("photos")
        assert peak > 1.5 * max(calm, quota("digits"))
        assert (await step).answered > 0
        await load(up, 2, 5)
        await up.until(lambda: quota("photos") < peak / 1.5)
        assert {m: up.inspect(m, ".State.StartedAt") for m in demo_models} == started
        assert {up.inspect(m, ".RestartCount") for m in demo_models} == {"0"}
        # An engine that a busy machine holds up may miss a tick.
        assert sum(e["failures"] for e in up.state["executables"].values()) < 3
    assert check.wrong["photos"] == 0 < check.right["photos"]
    assert check.wrong["digits"] <= 0.03 * check.right["digits"]
