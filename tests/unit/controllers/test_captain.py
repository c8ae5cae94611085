"""The law `captain` against hand-made periods."""

from dataclasses import replace

import pytest

from controllers.captain import CaptainGains, CaptainState, captain_step
from controllers.history import Used
from tests.support.periods import BASE, BOUNDS


def captain(state, m, **gains):
    return captain_step(CaptainGains(**gains), state, m, **BOUNDS)


def watched(cores=0.4, *, margin=0.0):
    """The state after five steady periods: a full history."""
    return CaptainState(margin, (Used(1.0, cores),) * 5)


@pytest.mark.parametrize(
    ("state", "changes", "cores"),
    [
        # Scaled up by what exceeds alpha times the target, and up to that tolerated.
        (None, {"throttled": 0.5}, 1.0 * (1 + 0.5 - 3 * 0.1)),
        (None, {"throttled": 0.29}, 1.0),
        (watched(0.1), {"usage": 0.1}, 0.5),  # halved at most
        (watched(0.89), {"usage": 0.89}, 0.89),
        (watched(0.91), {"usage": 0.91}, 1.0),  # it does not bother to cut a tenth
        # Its trap: a model that misses its SLA without being throttled keeps what it has.
        (
            watched(0.95),
            {"usage": 0.95, "response_time": 9.0, "waiting": 99, "oldest_age": 9.0},
            1.0,
        ),
    ],
)
def test_captain_follows_throttling_and_usage_alone(state, changes, cores):
    demand, after = captain(state, replace(BASE, **changes))
    assert demand.cores == pytest.approx(cores)
    assert (after.rollback is None) == (cores >= 1.0)


def test_captain_cuts_to_the_peak_of_its_history_and_margins_of_its_deviation():
    state = CaptainState(2.1, tuple(Used(1.0, c) for c in (0.5, 0.3, 0.5, 0.3, 0.5)))
    demand, after = captain(state, replace(BASE, usage=0.3))
    # The newest 0.3 pushes the oldest 0.5 out; stdev(0.3, 0.5, 0.3, 0.5, 0.3) = 0.1095
    assert after.margin == pytest.approx(2.0)  # not throttled: the margin shrinks by the target
    assert demand.cores == pytest.approx(0.5 + 2.0 * 0.10954, abs=1e-4)


def test_captain_cuts_nothing_before_its_history_is_full():
    state, seen = None, []
    for _ in range(5):
        demand, state = captain(state, replace(BASE, usage=0.1))
        seen.append(demand.cores)
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_captain_rolls_a_bad_cut_back_and_gives_as_much_again():
    demand, state = captain(watched(), replace(BASE, usage=0.4))
    assert demand.cores == 0.5
    demand, state = captain(state, replace(BASE, throttled=0.4, applied=0.5, usage=0.5))
    assert demand.cores == 1.5  # 1.0 + (1.0 - 0.5)
    assert state.margin == pytest.approx(0.3)  # it was throttled beyond the target: more margin
    # Once: what follows is an ordinary scale-up.
    demand, _ = captain(state, replace(BASE, throttled=0.4, applied=1.5, usage=1.5))
    assert demand.cores == pytest.approx(1.5 * 1.1)


def test_captain_forgets_a_cut_that_did_no_harm():
    _, state = captain(watched(), replace(BASE, usage=0.4))
    _, state = captain(state, replace(BASE, applied=0.5, usage=0.5))
    demand, _ = captain(state, replace(BASE, throttled=0.4, applied=0.5, usage=0.5))
    assert demand.cores == pytest.approx(0.5 * 1.1)


def test_captain_does_not_answer_for_the_supervisors_shortage():
    """It asked for 0.5 and got 0.2: the rollback is that of its own cut."""
    _, state = captain(watched(), replace(BASE, usage=0.4))
    demand, _ = captain(state, replace(BASE, throttled=0.9, applied=0.2, usage=0.2))
    assert demand.cores == 1.5
