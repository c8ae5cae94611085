"""Capabilities as the dispatcher takes them."""

import pytest

from dispatcher.live.planned.capabilities import checked, readable
from roma.device_protocol import Hello, Signature, TensorSpec
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.errors import WireError
from roma.tensors import arrays


def hello(*dims, executions=None, name="m"):
    spec = (TensorSpec("x", "float32", (-1, *dims)),)
    model = ModelCapabilities(1, 0.5, executions or {1: 0.1, 2: 0.2})
    signatures = {"serving_default": Signature(spec, spec)}
    return Hello("w", Capabilities(4, {name: model}, (name,)), {name: signatures})


def test_a_sound_offer_is_taken_as_it_is():
    assert checked(hello(3), ["m"]) == hello(3).offer


def test_a_model_whose_requests_cannot_be_joined_has_batch_one():
    assert checked(hello(-1), ["m"]).models["m"].executions == {1: 0.1}


def test_models_that_nobody_asks_for_may_have_other_batches():
    odd = hello(3, executions={4: 0.1}, name="other")
    assert checked(odd, []) == odd.offer
    with pytest.raises(WireError, match=r"models\.other: batch sizes: must have 1"):
        checked(odd, ["other"])


@pytest.mark.parametrize("seconds", [-0.1, 0.0])
def test_times_are_seconds(seconds):
    with pytest.raises(WireError, match=r"models\.m: batch 1 = .*: must be seconds, > 0"):
        checked(hello(3, executions={1: seconds}), ["m"])


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "float"), ("float64", "double"), ("bytes", "string"), ("int64", "int64")],
)
def test_types_are_called_as_tensorflow_does(dtype, name):
    signature = Signature((TensorSpec("x", dtype, (-1, 2)),), ())
    found = readable({"serving_default": signature})["serving_default"]
    assert found.inputs == {"x": arrays.ServingTensorSpec("x", name, (-1, 2))}
