"""The plant's three discretisations against closed forms, against the queue, and against eq. 10."""

import control
import numpy as np
import pytest

from controllers.design import plant
from controllers.design.plant import OperatingPoint, Plant, Sampling
from controllers.error import ErrorForm, error
from roma.domain.errors import ConfigError

PAPER = OperatingPoint()
T, TAU, GAIN = 1.0, 0.304, 10 / 35


@pytest.mark.parametrize(
    ("sampling", "k", "b", "printed"),
    [
        (Sampling.BACKWARD, -GAIN * (T + TAU), TAU / (T + TAU), 0.2331),
        (Sampling.MEAN, -GAIN * (TAU + T / 2), (TAU - T / 2) / (TAU + T / 2), -0.2438),
        (Sampling.ZOH, -GAIN * TAU, 1 - T / TAU, -2.2895),
    ],
)
def test_discretisations_of_the_papers_operating_point(sampling, k, b, printed):
    found = plant.sampled(PAPER, sampling)
    assert found.k == pytest.approx(k)
    assert found.b == pytest.approx(b)
    assert found.b == pytest.approx(printed, abs=5e-5)
    # What identification relies on: k·(1 - b) knows neither τ̄ nor the discretisation.
    assert found.k * (1 - found.b) == pytest.approx(-GAIN * T)


@pytest.fixture
def stepped():
    """Random cores per window, and τ of the linear continuous plant: start, end and window mean."""
    u = np.random.default_rng(3).normal(size=40)
    integral = np.concatenate([[0.0], np.cumsum(u) * T])
    after = -GAIN * (integral[:-1] + TAU * u)
    before_next = -GAIN * (integral[1:] + TAU * u)
    return u, after, before_next, (after + before_next) / 2


def test_each_sample_is_exactly_what_it_says(stepped):
    u, after, before_next, mean = stepped
    time = np.arange(len(u)) * T

    def simulated(sampling):
        system = plant.sampled(PAPER, sampling).transfer_function()
        return control.forced_response(system, time, u).outputs

    assert simulated(Sampling.ZOH) == pytest.approx(after)
    assert simulated(Sampling.MEAN) == pytest.approx(mean)
    # The value just before the next quota: with the dead step of a sampled loop, backward Euler.
    assert simulated(Sampling.BACKWARD) == pytest.approx(before_next)


def test_dead_time_shifts_and_changes_nothing_else():
    system = plant.sampled(PAPER, Sampling.MEAN)
    u = np.array([0.0, 1.0, 1.0, 0.0, 2.0, 0.0, 0.0])
    now = control.forced_response(system.transfer_function(), np.arange(7.0), u).outputs
    late = control.forced_response(system.transfer_function(2), np.arange(7.0), u).outputs
    assert late[2:] == pytest.approx(now[:-2])


@pytest.mark.parametrize("form", list(ErrorForm))
def test_the_slope_is_the_derivative_of_productions_error(form):
    at, cost, step = 0.304, 0.1, 1e-6
    rise = error(form, at + step, at, cost) - error(form, at - step, at, cost)
    assert plant.error_slope(form, at, cost) == pytest.approx(rise / (2 * step), rel=1e-4)


def test_eq_10_shows_that_eq_8_and_eq_9_lost_a_term():
    """Its denominator (z - 1)(z - b) cancels k(z - b)/(z - 1) and leaves (z - 1)/(z - p)."""
    k, b, p = 0.37, 0.23, 0.6
    eq_10 = control.tf([k - 1, 2 - k * p - k * b, k * b * p - 1], k * np.poly([1, b]), T)
    restored = control.tf([k, -k * b], [1, -1], T)
    stored = control.tf([k, 0], [1, -1], T)
    z = np.exp(1j * np.array([0.1, 0.5, 1.0, 3.0]))

    def from_gpu(g):
        return g(z) / (1 + eq_10(z) * g(z))

    assert from_gpu(restored) == pytest.approx((z - 1) / (z - p))
    assert from_gpu(stored) != pytest.approx((z - 1) / (z - p))
    assert from_gpu(restored) != pytest.approx(z / (z - p))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_operating_point_names_its_field(value):
    with pytest.raises(ConfigError, match=r"throughput = .*: must be from 1e-06"):
        OperatingPoint(throughput=value)


def test_little_and_balance_hold_at_the_operating_point():
    assert PAPER.cores == pytest.approx(3.5)
    assert PAPER.queue == pytest.approx(10.64)
    assert Plant(-1.0, 0.5).transfer_function().dt == 1.0
