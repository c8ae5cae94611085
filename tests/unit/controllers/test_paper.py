"""The law `paper` against the paper's equation and hand-made periods."""

from dataclasses import replace

import pytest

from controllers.paper import PaperGains, PaperState, paper_step
from tests.support.periods import BASE, BOUNDS, IDLE


def paper(state, m, **gains):
    return paper_step(PaperGains(**gains), state, m, **BOUNDS)


def test_paper_is_equation_11_on_the_inverse_error():
    m = replace(BASE, response_time=0.8, applied=1.3)
    demand, state = paper(PaperState(e=-0.5), m, round_up=0.0)
    e = 1 / 0.4 - 1 / 0.8
    assert demand.cores == pytest.approx(1.3 + 0.38 * (e - 0.553 * -0.5))
    assert state.e == pytest.approx(e)


def test_papers_default_gains_are_those_of_the_authors_code():
    """u(k) = u(k-1) + 0.21·Δe + 0.17·e, on a run of response times."""
    u, before, state = 2.0, 0.0, None
    for rt in (0.5, 0.9, 0.7, 0.35, 0.45):
        e = 1 / 0.4 - 1 / rt
        expected = u + 0.21 * (e - before) + 0.17 * e
        demand, state = paper(state, replace(BASE, response_time=rt, applied=u), round_up=0.0)
        assert demand.cores == pytest.approx(expected, abs=2e-3)
        u, before = demand.cores, e


def test_papers_printed_gains_can_be_given():
    demand, _ = paper(None, replace(BASE, response_time=0.8), K=0.15, a=0.11, round_up=0.0)
    assert demand.cores == pytest.approx(1.0 + 0.15 * 1.25)


@pytest.mark.parametrize(
    ("applied", "cores"), [(1.0, 1.0), (1.01, 1.1), (0.1 + 0.2, 0.3), (3.95, 4.0), (3.99, 4.0)]
)
def test_paper_rounds_up_to_a_tenth_of_a_core(applied, cores):
    on_target = replace(BASE, applied=applied)
    assert paper(None, on_target)[0].cores == pytest.approx(cores)


def test_paper_releases_nothing_in_steps_below_its_rounding():
    """Its trap: 5 % too fast for ever, and not a tenth of a core comes back."""
    m, state = replace(BASE, response_time=0.39), None
    for _ in range(100):
        demand, state = paper(state, m)
        m = replace(m, applied=demand.cores)
    assert demand.cores == 1.0


@pytest.mark.parametrize(
    "m",
    [IDLE, replace(IDLE, response_time=0.9), replace(BASE, response_time=None, completed_here=0)],
)
def test_paper_gives_the_minimum_when_idle_or_unanswered_and_forgets(m):
    demand, state = paper(PaperState(e=2.0), replace(m, applied=3.0))
    assert demand.cores == 0.1
    assert state.e == 0.0


def test_paper_starves_what_takes_longer_than_a_period():
    """Its trap: no age term, so a request that runs and does not finish looks like idleness."""
    stuck = replace(IDLE, in_flight=1, waiting=50, oldest_age=30.0, applied=3.0)
    assert paper(None, stuck)[0].cores == 0.1


def test_paper_does_not_see_what_was_refused_or_waits():
    """Its trap: the few that were admitted are fast, so cores go while clients are turned away."""
    m = replace(BASE, response_time=0.1, shed=500, waiting=50, oldest_age=5.0, applied=3.0)
    assert paper(None, m)[0].cores < 1.0


def test_paper_is_quick_to_release_and_slow_to_rescue():
    """Ten times too fast against ten times too slow: the raw inverse error is not symmetric."""
    slow, _ = paper(None, replace(BASE, response_time=4.0, applied=1.0), round_up=0.0)
    wide = {**BOUNDS, "hi": 100.0}
    fast, _ = paper_step(
        PaperGains(round_up=0.0), None, replace(BASE, response_time=0.04, applied=20.0), **wide
    )
    assert 20.0 - fast.cores == pytest.approx(10 * (slow.cores - 1.0))
