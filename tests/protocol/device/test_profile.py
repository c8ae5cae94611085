"""The seed profile: which batch sizes, which models, in which order."""

import numpy as np
import pytest

from roma.device.profile import WARM_UP, measure
from roma.device.runtimes.base import RuntimeModel, example, sizes
from roma.device_protocol import Signature, TensorSpec, check
from roma.domain.actions import PAGE, ModelCapabilities
from roma.domain.errors import LaunchError

ANY = Signature(
    (TensorSpec("x", "int64", (-1, -1, 2)), TensorSpec("s", "bytes", (-1,))),
    (TensorSpec("y", "float32", (-1,)),),
)
FOUR = Signature((TensorSpec("x", "float32", (4, 2)),), ())


def test_examples_fit_their_signature():
    for batch in sizes(ANY):
        check(example(ANY, batch), ANY, batch)
    assert example(ANY, 2)["x"].shape == (2, 1, 2)


def test_a_model_of_a_fixed_batch_has_that_one():
    assert sizes(FOUR) == [4]
    assert sizes(Signature((TensorSpec("x", "float32", (3, 2)),), ())) == []


async def test_every_batch_size_is_warmed_up_and_measured(hand):
    hand.known = lambda name: None
    offers = await measure(hand, 4, runs=3)
    assert offers.keys() == {"m", "n"}
    assert list(offers["m"].executions) == [1, 2, 4, 8, 16]
    assert all(seconds > 0 for seconds in offers["m"].executions.values())
    # Once more, to see whether it takes a batch of 3 as well.
    assert hand.done.count(("execute", "m")) == 5 * (WARM_UP + 3) + 1
    # Nothing is left on the device.
    kinds = [what for what, name in hand.done if name == "m" and what != "execute"]
    assert kinds == ["load", "unload"] * 3


async def test_the_batch_sizes_are_those_that_a_worker_is_told(hand):
    hand.known = lambda name: None
    offers = await measure(hand, 4, runs=1, batches=(1, 2, 32))
    assert list(offers["m"].executions) == [1, 2, 32]
    assert sizes(FOUR, (1, 4, 5)) == [4]


async def test_any_batch_is_run_where_one_between_was(hand, caplog):
    hand.known = lambda name: None
    hand.models["fixed"] = RuntimeModel(1, {"serving_default": FOUR})
    execute = hand.execute

    def fail(name, signature, inputs):
        if name == "n" and len(inputs["x"]) == 3:
            raise ValueError("not a power of two")
        return execute(name, signature, inputs)

    hand.execute = fail
    offers = await measure(hand, 4, runs=1, batches=(1, 2, 4))
    assert {name: offer.any_batch for name, offer in offers.items()} == {
        "m": True,
        "n": False,
        "fixed": False,
    }
    assert offers["n"].executions.keys() == {1, 2, 4}
    assert "model n: is not executed in this size: batch 3: not a power of two" in caplog.text
    offers = await measure(hand, 4, runs=1, batches=(1, 2))
    assert not offers["m"].any_batch  # there is nothing between


async def test_what_is_known_is_not_measured(hand):
    offers = await measure(hand, 4)
    assert offers["m"] == ModelCapabilities(1, 0.001, {1: 0.001, 2: 0.001})
    assert hand.done == []


async def test_a_model_that_fails_or_is_too_large_is_left_out(hand, caplog):
    hand.models["large"] = RuntimeModel(9 * PAGE, hand.models["m"].signatures)
    hand.models["fixed"] = RuntimeModel(1, {"serving_default": FOUR})
    hand.known = lambda name: None
    execute = hand.execute

    def fail(name, signature, inputs):
        if name == "n":
            raise ValueError("no kernel")
        return execute(name, signature, inputs)

    hand.execute = fail
    offers = await measure(hand, 4, runs=1)
    assert offers.keys() == {"m", "fixed"}
    assert offers["fixed"].executions.keys() == {4}
    assert "model large: pages = 9: must be ≤ 4, the device's" in caplog.text
    assert "model n: cannot be measured, and is left out: batch 1: no kernel" in caplog.text
    assert [what for what, name in hand.done if name == "n"] == ["load", "unload"]


async def test_a_batch_size_that_fails_is_left_out(hand, caplog):
    hand.known = lambda name: None
    execute = hand.execute

    def fail(name, signature, inputs):
        if len(inputs["x"]) > 4:
            raise ValueError("no kernel")
        return execute(name, signature, inputs)

    hand.execute = fail
    offers = await measure(hand, 4, runs=1)
    assert list(offers["m"].executions) == [1, 2, 4]
    assert "model m: is not executed in this size: batch 8: no kernel" in caplog.text


async def test_a_worker_without_a_model_has_nothing_to_do(hand):
    hand.known = lambda name: None
    hand.fault = ValueError(np.float32(1))
    with pytest.raises(LaunchError, match="models: none can be served"):
        await measure(hand, 4)
