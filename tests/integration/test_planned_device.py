"""Two SavedModels on a real `roma device`, behind a real gateway: bit for bit, and when it dies."""

import asyncio
import base64
import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roma.device.runtimes.tensorflow import save_sample
from roma.device_protocol import ActionResult, Hello
from roma.domain.actions import BATCHES
from roma.serving import session
from roma.tensors.tfjson import Layout, encode_predict
from tests.gateway.conftest import Stage
from tests.support.planned import TIMES, Ground
from tests.support.program import Program

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`dense` has one input and one output, `mixed` two of each, texts among them."""
    tf = session.import_tensorflow()
    root = tmp_path_factory.mktemp("saved")
    save_sample(root / "dense" / "1")
    module = tf.Module()
    module.scale = tf.Variable([1.0, 10.0, 100.0])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None, 3], tf.float64, name="numbers"),
        ]
    )
    def serve(text, numbers):
        scaled = numbers * tf.cast(module.scale, tf.float64)
        return {
            "twice_bytes": tf.strings.join([text, text]),
            "total": tf.reduce_sum(tf.sin(scaled), axis=1),
        }

    tf.saved_model.save(module, str(root / "mixed" / "1"), signatures={"serving_default": serve})
    return root


@pytest.fixture(scope="module")
def direct(saved):
    """The same models in this process."""
    loaded = {name: session.load(saved / name / "1", 1) for name in ("dense", "mixed")}
    yield loaded
    for model in loaded.values():
        model.close()


def slow(message):
    """Let the worker say that it needs longer, so that one batch fills it."""
    if isinstance(message, ActionResult):
        outcome = message.outcome
        longer = dataclasses.replace(outcome, ended=outcome.began + TIMES[1])
        return dataclasses.replace(message, outcome=longer)
    if not isinstance(message, Hello):
        return message
    models = {
        name: dataclasses.replace(model, executions=TIMES)
        for name, model in message.offer.models.items()
    }
    return dataclasses.replace(message, offer=dataclasses.replace(message.offer, models=models))


@pytest.fixture
async def ground(saved):
    stage = Stage()
    async with stage.stack:
        ground = await Ground(stage).open(models=("dense", "mixed"), serve=False)
        ground.tap.change = slow
        ground.program = Program(saved, ground.process_port)
        stage.stack.callback(ground.program.end)
        await ground.program.start()
        await ground.serve()
        await ground.ready()
        yield ground


def example(model, i):
    numbers = np.random.default_rng(i)
    if model == "dense":
        return {"x": numbers.random(512, np.float32)}
    return {"text": b"\xff\0%d" % i, "numbers": numbers.random(3)}


def body(model, rows):
    found = []
    for row in rows:
        if model == "dense":
            found.append([float(x) for x in row["x"]])
        else:
            text = {"b64": base64.b64encode(row["text"]).decode()}
            found.append({"text": text, "numbers": row["numbers"].tolist()})
    return json.dumps({"instances": found}).encode()


def ask(ground, model, rows):
    asked = ground.stage.predict(body(model, rows), path=f"/v1/models/{model}:predict")
    return asyncio.ensure_future(asked)


@pytest.mark.parametrize("model", ["dense", "mixed"])
async def test_answers_are_those_of_direct_execution_at_every_batch_size(ground, direct, model):
    for size in BATCHES:
        asked = await ground.fill(ask=lambda i: ask(ground, model, [example(model, i)]))
        rows = [example(model, 100 + i) for i in range(size)]
        halves = [rows[: size // 2], rows[size // 2 :]] if size > 2 else [[row] for row in rows]
        asked += [ask(ground, model, half) for half in halves]
        await ground.waiting(size, model)
        ground.tap.results.set()
        answers = [await one for one in asked]
        assert {status for status, _, _ in answers} == {200}
        (submitted,) = ground.tap.infers[-1:]
        assert submitted.action.batch == size
        for name, array in submitted.inputs.items():
            expected = np.array([row[name] for row in rows], dtype=array.dtype)
            assert np.array_equal(array, expected)
        outputs = direct[model].run("serving_default", submitted.inputs)
        start = 0
        for half, (_, found, _) in zip(halves, answers[2:], strict=True):
            part = {name: o[start : start + len(half)] for name, o in outputs.items()}
            # The order of names is TensorFlow's own in each process; numbers have their shortest text.
            assert json.loads(found) == json.loads(encode_predict(part, Layout.ROW))
            start += len(half)


async def test_a_worker_that_is_killed_in_a_batch_fails_it_once_and_serves_again(ground):
    rows = [example("dense", 0)]
    assert (await ask(ground, "dense", rows))[0] == 200
    ground.tap.results.clear()
    count = len(ground.tap.infers)
    asked = ask(ground, "dense", rows)
    await ground.stage.until(lambda: len(ground.tap.infers) > count)
    ground.program.end(signal.SIGKILL)
    status, found, _ = await asked
    assert status == 502
    assert b"executable gpu0@local was lost" in found
    assert (await ask(ground, "dense", rows))[0] == 503
    ground.tap.results.set()
    await ground.program.start()
    await ground.ready()
    assert (await ask(ground, "dense", rows))[0] == 200
    assert [hello.offer.loaded for hello in ground.tap.hellos] == [(), ()]
    assert [m.action.model for m in ground.tap.loads] == ["dense", "dense"]
    queue = ground.stage.core.queues["dense"]
    assert (queue.completed.total(), queue.failed, queue.rejected.total()) == (2, 1, 1)


async def test_a_gateway_that_is_started_again_finds_what_is_loaded(ground):
    assert (await ask(ground, "mixed", [example("mixed", 0)]))[0] == 200
    await ground.stage.running.aclose()
    await ground.serve()
    await ground.ready()
    assert ground.executor.planned.has("mixed")
    assert (await ask(ground, "mixed", [example("mixed", 1)]))[0] == 200
    assert len(ground.tap.loads) == 1


def test_the_gateway_needs_no_tensorflow():
    code = "import dispatcher.live.planned.translation, sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
