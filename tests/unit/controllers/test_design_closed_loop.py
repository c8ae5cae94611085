"""Production's step() in the loop: it is the linear theory where that holds, and it settles."""

from dataclasses import replace

import numpy as np
import pytest

from controllers import registry
from controllers.cost import Cost
from controllers.design import closed_loop, plant, robustness, tune
from controllers.design.closed_loop import LoopScenario
from controllers.design.plant import OperatingPoint, Sampling
from controllers.design.vector import decode, encode
from controllers.error import ErrorForm
from controllers.late_share import LateShareState
from controllers.measurement import Measurement
from controllers.pi import PiState
from controllers.rate import RequestRate
from roma.domain.errors import ConfigError

POINT = OperatingPoint()


def tuned(form=ErrorForm.RT, point=POINT, q=0.85):
    system = plant.sampled(point, Sampling.MEAN)
    goal = tune.TuningGoal(q=q, error=form, set_point=point.response_time)
    return tune.main(system, goal)


EQ_12 = LoopScenario(gains=tuple(tuned().gains.items()))
BY_HAND = LoopScenario(gains=tuple(robustness.PAPER.items()))


@pytest.mark.parametrize(
    ("form", "dead_time", "point", "q"),
    [
        *((form, dead_time, POINT, 0.85) for form in ErrorForm for dead_time in (1, 2, 3)),
        # Gains hold for the period that they were tuned for.
        *((ErrorForm.RT, 1, OperatingPoint(period=period), 0.9) for period in (0.5, 2.0)),
    ],
)
def test_a_small_step_is_the_linear_theory(form, dead_time, point, q):
    """So eq. 11, the unit of K in every error form and the dead step are production's own."""
    tuning = tuned(form, point, q)
    gains, size = tuple(tuning.gains.items()), 1e-3 * point.response_time
    step = LoopScenario(gains=gains, set_point=size, dead_time=dead_time, age=False)
    run = closed_loop.main(point, step)
    linear = closed_loop.predicted(point, tuning.controller, step)
    assert np.ptp(linear) > size
    assert run.response == pytest.approx(linear, abs=5e-3 * size)


@pytest.mark.parametrize("form", list(ErrorForm))
@pytest.mark.parametrize(
    ("step", "cores"),
    [({"set_point": 0.06}, 3.5), ({"rate": 5.0}, 4.0), ({"rate": -5.0}, 3.0), ({"gpus": 1.0}, 2.5)],
)
def test_steps_leave_no_error_and_the_cores_that_balance(form, step, cores):
    gains = tuple(tuned(form).gains.items())
    run = closed_loop.main(POINT, LoopScenario(gains=gains, seconds=300.0, **step))
    assert run.final_error == pytest.approx(0.0, abs=1e-4)
    assert run.cores[-1] == pytest.approx(cores, abs=1e-3)
    assert run.settled_after is not None


def test_a_gpu_that_joins_is_paid_back_in_cores():
    run = closed_loop.main(POINT, replace(EQ_12, gpus=1.0))
    before, after = run.cores[run.time < 20], run.cores[run.time >= 90]
    assert np.all(before == pytest.approx(3.5))
    assert np.all(np.abs(after - 2.5) < 0.1)
    # The response falls first: the queue drains in the very period in which the GPU joins.
    assert run.response[20] < 0.75 * POINT.response_time


def test_the_step_of_a_short_run_is_no_swing():
    """At rest before the step and after it, at another response time."""
    time = np.arange(40.0)
    response = np.where(time > 20, 0.4, 0.3)
    run = closed_loop.LoopResponse(LoopScenario(at=20.0), time, response, response, response)
    assert run.swing == 0


def test_the_papers_gains_swing_where_eq_12_settles():
    late = {"dead_time": 2, "rate": 5.0, "seconds": 600.0}
    swinging = closed_loop.main(POINT, replace(BY_HAND, **late))
    settled = closed_loop.main(POINT, replace(EQ_12, **late))
    assert swinging.settled_after is None
    assert swinging.swing > POINT.response_time
    assert settled.settled_after is not None
    assert settled.swing < 1e-3


def test_the_age_of_the_oldest_request_is_phase_lead():
    """With one dead step the paper's gains swing on the window mean; the age term saves them."""
    step = {"set_point": 0.03, "seconds": 1200.0}
    assert closed_loop.main(POINT, replace(BY_HAND, **step, age=False)).swing > 0.1
    assert closed_loop.main(POINT, replace(BY_HAND, **step, age=True)).swing < 1e-3


def by_hand(law_name, gains, *, rate, periods):
    """The same loop without python-control: a list, and step() in a for loop."""
    law = registry.build(law_name, gains)
    queue, cores, state, seen = POINT.queue, POINT.cores, None, []
    for k in range(periods):
        arrivals = POINT.throughput + (rate if k >= 20 else 0)
        capacity = 10 * cores
        after = max(0.0, queue + arrivals - capacity)
        middles = (np.arange(closed_loop.SUBSTEPS) + 0.5) / closed_loop.SUBSTEPS
        waits = np.maximum(0, queue + (arrivals - capacity) * middles) / capacity
        served = queue + arrivals - after
        response = float(np.mean(np.maximum(waits, 0.1 / min(cores, 1))))
        m = Measurement(
            response_time=response, oldest_age=after / capacity, arrivals=arrivals,
            completed_gpu=0, completed_here=served, failed=0, shed=0,
            waiting=max(0, round(after) - 1), in_flight=1, usage=served / 10, applied=cores,
            sla=0.38, set_point=0.304, deadline=60, violations=served if response > 0.38 else 0,
            budget=0.02,
        )  # fmt: skip
        seen.append((response, cores))
        demand, state = law(state, m, dt=1.0, lo=0.1, hi=6.0)
        cores = cores if demand.cores is None else demand.cores
        queue = after
    return np.array(seen).T


@pytest.mark.parametrize("law", ["pi", "late_share"])
def test_the_blocks_are_the_plain_loop(law):
    response, cores = by_hand(law, {}, rate=5.0, periods=80)
    run = closed_loop.main(POINT, LoopScenario(law=law, rate=5.0, seconds=80.0))
    assert run.response == pytest.approx(response)
    assert run.cores == pytest.approx(cores)


def test_the_default_law_gives_the_gpus_share_back_and_keeps_its_promise():
    run = closed_loop.main(replace(POINT, period=0.2), LoopScenario(law="late_share", gpus=1.0))
    assert run.cores[-1] == pytest.approx(2.5, abs=0.25)
    assert run.worst <= POINT.response_time + 1e-9


@pytest.mark.parametrize(
    "state",
    [
        PiState(),
        PiState(0.25, Cost(0.1)),
        LateShareState(RequestRate()),
        LateShareState(RequestRate(35.0, 12.0, 30.0, 33.0), -0.5, Cost(0.1, 0.05), 3.5, 10.0),
    ],
)
def test_a_state_survives_the_vector(state):
    like = closed_loop.STATES["pi" if isinstance(state, PiState) else "late_share"]
    assert decode(like, np.array(encode(state))) == state


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (LoopScenario(law="rules"), "law = rules: must be one of pi, late_share"),
        (LoopScenario(dead_time=0), "dead_time = 0: must be >= 1"),
        (LoopScenario(set_point=-0.304), "set_point = -0.304"),
        (LoopScenario(rate=-35.0), "rate = -35"),
        (LoopScenario(gains=(("K", -1.0),)), r"control.gains.K = -1"),
    ],
)
def test_an_impossible_scenario_is_named(scenario, message):
    with pytest.raises(ConfigError, match=message):
        closed_loop.main(POINT, scenario)
