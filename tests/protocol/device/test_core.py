"""The rules of a planned device: windows, one of each kind at a time, pages."""

import math

from roma.device.core import Begin, DeviceCore
from roma.domain.actions import ActionOutcome, ActionStatus, Infer, Load, Unload

NEEDS = {"small": 1, "large": 3}


def infer(number, model="small", *, earliest=0.0, latest=math.inf, batch=1):
    return Infer(number, model, batch, earliest, latest)


def load(number, model="small", *, earliest=0.0, latest=math.inf):
    return Load(number, model, earliest, latest)


def loaded(*models, pages=4):
    core = DeviceCore(pages, NEEDS)
    for i, model in enumerate(models):
        core.submit(load(1000 + i, model), 0.0)
        core.end(1000 + i, ActionStatus.OK, 0.0)
    return core


def test_an_action_begins_at_once_if_its_window_is_open():
    core = loaded("small")
    action = infer(1, earliest=1.0, latest=2.0)
    assert core.submit(action, 1.5) == [Begin(action)]
    assert core.end(1, ActionStatus.OK, 1.6) == [ActionOutcome(1, ActionStatus.OK, 1.5, 1.6)]


def test_an_action_waits_for_earliest_and_says_when():
    core = loaded("small")
    action = infer(1, earliest=1.0)
    assert core.submit(action, 0.5) == []
    assert core.next_wakeup() == 1.0
    assert core.advance(1.0) == [Begin(action)]


def test_a_window_is_open_until_latest_and_not_longer():
    action = infer(1, latest=2.0)
    assert loaded("small").submit(action, 2.0) == [Begin(action)]
    (outcome,) = loaded("small").submit(action, 2.5)
    assert outcome.status is ActionStatus.MISSED
    assert outcome.detail == "500.000 ms after `latest`"


def test_one_infer_and_one_load_run_at_a_time():
    core = loaded("small")
    first, second, other = infer(1), infer(2), load(3, "large")
    assert core.submit(first, 0.0) == [Begin(first)]
    assert core.submit(second, 0.0) == []
    assert core.submit(other, 0.0) == [Begin(other)]
    assert core.end(1, ActionStatus.OK, 0.1) == [
        ActionOutcome(1, ActionStatus.OK, 0.0, 0.1),
        Begin(second),
    ]


def test_actions_begin_in_the_order_of_earliest():
    core = loaded("small")
    late, early = infer(1, earliest=2.0), infer(2, earliest=1.0)
    core.submit(late, 0.0)
    core.submit(early, 0.0)
    assert core.advance(3.0) == [Begin(early)]


def test_a_device_that_was_late_skips_what_could_not_begin_in_time():
    core = loaded("small")
    core.submit(infer(1), 0.0)
    core.submit(infer(2, latest=0.2), 0.0)
    third = infer(3, latest=1.0)
    core.submit(third, 0.0)
    _, skipped, begun = core.end(1, ActionStatus.OK, 0.9)
    assert (skipped.id, skipped.status) == (2, ActionStatus.MISSED)
    assert begun == Begin(third)


def test_an_infer_of_a_model_that_is_not_loaded_is_not_begun():
    (outcome,) = DeviceCore(4, NEEDS).submit(infer(1), 0.0)
    assert outcome.status is ActionStatus.NOT_LOADED


def test_an_infer_may_wait_for_its_load():
    core = DeviceCore(4, NEEDS)
    core.submit(load(1), 0.0)
    action = infer(2, earliest=1.0)
    core.submit(action, 0.0)
    assert core.end(1, ActionStatus.OK, 0.9) == [ActionOutcome(1, ActionStatus.OK, 0.0, 0.9)]
    assert core.advance(1.0) == [Begin(action)]


def test_a_load_without_pages_fails_and_leaves_them_as_they_are():
    core = loaded("small", pages=3)
    (outcome,) = core.submit(load(1, "large"), 0.0)
    assert outcome.status is ActionStatus.NO_PAGES
    assert outcome.detail == "pages = 3: must be ≤ 2 (free)"
    assert core.free == 2


def test_a_failed_load_gives_its_pages_back():
    core = DeviceCore(4, NEEDS)
    core.submit(load(1, "large"), 0.0)
    assert core.free == 1
    core.end(1, ActionStatus.ERROR, 0.1, "the copy failed")
    assert core.free == 4
    assert not core.loaded


def test_unload_frees_pages_at_once():
    core = loaded("large")
    assert core.submit(Unload(1, "large"), 0.0) == [ActionOutcome(1, ActionStatus.OK, 0.0, 0.0)]
    assert core.free == 4


def test_a_model_that_is_used_is_not_unloaded():
    core = loaded("small")
    core.submit(infer(1), 0.0)
    (outcome,) = core.submit(Unload(2, "small"), 0.0)
    assert outcome.status is ActionStatus.BUSY
    core.end(1, ActionStatus.OK, 0.1)
    (outcome,) = core.submit(Unload(3, "small"), 0.2)
    assert outcome.status is ActionStatus.OK


def test_what_is_loaded_already_is_not_loaded_again():
    core = loaded("small")
    (outcome,) = core.submit(load(1), 0.0)
    assert outcome.status is ActionStatus.BUSY
    assert core.free == 3


def test_an_unknown_model_is_told_by_name():
    (outcome,) = DeviceCore(4, NEEDS).submit(infer(1, "other"), 0.0)
    assert outcome.status is ActionStatus.INVALID
    assert outcome.detail == "model = other: must be one that this device has"


def test_what_is_dropped_holds_its_model_no_longer_and_what_runs_goes_on():
    core = loaded("small")
    core.submit(infer(1), 0.0)
    core.submit(infer(2), 0.0)
    core.submit(load(3, "large", earliest=9.0), 0.0)
    assert sorted(core.drop()) == [2, 3]
    assert core.next_wakeup() is None
    assert core.end(1, ActionStatus.OK, 0.5) == [ActionOutcome(1, ActionStatus.OK, 0.0, 0.5)]
    (outcome,) = core.submit(Unload(4, "small"), 0.5)
    assert outcome.status is ActionStatus.OK


def test_infers_that_begin_together_end_before_the_next_begins():
    core = loaded("small", "large")
    both, after = (infer(1), infer(2, "large")), infer(3)
    assert core.submit_together(both, 0.0) == [Begin(both[0], (both[1],))]
    assert core.submit(after, 0.0) == []
    assert core.end(1, ActionStatus.OK, 0.1) == [ActionOutcome(1, ActionStatus.OK, 0.0, 0.1)]
    assert core.end(2, ActionStatus.ERROR, 0.1)[1:] == [Begin(after)]


def test_an_infer_that_cannot_begin_leaves_the_others_of_its_group():
    core = loaded("small")
    here, elsewhere, unknown = infer(1), infer(2, "large"), infer(3, "?")
    steps = core.submit_together((elsewhere, unknown, here), 0.0)
    statuses = {step.id: step.status for step in steps if isinstance(step, ActionOutcome)}
    assert statuses == {2: ActionStatus.NOT_LOADED, 3: ActionStatus.INVALID}
    assert steps[-1] == Begin(here)
    assert core.drop() == []
    assert core.submit(Unload(4, "small"), 0.0)[0].status is ActionStatus.BUSY
