"""Requests that planned devices answer: a real gateway, a real wire, a worker in this process."""

import asyncio
import gzip
import json
import logging
import threading

import grpc
import numpy as np
import pytest

from dispatcher.live.planned import translation
from dispatcher.live.planned.device import PlannedDevice
from roma.device_protocol import Signature, TensorSpec
from roma.domain.actions import ActionStatus
from roma.domain.errors import ConfigError, TensorError
from roma.domain.events import ModelAdded
from roma.domain.model import ModelSpec, Sla
from roma.security import api_keys
from roma.tensors.jsontext import parse
from tests.support.keys import keys_file
from tests.support.planned import PAIR, PlannedDeployment, doubled


@pytest.fixture
async def deployment(harness):
    return await PlannedDeployment(harness).open(worker={})


async def answer(asking):
    status, body, _ = await asking
    return status, json.loads(body)


async def error(asking):
    status, found = await answer(asking)
    return status, found["error"]


@pytest.mark.parametrize(
    ("body", "key", "expected"),
    [
        ('{"instances": [[1, 2]]}', "predictions", doubled((1, 2))),
        ('{"instances": [{"x": [1, 2]}]}', "predictions", doubled((1, 2))),
        ('{"inputs": [[1, 2]]}', "outputs", doubled((1, 2))),
        ('{"inputs": {"x": [[1, 2], [3, 4.5]]}}', "outputs", doubled((1, 2), (3, 4.5))),
        ('{"instances": [[1, 2], [3, 4], [5, 6]]}', "predictions", doubled((1, 2), (3, 4), (5, 6))),
        ('{"signature_name": "serving_default", "inputs": [[1, 2]]}', "outputs", doubled((1, 2))),
    ],
)
async def test_both_layouts_are_answered(deployment, body, key, expected):
    for path in ("/v1/models/m:predict", "/v1/models/m/versions/1:predict"):
        asked = deployment.harness.predict(body.encode(), path=path)
        assert await answer(asked) == (200, {key: expected})


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
async def test_requests_that_wait_together_are_one_batch(deployment, size):
    first = await deployment.fill()
    rows = [(i, -i) for i in range(size)]
    asked = [deployment.ask(row) for row in rows]
    await deployment.waiting(size)
    deployment.tap.results.set()
    for asking, row in zip(asked, rows, strict=True):
        assert await answer(asking) == (200, {"predictions": doubled(row)})
    assert [(await one)[0] for one in first] == [200, 200]
    assert [m.action.batch for m in deployment.tap.infers] == [1, 1, 1, size]
    assert len(deployment.tap.infers[-1].inputs["x"]) == size


async def test_examples_of_one_request_are_batched_with_others(deployment):
    first = await deployment.fill()
    asked = [deployment.ask(*[(i, i)] * 3) for i in (5, 6)] + [deployment.ask((7, 7), (8, 8))]
    await deployment.waiting(8)
    deployment.tap.results.set()
    expected = [doubled(*[(i, i)] * 3) for i in (5, 6)] + [doubled((7, 7), (8, 8))]
    for asking, rows in zip(asked, expected, strict=True):
        assert await answer(asking) == (200, {"predictions": rows})
    await asyncio.gather(*first)
    assert deployment.tap.infers[-1].action.batch == 8


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"instances": [[1]]}', 400, 'Input "x" has shape [1,1], expected [-1,2]'),
        (b'{"instances": [1]}', 400, 'Input "x" has shape [1], expected [-1,2]'),
        (b'{"instances": [["a", "b"]]}', 400, "is not of expected type: float"),
        (b'{"instances": [[1, 2], [1]]}', 400, "Failed to process element: 1"),
        (b'{"inputs": {"z": [[1, 2]]}}', 400, "Missing named input: x"),
        (b"{", 400, "JSON Parse error"),
        (b'{"other": 1}', 400, "Missing 'inputs' or 'instances' key"),
        (b'{"signature_name": "other", "inputs": [[1, 2]]}', 400, '"other" not found in signature'),
        (b'{"instances": ' + json.dumps([[1, 2]] * 101).encode() + b"}", 400, "examples = 101:"),
        (gzip.compress(b'{"instances": [[1', mtime=0)[:-9], 400, "Malformed gzip body"),
    ],
)
async def test_wrong_input_is_refused_before_it_waits(deployment, body, status, words):
    headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f\x8b") else {}
    found = await error(deployment.harness.predict(body, headers=headers))
    assert found[0] == status
    assert words in found[1]
    assert deployment.harness.queue.arrivals == 0


async def test_a_batch_of_numbers_is_no_batch_of_vectors(harness):
    spec = (TensorSpec("x", "float32", (-1, 1)),)
    deployment = await PlannedDeployment(harness).open(
        worker={"models": {"m": Signature(spec, spec)}}, models=["m"]
    )
    found = await error(harness.predict(b'{"instances": [1, 2]}'))
    assert found == (400, 'Input "x" has shape [2], expected [-1,1]')
    assert (await deployment.ask([1], [2]))[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
async def test_compressed_bodies_are_inflated_up_to_the_bound(harness, coding):
    deployment = await PlannedDeployment(harness).open(worker={}, gateway={"max_body_bytes": 1024})
    headers = {"Content-Encoding": coding}
    body = gzip.compress(b'{"instances": [[1, 2]]}')
    assert await answer(harness.predict(body, headers=headers)) == (
        200,
        {"predictions": doubled((1, 2))},
    )
    body = gzip.compress(b'{"instances": [[1, 2]]}' + b" " * 1024)
    status, words = await error(harness.predict(body, headers=headers))
    assert (status, words) == (413, "request body is larger than 1024 bytes")
    assert len(deployment.tap.infers) == 1


async def test_a_large_body_is_read_beside_the_others(deployment, monkeypatch):
    begun, let_go = threading.Event(), threading.Event()

    def slow(body):
        begun.set()
        assert let_go.wait(30)
        return parse(body)

    monkeypatch.setattr(translation, "parse", slow)
    later, left = [], []
    make, leave = translation._LaterCall.__init__, translation._LaterCall.cancel
    monkeypatch.setattr(
        translation._LaterCall, "__init__", lambda *a: (later.append(a), make(*a))[1]
    )
    monkeypatch.setattr(translation._LaterCall, "cancel", lambda a: (left.append(a), leave(a))[1])
    spaces = b" " * translation.INLINE
    good = asyncio.create_task(deployment.harness.predict(b'{"instances": [[1, 2]]}' + spaces))
    numbers = b"1," * 200_000
    bad = asyncio.create_task(
        deployment.harness.predict(b'{"instances": [[' + numbers + b"true]]}" + spaces)
    )
    gone = asyncio.create_task(deployment.harness.predict(b'{"instances": [[1, 2]]}' + spaces))
    await deployment.harness.until(begun.is_set)
    monkeypatch.setattr(translation, "parse", parse)
    assert await answer(deployment.ask((3, 4))) == (200, {"predictions": doubled((3, 4))})
    await deployment.harness.until(lambda: len(later) == 3)
    gone.cancel()
    await deployment.harness.until(lambda: left)
    let_go.set()
    assert await answer(good) == (200, {"predictions": doubled((1, 2))})
    status, text = await error(bad)
    assert status == 400
    assert "JSON Value: true Type: True is not of expected type: float" in text
    assert deployment.harness.queue.arrivals == 2


async def test_a_large_body_that_is_late_is_not_read(deployment, monkeypatch):
    monkeypatch.setattr(translation, "parse", None)
    body = b'{"instances": [[1, 2]]}' + b" " * translation.INLINE
    sent = {"X-Request-Start": "t=1700000000"}
    status, words = await error(deployment.harness.predict(body, headers=sent))
    assert status == 504
    assert "deadline passed" in words
    assert deployment.harness.queue.rejected.total() == 1


async def test_a_model_with_another_free_dimension_runs_examples_one_by_one(harness):
    spec = (TensorSpec("x", "float32", (-1, -1)),)
    models = {"m": Signature(spec, (TensorSpec("y", "float32", (-1, -1)),))}
    deployment = await PlannedDeployment(harness).open(worker={"models": models}, models=("m",))
    first = await deployment.fill()
    asked = [deployment.ask((1, 2, 3)), deployment.ask((4, 5))]
    await deployment.waiting(2)
    deployment.tap.results.set()
    assert [(await answer(a))[1]["predictions"] for a in asked] == [[[2, 4, 6]], [[8, 10]]]
    await asyncio.gather(*first)
    assert {m.action.batch for m in deployment.tap.infers} == {1}


async def test_models_are_loaded_and_unloaded_as_they_are_asked_for(harness):
    deployment = await PlannedDeployment(harness).open(worker={"pages": 1})
    for model in ("m", "n", "m"):
        assert (await deployment.ask((1, 1), model=model))[0] == 200
    assert deployment.worker.runtime.loaded == ["m", "n", "m"]
    assert deployment.executor.planned.free == 0


async def test_what_the_model_refuses_is_the_clients_fault(deployment):
    deployment.worker.runtime.fault = TensorError("no such word")
    assert await error(deployment.ask((1, 1))) == (400, "no such word")
    assert (await deployment.ask((1, 1)))[0] == 200
    assert (deployment.harness.queue.invalid, deployment.executor.losses) == (1, 0)


async def test_what_the_model_fails_at_is_a_failure_of_the_executable(deployment):
    deployment.worker.runtime.fault = RuntimeError("out of memory")
    status, words = await error(deployment.ask((1, 1)))
    assert (status, words) == (502, "executable gpu0@local: out of memory")
    assert (await deployment.ask((1, 1)))[0] == 200
    assert (deployment.harness.queue.failed, deployment.executor.losses) == (1, 0)


async def test_outputs_without_the_batch_are_a_failure(deployment):
    deployment.worker.runtime.execute = lambda *_: {"y": np.zeros((3, 2), np.float32)}
    status, words = await error(deployment.ask((1, 1)))
    assert status == 502
    assert "output y: shape = [3, 2]: must have batch 1 first" in words


async def test_a_request_is_refused_whole_if_one_example_is(harness):
    deployment = await PlannedDeployment(harness).open(worker={}, max_waiting=3)
    first = await deployment.fill()
    one = deployment.ask((1, 1), (2, 2))
    await deployment.waiting(2)
    status, words = await error(deployment.ask((3, 3), (4, 4)))
    assert status == 429
    assert "3 requests of model m wait" in words
    await deployment.waiting(2)  # its first example waits no longer
    deployment.tap.results.set()
    assert [(await a)[0] for a in (*first, one)] == [200, 200, 200]
    assert harness.queue.cancelled == 1


async def test_a_client_that_goes_takes_its_examples_along(deployment):
    first = await deployment.fill()
    gone = deployment.ask((1, 1), (2, 2))
    await deployment.waiting(2)
    gone.cancel()
    await deployment.waiting(0)
    deployment.tap.results.set()
    await asyncio.gather(*first)
    assert deployment.harness.queue.cancelled == 2
    assert [m.action.batch for m in deployment.tap.infers] == [1, 1, 1]


async def test_a_row_whose_client_has_gone_keeps_its_place(deployment, monkeypatch):
    first = await deployment.fill()
    asked = []
    for i in (5, 6, 7, 8):  # in this order
        asked.append(deployment.ask((i, i)))
        await deployment.waiting(len(asked))
    execute = PlannedDevice.execute
    monkeypatch.setattr(
        PlannedDevice,
        "execute",
        lambda device, command, calls: execute(device, command, [None, *calls[1:]]),
    )
    deployment.tap.results.set()
    await asyncio.gather(*first)
    answers = [await answer(asking) for asking in asked[1:]]
    assert [found["predictions"] for _, found in answers] == [doubled((i, i)) for i in (6, 7, 8)]
    asked[0].cancel()


async def test_a_client_that_goes_while_it_runs_disturbs_nobody(deployment):
    first = await deployment.fill()
    asked = [deployment.ask((i, i)) for i in range(4)]
    await deployment.waiting(4)
    first[1].cancel()
    await deployment.harness.until(lambda: deployment.harness.queue.cancelled == 1)
    deployment.tap.results.set()
    assert [(await a)[0] for a in (first[0], *asked)] == [200] * 5
    assert deployment.harness.core.live == 0
    assert not deployment.executor.running


@pytest.mark.parametrize("ends", ["with its result", "with its device"])
async def test_a_keys_concurrency_is_held_while_a_device_computes(harness, tmp_path, ends):
    token = api_keys.new_token("aaaaaaaa")
    file = keys_file(tmp_path, {token: {"concurrency": 1}})
    deployment = await PlannedDeployment(harness).open(worker={}, gateway={"keys": str(file)})
    headers = {"Authorization": f"Bearer {token}"}
    assert (await answer(deployment.ask((0, 0), headers=headers)))[0] == 200
    deployment.tap.results.clear()
    gone = deployment.ask((1, 1), headers=headers)
    await harness.until(lambda: len(deployment.tap.infers) == 2)
    gone.cancel()
    await harness.until(lambda: not harness.service.driver._calls)
    assert (await error(deployment.ask((2, 2), headers=headers)))[0] == 429
    if ends == "with its result":
        deployment.tap.results.set()
        await harness.until(lambda: len(deployment.tap.told) >= 3)
    else:
        deployment.tap.cut()
        deployment.tap.results.set()
        await deployment.ready()

    async def served():
        return (await answer(deployment.ask((3, 3), headers=headers)))[0]

    async with asyncio.timeout(10):
        while (status := await served()) != 200:
            assert status in (429, 503)


async def test_a_clients_own_deadline_ends_its_request(deployment):
    first = await deployment.fill()
    status, words = await error(
        deployment.ask((1, 1), (2, 2), headers={"X-Request-Timeout-Ms": "60"})
    )
    assert status == 504
    assert "deadline" in words
    deployment.tap.results.set()
    await asyncio.gather(*first)
    await deployment.harness.until(lambda: deployment.harness.core.live == 0)


async def test_batch_requests_run_too(deployment):
    asked = deployment.ask((1, 1), headers={"X-Request-Priority": "low"})
    assert (await asked)[0] == 200
    assert deployment.harness.core.low_priority["m"].completed.total() == 1


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/models/m:classify", 501, "planned devices answer :predict alone"),
        ("/v1/models/m:regress", 501, "planned devices answer :predict alone"),
        ("/v2/models/m/infer", 501, "do not speak the Open Inference Protocol"),
        ("/v1/models/m/versions/2:predict", 404, "Specific(m, 2)"),
        ("/v1/models/m/labels/canary:predict", 404, "Servable not found"),
        ("/v1/models/other:predict", 404, "Latest(other)"),
    ],
)
async def test_other_methods_are_refused(deployment, path, status, words):
    found = await error(deployment.harness.predict(path=path))
    assert found[0] == status
    assert words in found[1]


async def test_grpc_is_unimplemented(deployment):
    for method in ("ModelReady", "ModelInfer"):
        code, _, text, _ = await deployment.harness.call(
            f"/inference.GRPCInferenceService/{method}", b"\x0a\x01m"
        )
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert text == "model m: planned devices are called over REST alone"


async def test_look_ups_are_answered_from_the_books(deployment):
    status, body = await deployment.harness.get("/v1/models/m")
    version = {"version": "1", "state": "AVAILABLE"}
    version["status"] = {"error_code": "OK", "error_message": ""}
    assert (status, json.loads(body)) == (200, {"model_version_status": [version]})
    status, body = await deployment.harness.get("/v1/models/m/metadata")
    found = json.loads(body)["metadata"]["signature_def"]["signature_def"]
    assert status == 200
    assert found["serving_default"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
            "unknown_rank": False,
        },
        "name": "x",
    }
    assert (await deployment.harness.get("/v1/models/m/versions/2"))[0] == 404
    assert (await deployment.harness.get("/v2/models/m"))[0] == 501
    assert (await deployment.harness.get("/readyz"))[0] == 200


async def test_without_a_device_requests_and_look_ups_are_unavailable(harness):
    deployment = await PlannedDeployment(harness).open()
    status, words = await error(deployment.ask((1, 1)))
    assert (status, words) == (503, "no executable of model m is ready")
    status, _ = await harness.get("/v1/models/m")
    assert status == 503
    assert (await harness.get("/readyz"))[0] == 503
    assert harness.queue.rejected.total() == 1


async def test_metrics_tell_of_devices(deployment):
    await deployment.ask((1, 1))
    deployment.worker.runtime.fault = RuntimeError("x")
    await deployment.ask((1, 1))
    _, body = await deployment.harness.get("/metrics", deployment.harness.admin)
    lines = body.decode().splitlines()
    for line in (
        'roma_device_pages{executable="gpu0@local"} 4.0',
        'roma_device_free_pages{executable="gpu0@local"} 3.0',
        'roma_device_models{executable="gpu0@local"} 1.0',
        'roma_device_actions_total{action="infer",executable="gpu0@local",status="ok"} 1.0',
        'roma_device_actions_total{action="infer",executable="gpu0@local",status="error"} 1.0',
        'roma_device_actions_total{action="load",executable="gpu0@local",status="ok"} 1.0',
    ):
        assert line in lines


async def test_metrics_tell_how_wrong_predictions_were(deployment):
    async def errors():
        _, body = await deployment.harness.get("/metrics", deployment.harness.admin)
        told = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if "run_sec" in line)
        labels = '{action="infer",executable="gpu0@local"}'
        return [
            (float(told[f"{name}_count{labels}"]), float(told[f"{name}_sum{labels}"]))
            for name in ("roma_device_underrun_seconds", "roma_device_overrun_seconds")
        ]

    assert await errors() == [(0, 0), (0, 0)]
    # The worker says that it needs 20 ms, and needs next to nothing.
    await deployment.ask((1, 1))
    under, over = await errors()
    assert (under[0], over) == (1, (0, 0))
    assert 0 < under[1] <= 0.02
    deployment.worker.runtime.gate.clear()
    deployment.worker.runtime.began.clear()
    asked = deployment.ask((1, 1))
    await asyncio.to_thread(deployment.worker.runtime.began.wait, 60)
    await asyncio.sleep(0.06)
    deployment.worker.runtime.gate.set()
    assert (await asked)[0] == 200
    now_under, over = await errors()
    assert now_under == under
    assert over[0] == 1
    assert over[1] > 0.03
    # What failed says nothing of the model's speed.
    deployment.worker.runtime.fault = RuntimeError("x")
    await deployment.ask((1, 1))
    assert await errors() == [under, over]


async def test_a_failed_request_is_logged_once(deployment, caplog):
    caplog.set_level(logging.WARNING)
    deployment.worker.runtime.fault = RuntimeError("out of memory")
    await deployment.ask((1, 1), (2, 2))
    told = [r for r in caplog.records if r.name == "dispatcher.live.request_log"]
    assert len(told) == 1
    assert "executable gpu0@local: out of memory" in told[0].getMessage()


async def test_models_come_and_go_while_it_runs(harness):
    models = {"m": PAIR, "n": PAIR}
    deployment = await PlannedDeployment(harness).open(worker={"models": models}, models=("m",))
    assert (await deployment.ask((1, 1), model="n"))[0] == 404
    deployment.data["models"]["n"] = deployment.data["models"]["m"]
    await harness.registry.follow(deployment.config)
    assert [(await deployment.ask((1, 1), model=name))[0] for name in models] == [200, 200]
    del deployment.data["models"]["m"]
    await harness.registry.follow(deployment.config)
    assert [(await deployment.ask((1, 1), model=name))[0] for name in models] == [404, 200]


async def test_what_a_device_runs_goes_on_while_models_come_and_go(harness):
    models = dict.fromkeys("mno", PAIR)
    deployment = await PlannedDeployment(harness).open(worker={"models": models})
    first = await deployment.fill()
    waiting = deployment.ask((5, 5))
    await deployment.waiting(1)
    for names in ("mno", "mo", "mn"):
        deployment.data["models"] = dict.fromkeys(names, deployment.data["models"]["m"])
        await harness.registry.follow(deployment.config)
        assert deployment.executor.live
        assert len(harness.core.queues["m"]) == 1
        assert set(names) == {name for name in "mno" if harness.core.executors.serve(name)}
    added, gone = deployment.ask((6, 6), model="n"), deployment.ask((7, 7), model="o")
    deployment.tap.results.set()
    assert (await answer(gone))[0] == 404
    assert await answer(added) == (200, {"predictions": doubled((6, 6))})
    assert await answer(waiting) == (200, {"predictions": doubled((5, 5))})
    assert [(await one)[0] for one in first] == [200, 200]
    assert len(deployment.tap.hellos) == 1


async def test_a_device_that_lost_a_model_while_the_file_was_read_is_left(harness):
    """It had the model when the file was checked."""
    deployment = await PlannedDeployment(harness).open(worker={"models": {"m": PAIR}}, models="m")
    (device,) = harness.service.planned_devices.devices.values()
    harness.core.handle(ModelAdded(ModelSpec("n", Sla(1.0), deadline=1.0)), now=0.0)
    device.assign(("m", "n"))
    await harness.until(lambda: not deployment.executor.live)
    told = harness.service.reasons.for_operators
    await harness.until(lambda: "lacks n of roma.yaml" in told(device.name))


async def test_a_model_that_a_connected_device_lacks_is_not_taken_over(harness):
    deployment = await PlannedDeployment(harness).open(worker={"models": {"m": PAIR}}, models="m")
    deployment.data["models"]["n"] = deployment.data["models"]["m"]
    lacks = "executable gpu0@local: models: lacks n of roma.yaml, has m"
    with pytest.raises(ConfigError, match=lacks):
        await harness.registry.follow(deployment.config)
    assert [(await deployment.ask((1, 1), model=name))[0] for name in "mn"] == [200, 404]
    assert deployment.executor.losses == 0


async def test_an_infer_ends_in_the_books_of_both(deployment):
    await asyncio.gather(*(deployment.ask((i, i)) for i in range(20)))
    asked = {m.action.id for m in deployment.tap.asked}
    assert sorted(asked) == sorted(m.outcome.id for m in deployment.tap.told)
    assert {m.outcome.status for m in deployment.tap.told} == {ActionStatus.OK}
    device = deployment.executor.planned
    assert (len(device.infers), len(device.loads), device.free) == (0, 0, 3)
