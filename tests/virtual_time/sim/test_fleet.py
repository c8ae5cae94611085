"""A fleet in virtual time: the production core and the production rules of a device."""

from dataclasses import replace
from itertools import count, takewhile

import pytest

from dispatcher.schedulers.clockwork.policy import Clockwork
from dispatcher.schedulers.head_of_line import Edf
from roma.domain.actions import ModelCapabilities
from roma.domain.events import Reason, Woken
from roma.lab.experiments.clockwork.runs import THINK_TIME, send_next
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import FleetPlan
from tests.support.co_execution import Segments

MODEL = ModelCapabilities(2, 0.020, {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.040})
EXACT = Noise(spread=0.0, stalls=0.0)


def fleet(*, models="ab", actions=None, clock=None, loops=None, **changes):
    """Return a fleet and a list of what will have ended.

    `loops` says how many clients of a model send a request after the other.
    """
    ends = []
    fields = {
        "devices": 1,
        "pages": 100,
        "deadline": 1.0,
        "policy": Clockwork,
        "noise": EXACT,
        "latency": 0.001,
        **changes,
    }
    models = models if isinstance(models, dict) else dict.fromkeys(models, MODEL)
    plan = FleetPlan(models, **fields)
    on_action = None if actions is None else actions.append

    def on_end(ended):
        ends.append(ended)
        if loops is not None:
            send_next(run, ended)

    run = Fleet(plan, on_end=on_end, on_action=on_action, clock=clock)
    for model, clients in (loops or {}).items():
        for i in range(clients):
            run.send(model, iter([i * 1e-5]))
    return run, ends


def test_a_cold_request_takes_its_load_its_run_and_the_messages_of_both():
    run, ends = fleet()
    run.send("a", iter([1.0, 2.0]))
    run.run(3.0)
    cold, warm = ends
    assert (cold.is_cold, warm.is_cold) == (True, False)
    assert cold.response == pytest.approx(0.020 + 0.010 + 4 * 0.001)
    assert warm.response == pytest.approx(0.010 + 2 * 0.001)
    assert run.loads == 1


def test_a_loop_sends_when_it_was_answered():
    run, ends = fleet(latency=0.0, loops={"a": 1})
    run.run(1.0)
    first, second, third, *_ = ends
    assert third.arrived - second.arrived == pytest.approx(0.010 + THINK_TIME)
    assert first.is_cold


def test_what_cannot_be_in_time_is_refused_and_not_run():
    actions = []
    run, ends = fleet(deadline=0.025, actions=actions)
    run.send("a", iter([1.0]))
    run.run(2.0)
    (end,) = ends
    assert (end.reason, end.response, end.is_good) == (Reason.DEADLINE, 0.0, False)
    assert [a.is_load for a in actions] == [True]


def test_without_noise_actions_take_what_was_predicted():
    actions = []
    run, _ = fleet(actions=actions, loops={"a": 3, "b": 5})
    run.run(2.0)
    assert len(actions) > 50
    for action in actions:
        assert action.duration == pytest.approx(action.expected)


def test_a_device_that_is_late_skips_and_is_back_on_schedule():
    run, ends = fleet(deadline=0.1, late=[(1.0, 0, 0.3)], loops={"a": 16})
    run.run(5.0)
    late = [end for end in ends if end.reason is None and not end.is_good]
    refused = [end for end in ends if end.reason is not None]
    # What ran when the device was held up is late, nothing after it; what waited was refused.
    assert 1 <= len(late) <= 16
    assert refused
    assert all(1.0 <= end.ended <= 1.4 for end in late + refused)
    assert all(end.is_good for end in ends if end.ended > 1.4)


def test_accidents_leave_no_prediction_behind_that_refuses_everything():
    """Every batch of a second takes twice its SLO; a while later the device is as good as ever."""
    delays = [(1.0 + i / 50, 0, 0.1) for i in range(50)]
    run, ends = fleet(deadline=0.05, late=delays, loops={"a": 4})
    run.run(30.0)

    def good(begin, end):
        return sum(e.is_good for e in ends if begin <= e.ended < end)

    assert good(1.2, 2.0) < 0.5 * good(0.2, 1.0)
    assert good(28.0, 29.0) >= 0.95 * good(0.0, 1.0)


def test_devices_without_windows_run_one_batch_at_a_time_and_hold_every_model():
    run, ends = fleet(policy=Edf, planned=False, latency=0.0)
    run.send("a", iter([1.0, 1.001]))
    run.run(2.0)
    assert [end.is_cold for end in ends] == [False, False]
    assert [end.ended for end in ends] == [pytest.approx(1.010), pytest.approx(1.020)]


def trace(seed):
    changes = {"pages": 3, "deadline": 0.2, "seed": seed, "noise": Noise(0.01, 1e-3)}
    run, ends = fleet(models="abc", loops=dict.fromkeys("abc", 4), **changes)
    run.run(2.0)
    return [(e.model, e.arrived, e.ended, e.reason, e.is_cold) for e in ends]


def test_the_same_seed_gives_the_same_run():
    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


def test_every_request_ends_once_and_none_is_forgotten():
    run, ends = fleet(pages=3, models="abc", deadline=0.2)
    times = [i / 500 for i in range(1000)]
    for model in "abc":
        run.send(model, iter(times))
    run.run(10.0)
    assert len(ends) == 3 * len(times)
    assert run.dispatcher.live == 0
    assert all(end.is_good for end in ends if end.reason is None)


def test_time_that_a_decision_takes_passes_before_its_commands_leave():
    ticks = count(0.0, 0.002)  # every reading is 2 ms after the last: so long takes a decision
    run, ends = fleet(latency=0.0, clock=lambda: next(ticks))
    run.send("a", iter([1.0, 2.0]))
    run.run(3.0)
    cold, warm = ends
    # The arrival and the answer; before them, that the model has been loaded.
    assert warm.response == pytest.approx(0.010 + 2 * 0.002)
    assert cold.response == pytest.approx(0.020 + 0.010 + 3 * 0.002)
    assert run.decided_for >= 5 * 0.002


def test_what_comes_while_a_decision_is_made_waits_its_turn():
    ticks = count(0.0, 0.100)
    run, ends = fleet(latency=0.0, clock=lambda: next(ticks), policy=Edf, planned=False)
    run.send("a", iter([1.0, 1.01, 1.02]))
    run.run(5.0)
    # Decided at 1.1, 1.2 and 1.3; the first answer comes at 1.11 and waits for all of them, and
    # the device, which runs one at a time, for the decision that follows each.
    assert [end.ended for end in ends] == pytest.approx([1.4, 1.51, 1.62])


def test_a_dispatcher_without_time_serves_less_than_its_devices_can():
    def goodput(seconds):
        ticks = count(0.0, seconds)
        run, ends = fleet(latency=0.0, deadline=0.1, clock=lambda: next(ticks), devices=4)
        for model in "ab":
            run.send(model, takewhile(lambda t: t < 3.0, count(0.0, 0.005)))
        run.run(4.0)
        return sum(end.is_good for end in ends)

    assert goodput(0.02) < 0.2 * goodput(0.0) == pytest.approx(0.2 * 1200, rel=0.02)


def test_a_dispatcher_that_is_late_is_woken_once_and_not_once_per_decision():
    waiting = []
    ticks = count(0.0, 0.02)
    run, _ = fleet(latency=0.0, deadline=0.1, clock=lambda: next(ticks), devices=4)
    decide = run.handle

    def handle(event, *, now):
        waiting.append(sum(isinstance(e, Woken) for e, _ in run._undecided))
        return decide(event, now=now)

    run.handle = handle
    run.send("a", takewhile(lambda t: t < 3.0, count(0.0, 0.005)))
    run.run(4.0)
    assert max(waiting) == 1


@pytest.mark.parametrize(("overlap", "both"), [(0.0, 0.008), (0.4, 0.0048), (0.9, 0.004)])
def test_segments_of_two_models_take_less_time_together(overlap, both):
    models = dict.fromkeys("ab", replace(MODEL, segments=3))
    run, ends = fleet(models=models, policy=Segments, latency=0.0, together=2, overlap=overlap)
    for model in models:
        run.send(model, iter([1.0]))
    run.run(3.0)
    piece = MODEL.executions[2] / 3
    # The first piece of a and the last one of b run alone.
    assert [e.response for e in ends] == pytest.approx([piece + 2 * both, 2 * piece + 2 * both])
    assert [e.model for e in ends] == ["a", "b"]
    assert not run.dispatcher.partial
