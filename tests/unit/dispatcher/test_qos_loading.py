"""LOADs and UNLOADs under the policies of variants."""

from dispatcher.schedulers.qos.heuristic import Fixed
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    ExecutorAdded,
    ExecutorReady,
    ExecutorSuspected,
    LoadEnded,
    LoadModel,
    UnloadModel,
)
from roma.domain.model import Device, ExecutorSpec
from tests.support.variants import RUNS, VariantsHarness


def connected(*loaded, pages, needs=1):
    """Return what follows once a device is there that also has models of an earlier roma.yaml.

    Each of these has one page, a variant `needs`.
    """
    core = VariantsHarness(Fixed).core
    offers = {
        model: ModelCapabilities(needs if model in RUNS else 1, 0.1, RUNS["tiny"])
        for model in (*RUNS, "old", "older")
    }
    core.handle(ExecutorAdded(ExecutorSpec("gpu", Device.GPU, ("yolo",), is_planned=True)), now=0.0)
    commands = core.handle(ExecutorReady("gpu", Capabilities(pages, offers, loaded)), now=0.0)
    return [
        f"{'+' if isinstance(c, LoadModel) else '-'}{c.model}"
        for c in commands
        if isinstance(c, LoadModel | UnloadModel)
    ]


def test_models_that_are_not_served_make_room_for_variants():
    assert connected("old", "older", pages=2) == ["-old", "+full", "-older", "+tiny"]
    assert connected("old", "older", pages=3) == ["+full", "-old", "+tiny"]
    assert connected("old", "older", pages=4) == ["+full", "+tiny"]


def test_none_of_them_is_unloaded_for_a_variant_that_would_still_not_fit():
    assert connected("old", "older", pages=3, needs=4) == []
    assert connected("old", "older", pages=3, needs=3) == ["-old", "-older", "+full"]


def test_a_device_that_shuts_down_is_not_asked_for_the_load_that_it_refused():
    harness = VariantsHarness(Fixed)
    _, tiny = (c for c in harness.device(loaded=()) if isinstance(c, LoadModel))
    harness.core.handle(ExecutorSuspected("gpu"), now=0.01)
    assert harness.core.handle(LoadEnded(tiny.load, False, is_missed=True), now=0.01) == []
    assert harness.core.next_wakeup() is None
