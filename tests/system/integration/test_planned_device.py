"""Two SavedModels on a real `roma device`, behind a real gateway: bit for bit, and when it dies."""

import asyncio
import base64
import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from roma.device.runtimes.tensorflow import save_sample
from roma.device_protocol import ActionResult, Hello
from roma.domain.actions import BATCHES
from roma.serving import session
from roma.tensors.tfjson import Layout, encode_predict
from tests.protocol.gateway.conftest import GatewayHarness
from tests.support.planned import TIMES, PlannedDeployment
from tests.support.program import Program
from tests.support.saved_models import text_and_numbers

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`dense` has one input and one output, `mixed` two of each, texts among them."""
    tf = session.import_tensorflow()
    root = tmp_path_factory.mktemp("saved")
    save_sample(root / "dense" / "1")
    module, serve = text_and_numbers(tf)
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
async def deployment(saved):
    harness = GatewayHarness()
    async with harness.stack:
        deployment = await PlannedDeployment(harness).open(models=("dense", "mixed"), serve=False)
        deployment.tap.change = slow
        deployment.program = Program(saved, deployment.device_port)
        harness.stack.callback(deployment.program.end)
        await deployment.program.start()
        await deployment.serve()
        await deployment.ready()
        yield deployment


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


def ask(deployment, model, rows):
    asked = deployment.harness.predict(body(model, rows), path=f"/v1/models/{model}:predict")
    return asyncio.ensure_future(asked)


@pytest.mark.parametrize("model", ["dense", "mixed"])
async def test_answers_are_those_of_direct_execution_at_every_batch_size(deployment, direct, model):
    for size in BATCHES:
        asked = await deployment.fill(ask=lambda i: ask(deployment, model, [example(model, i)]))
        rows = [example(model, 100 + i) for i in range(size)]
        halves = [rows[: size // 2], rows[size // 2 :]] if size > 2 else [[row] for row in rows]
        asked += [ask(deployment, model, half) for half in halves]
        await deployment.waiting(size, model)
        deployment.tap.results.set()
        answers = [await one for one in asked]
        assert {status for status, _, _ in answers} == {200}
        (submitted,) = deployment.tap.infers[-1:]
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


async def test_a_worker_that_is_killed_in_a_batch_fails_it_once_and_serves_again(deployment):
    rows = [example("dense", 0)]
    assert (await ask(deployment, "dense", rows))[0] == 200
    deployment.tap.results.clear()
    count = len(deployment.tap.infers)
    asked = ask(deployment, "dense", rows)
    await deployment.harness.until(lambda: len(deployment.tap.infers) > count)
    deployment.program.end(signal.SIGKILL)
    status, found, _ = await asked
    assert status == 502
    assert b"executable gpu0@local was lost" in found
    assert (await ask(deployment, "dense", rows))[0] == 503
    deployment.tap.results.set()
    await deployment.program.start()
    await deployment.ready()
    assert (await ask(deployment, "dense", rows))[0] == 200
    assert [hello.offer.loaded for hello in deployment.tap.hellos] == [(), ()]
    assert [m.action.model for m in deployment.tap.loads] == ["dense", "dense"]
    queue = deployment.harness.core.queues["dense"]
    assert (queue.completed.total(), queue.failed, queue.rejected.total()) == (2, 1, 1)


async def test_a_gateway_that_is_started_again_finds_what_is_loaded(deployment):
    assert (await ask(deployment, "mixed", [example("mixed", 0)]))[0] == 200
    await deployment.harness.running.aclose()
    await deployment.serve()
    await deployment.ready()
    assert deployment.executor.planned.has("mixed")
    assert (await ask(deployment, "mixed", [example("mixed", 1)]))[0] == 200
    assert len(deployment.tap.loads) == 1
