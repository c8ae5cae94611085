"""Real SavedModels on a planned device: over the socket as by hand, bit for bit."""

import numpy as np
import pytest

from roma.device import predictability
from roma.device.profile import measure
from roma.device.program import pages
from roma.device.registry import SAMPLE, RuntimeKind, make
from roma.device.registry import save_sample as save_sample_of
from roma.device.runtimes.tensorflow import TensorFlowRuntime, save_sample
from roma.domain.actions import BATCHES, ActionStatus, Infer, Load, Unload
from roma.domain.errors import LaunchError, RomaError, TensorError
from roma.serving import session
from tests.support.saved_models import text_and_numbers


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Two models: a dense one, and one of text and numbers that has three signatures."""
    tf = session.import_tensorflow()
    root = tmp_path_factory.mktemp("saved")
    save_sample(root / "dense" / "1")
    module, serve = text_and_numbers(tf)

    @tf.function(input_signature=[tf.TensorSpec([2, 3], tf.float32, name="x")])
    def pair(x):
        return {"y": tf.linalg.inv(x[:, None, :1])}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def scalar(x):
        return {"y": x}

    signatures = {"serving_default": serve, "pair": pair, "scalar": scalar}
    tf.saved_model.save(module, str(root / "mixed"), signatures=signatures)
    (root / "broken").mkdir()
    (root / "broken" / "saved_model.pb").write_bytes(b"no model")
    return root


@pytest.fixture
def runtime(saved):
    found = TensorFlowRuntime({"dense": saved / "dense", "mixed": saved / "mixed"})
    yield found
    found.close()


def some(model, batch):
    numbers = np.random.default_rng(batch)
    if model == "dense":
        return {"x": numbers.random((batch, 512), np.float32)}
    text = np.array([b"a\0b%d" % i for i in range(batch)], dtype=object)
    return {"text": text, "numbers": numbers.random((batch, 3))}


def test_what_a_model_takes_is_read_from_it(runtime):
    dense = runtime.models["dense"]
    (given,) = dense.signatures["serving_default"].inputs
    assert (given.name, given.dtype, given.shape) == ("x", "float32", (-1, 512))
    assert dense.weights > 3 * 512 * 512 * 4
    mixed = runtime.models["mixed"].signatures
    assert {spec.name: spec.dtype for spec in mixed["serving_default"].inputs} == {
        "text": "bytes",
        "numbers": "float64",
    }
    # One of them has no batch.
    assert set(mixed) == {"serving_default", "pair"}


async def test_outputs_are_those_of_direct_execution(working, runtime, saved):
    offers = await measure(runtime, 10, runs=1)
    assert offers["dense"].executions.keys() == set(BATCHES)
    assert offers["dense"].any_batch
    paths = {"dense": saved / "dense" / "1", "mixed": saved / "mixed"}
    async with working(runtime, pages(runtime), offers=offers) as connect:
        link = await connect()
        for model, path in paths.items():
            direct = session.load(path, 1)
            assert await link.status(Load, model) is ActionStatus.OK
            for batch in (*BATCHES, 7):
                inputs = some(model, batch)
                expected = direct.run("serving_default", inputs)
                result = await link.did(Infer, model, batch=batch, inputs=inputs)
                assert result.outcome.status is ActionStatus.OK, result.outcome
                assert result.outputs.keys() == expected.keys()
                for name, array in expected.items():
                    assert result.outputs[name].dtype == array.dtype
                    assert result.outputs[name].shape == array.shape
                    assert result.outputs[name].tolist() == array.tolist()
            direct.close()
        assert await link.status(Unload, "dense") is ActionStatus.OK
        assert await link.status(Infer, "dense", inputs=some("dense", 1)) is ActionStatus.NOT_LOADED
        assert await link.status(Load, "dense") is ActionStatus.OK
        assert await link.status(Infer, "dense", inputs=some("dense", 1)) is ActionStatus.OK


async def test_another_signature_takes_its_own_batch_alone(working, runtime):
    offers = await measure(runtime, 10, runs=1)
    async with working(runtime, offers=offers) as connect:
        link = await connect()
        await link.did(Load, "mixed")
        runtime_inputs = {"x": np.ones((2, 3), np.float32)}
        link.send(submit_pair(1, 2, runtime_inputs))
        result = await link.read()
        assert result.outcome.status is ActionStatus.OK
        assert result.outputs["y"].tolist() == [[[1.0]], [[1.0]]]
        link.send(submit_pair(2, 1, {"x": np.ones((1, 3), np.float32)}))
        result = await link.read()
        assert result.outcome.status is ActionStatus.INVALID
        # TensorFlow itself finds this one.
        link.send(submit_pair(3, 2, {"x": np.zeros((2, 3), np.float32)}))
        result = await link.read()
        assert result.outcome.status is ActionStatus.INVALID
        assert "not invertible" in result.outcome.detail


def submit_pair(number, batch, inputs):
    from roma.device_protocol import Submit

    return Submit(Infer(number, "mixed", batch, 0.0, float("inf")), "pair", inputs)


def test_an_unloaded_model_is_closed(runtime):
    runtime.load("dense")
    runtime.unload("dense")
    with pytest.raises(KeyError):
        runtime.execute("dense", "serving_default", some("dense", 1))


def test_inputs_that_tensorflow_refuses_are_the_clients_fault(runtime):
    runtime.load("mixed")
    with pytest.raises(TensorError, match="not invertible"):
        runtime.execute("mixed", "pair", {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("name", ["broken", "nothing"])
def test_what_is_no_model_is_told_by_name(saved, name):
    with pytest.raises((LaunchError, RomaError), match=name):
        TensorFlowRuntime({name: saved / name})


def test_the_sample_model_runs(tmp_path):
    kind = RuntimeKind.TENSORFLOW
    runtime = make(kind, save_sample_of(kind, tmp_path), "cpu", 1)
    (row,) = predictability.run(runtime, SAMPLE, batch=4, runs=3)
    assert row.runs == 3
    runtime.close()
