"""Verdicts against python-control, against brute force, and on the paper's own gains."""

import control
import numpy as np
import pytest

from controllers.design import plant, robustness, tune
from controllers.design.plant import OperatingPoint, Plant, Sampling
from controllers.design.robustness import Controller, judge

POINT = OperatingPoint()
MEAN = plant.sampled(POINT, Sampling.MEAN)
TUNED = tune.main(MEAN, tune.TuningGoal()).controller
PAPER = robustness.from_gains(robustness.PAPER, POINT.response_time, POINT.period)


def test_eq_12_survives_three_periods_of_dead_time():
    verdicts = robustness.main(TUNED, MEAN)
    assert [v.dead_time for v in verdicts] == [0, 1, 2, 3]
    assert [round(v.radius, 3) for v in verdicts] == [0.85, 0.885, 0.893, 0.907]
    assert all(v.stable for v in verdicts)
    # The more dead time, the less of everything.
    assert np.all(np.diff([v.phase_margin for v in verdicts]) < 0)
    assert np.all(np.diff([v.peak for v in verdicts]) > 0)
    assert np.all(np.diff([v.spread[1] for v in verdicts[1:]]) < 0)


@pytest.mark.parametrize("dead_time", [1, 2, 3])
def test_margins_agree_with_python_control_where_it_is_right(dead_time):
    verdict = judge(TUNED, MEAN, dead_time)
    loop = TUNED.open_loop(MEAN, dead_time)
    _, phase, distance, _, crossover, _ = control.stability_margins(loop)
    assert verdict.phase_margin == pytest.approx(phase, abs=0.2)
    assert verdict.crossover == pytest.approx(crossover, rel=0.01)
    assert verdict.peak == pytest.approx(1 / distance, rel=0.01)


@pytest.mark.parametrize("dead_time", [1, 2, 3])
def test_the_gain_spread_ends_where_the_loop_does(dead_time):
    loop = TUNED.open_loop(MEAN, dead_time)
    lower, upper = robustness.gain_spread(loop)
    assert lower == 0
    assert robustness.radius(loop, upper * 0.999) < 1 < robustness.radius(loop, upper * 1.001)


@pytest.mark.parametrize(
    ("sampling", "stable"),
    [
        (Sampling.MEAN, [True, False, False, False]),
        (Sampling.ZOH, [True, False, False, False]),
        (Sampling.BACKWARD, [True, True, False, False]),
    ],
)
def test_the_papers_gains_need_a_loop_without_dead_time(sampling, stable):
    verdicts = robustness.main(PAPER, plant.sampled(POINT, sampling))
    assert [v.stable for v in verdicts] == stable
    assert [v.peak is not None for v in verdicts] == stable


@pytest.mark.parametrize(
    ("sampling", "dead_time"),
    [(Sampling.MEAN, 1), (Sampling.MEAN, 2), (Sampling.ZOH, 1), (Sampling.BACKWARD, 2)],
)
def test_no_gain_at_all_stabilises_the_papers_zero(sampling, dead_time):
    loop = Controller(1.0, 0.11).open_loop(plant.sampled(POINT, sampling), dead_time)
    assert all(robustness.radius(loop, float(f)) > 1 for f in np.geomspace(1e-3, 1e3, 300))


def test_the_lost_b_hides_the_dead_time():
    """Eq. 8 as stored, k·z/(z - 1): its z cancels the dead step, and the paper's gains look fine."""
    assert judge(PAPER, Plant(MEAN.k, 0.0), 1).stable
    assert not judge(PAPER, MEAN, 1).stable


@pytest.mark.parametrize("a", [0.0, 0.11, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("b", [-2.29, -0.24, 0.23, 0.6])
@pytest.mark.parametrize("dead_time", [0, 1, 2, 3])
def test_the_lead_says_whether_small_gains_are_stable(a, b, dead_time):
    lead = robustness.small_gain_lead(a, b, dead_time)
    loop = Controller(1.0, a).open_loop(Plant(-1.0, b), dead_time)
    assert (robustness.radius(loop, 1e-4) < 1) == (lead > 0)


def test_productions_default_gains_have_little_room_at_three_periods():
    default = robustness.from_gains({}, POINT.response_time, POINT.period)
    verdicts = robustness.main(default, MEAN)
    assert all(v.stable for v in verdicts)
    assert verdicts[3].spread[1] < 1.1 < verdicts[2].spread[1]


@pytest.mark.parametrize("dead_time", [0, 1])
def test_python_controls_gain_margin_is_spurious_for_two_integrators(dead_time):
    """Why margins come from poles here; when this fails, python-control has got better at it."""
    loop = TUNED.open_loop(MEAN, dead_time)
    assert judge(TUNED, MEAN, dead_time).stable
    assert control.stability_margins(loop)[0] < 1e-6
