"""The default gains in a closed loop: a queue with processor sharing, dead time, real `step()`s.

The plant is the paper's eq. 4 as a fluid model: l' = λ - u/c while l > 0; the response time of a
period is l/ro plus the service c/u. Dead time is in whole periods. Virtual time throughout.
"""

import pytest

from controllers import registry
from controllers.measurement import Measurement
from roma.domain.stats import ewma

COST = 0.05
SLA = 0.5


def simulate(law_name, gains, rates, *, dead_periods=1, applied=1.0, hi=6.0):
    """Return (response times, applied cores) per period for arrival rates per period."""
    law = registry.build(law_name, gains)
    queue, state, pipeline = 0.0, None, [applied] * dead_periods
    times, cores = [], []
    for rate in rates:
        u = pipeline.pop(0)
        served = min(queue + rate, u / COST)
        queue = queue + rate - served
        response = queue / max(served, 1e-9) + COST / min(u, 1.0)
        m = Measurement(
            response_time=response,
            oldest_age=queue / max(served, 1e-9),
            arrivals=rate,
            completed_gpu=0,
            completed_here=round(served),
            failed=0,
            shed=0,
            waiting=int(queue),
            in_flight=1,
            usage=served * COST,
            applied=u,
            sla=SLA,
            set_point=0.8 * SLA,
            deadline=100.0,
            violations=round(served) if response > SLA else 0,
            budget=0.02,
        )
        demand, state = law(state, m, dt=1.0, lo=0.1, hi=hi)
        pipeline.append(u if demand.cores is None else demand.cores)
        times.append(response)
        cores.append(u)
    return times, cores


DEFAULTS = [
    ("late_share", {}),
    ("pi", {}),
    ("pi", {"error": "rt", "K": 0.1, "a": 0.8}),
    ("pi", {"error": "inverse", "K": 1.0, "a": 0.8}),
]


@pytest.mark.parametrize(("law", "gains"), DEFAULTS)
@pytest.mark.parametrize("dead_periods", [1, 2, 3])
def test_a_constant_load_is_served_without_growing_oscillation(law, gains, dead_periods):
    times, cores = simulate(law, gains, [20.0] * 400, dead_periods=dead_periods)
    late, later = cores[200:300], cores[300:]
    assert max(later) - min(later) <= max(late) - min(late) + 0.05
    assert max(times[300:]) < 3 * SLA
    # The load needs c·λ = 1 core; nobody hoards.
    assert sum(later) / len(later) == pytest.approx(1.0, abs=0.35)


def test_the_default_law_follows_steps_and_gives_back():
    times, cores = simulate("late_share", {}, [10.0] * 60 + [60.0] * 60 + [10.0] * 60)
    assert max(cores[75:120]) == pytest.approx(3.0, abs=0.5)  # cλ = 3
    assert cores[179] == pytest.approx(0.5, abs=0.2)
    # The steps themselves, nothing more; up, and down below what arrives at last.
    assert {i for i, t in enumerate(times) if t > SLA} <= {60, 61, 120, 121}


def test_the_papers_hand_tuned_gains_leave_a_slow_rescue():
    """K = 0.15, a = 0.11 on the normalised error: many more late periods after the same step."""
    rates = [10.0] * 60 + [60.0] * 60
    ours, _ = simulate("late_share", {}, rates)
    paper, _ = simulate("pi", {"error": "rt", "K": 0.15, "a": 0.11}, rates)
    assert sum(t > SLA for t in ours[60:]) < sum(t > SLA for t in paper[60:])


def test_ewma_weights_sum_to_one():
    assert ewma(2.0, 4.0, 0.25) == 2.5
    assert ewma(None, 4.0, 0.25) == 4.0
