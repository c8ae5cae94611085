"""`adaptive` and the cost it learns, against hand-made periods."""

import math
from dataclasses import replace

import pytest

from controllers import registry
from controllers.adaptive import AdaptiveGains, AdaptiveState, adaptive_step
from controllers.cost import UNKNOWN
from controllers.error import ErrorForm
from controllers.pi import PiGains, PiState, pi_step
from roma.errors import ConfigError
from tests.support.periods import BASE, BOUNDS, IDLE, settled


def adapt(state, m, *, profile=None):
    return adaptive_step(AdaptiveGains(), state, replace(m, profile=profile), **BOUNDS)


def test_adaptive_feeds_the_load_forward():
    demand, _ = adapt(None, BASE, profile=0.05)
    # ĉ(λ + 1/R°) = 0.05·(10 + 2.5)
    assert demand.terms["feed_forward"] == pytest.approx(0.625)
    assert demand.terms["backlog"] == 0.0


def test_adaptive_adds_what_drains_the_backlog_beyond_littles_law():
    demand, _ = adapt(None, replace(BASE, waiting=20, oldest_age=0.4), profile=0.05)
    assert demand.terms["backlog"] == pytest.approx(0.05 * (20 - 10 * 0.4))


def test_adaptive_leaves_to_the_gpus_what_they_finish():
    alone, _ = adapt(None, BASE, profile=0.05)
    helped, _ = adapt(None, replace(BASE, completed_gpu=8, completed_cpu=2), profile=0.05)
    # The margin c/R° shrinks with the CPUs' share of the load: 2 of 10.
    saved = 0.05 * 8 + 0.05 / 0.4 * 0.8
    assert alone.terms["feed_forward"] - helped.terms["feed_forward"] == pytest.approx(saved)


def test_adaptive_takes_no_cores_for_what_a_gpu_will_reach_in_time():
    """At the end of a period something always waits for a GPU; no CPU has to serve it."""
    reached = replace(BASE, arrivals=40, completed_gpu=30, completed_here=0, waiting=10)
    demand, _ = adapt(None, reached, profile=0.05)  # 10 ≤ 30·R°
    assert demand.terms["feed_forward"] == 0.0
    beyond = replace(reached, arrivals=70, waiting=40)
    demand, _ = adapt(None, beyond, profile=0.05)  # 40 > 30·R° = 12
    assert demand.terms["feed_forward"] >= 0.05 * 40


def test_adaptive_believes_a_queue_to_have_come_within_the_set_point_however_short_the_period():
    """Twice two requests beyond the reach of the GPUs, in R° = 0.4 s: 10 req/s, not 20."""
    m = replace(BASE, arrivals=20, completed_gpu=6, completed_here=0, waiting=14)
    _, state = adaptive_step(AdaptiveGains(), None, m, dt=0.2, lo=0.1, hi=4.0)
    assert state.for_cpu == pytest.approx(2 * (14 - 6 / 0.2 * 0.4) / 0.4)


def test_the_reach_of_the_gpus_is_that_of_some_seconds_not_of_one_short_period():
    """30 a second: 6 in a period, then 2, then none twice. Five that wait stay within reach."""
    _, state = adaptive_step(
        AdaptiveGains(), None, replace(BASE, arrivals=6, completed_gpu=6), dt=0.2, lo=0.1, hi=4.0
    )
    for completed in (2, 0, 0):
        m = replace(BASE, arrivals=6, completed_gpu=completed, completed_here=0, waiting=5)
        _, state = adaptive_step(AdaptiveGains(), state, m, dt=0.2, lo=0.1, hi=4.0)
        assert state.for_cpu == 0.0


def test_where_gpus_have_gone_all_that_arrives_is_for_cpus_within_seconds():
    m = replace(BASE, arrivals=40, completed_gpu=40, completed_here=0, response_time=0.1)
    _, state = adapt(None, m, profile=0.05)
    for _ in range(8):
        _, state = adapt(state, replace(BASE, arrivals=40, completed_here=0), profile=0.05)
    assert state.for_cpu == pytest.approx(40, rel=0.05)


def test_adaptive_follows_a_new_load_alike_with_any_period():
    def after_a_second(ticks):
        dt, state = 1 / ticks, AdaptiveState(arrivals=10.0, for_cpu=10.0)
        for _ in range(ticks):
            m = replace(BASE, arrivals=20 * dt, completed_here=20 * dt, usage=BASE.usage * dt)
            _, state = adaptive_step(AdaptiveGains(), state, m, dt=dt, lo=0.1, hi=4.0)
        return state

    once, often = after_a_second(1), after_a_second(5)
    assert once.arrivals == pytest.approx(10 + 0.8 * 10)
    assert often.arrivals == pytest.approx(once.arrivals)
    assert often.for_cpu == pytest.approx(once.for_cpu)


def test_adaptive_learns_its_margin_from_the_noise_of_the_load():
    def margin(swing):
        state = None
        for i in range(60):
            m = replace(BASE, arrivals=10 + swing * (-1) ** i)
            demand, state = adapt(state, m, profile=0.05)
        return demand.terms["feed_forward"] - 0.05 * (state.for_cpu + 1 / 0.4)

    assert margin(0) == pytest.approx(0.0, abs=1e-3)
    assert margin(4) > 2 * margin(1) > 0.02


def test_noise_around_no_load_is_worth_no_cores():
    state = None
    for i in range(60):
        m = replace(
            BASE, arrivals=20 + 9 * (-1) ** i, completed_gpu=20, completed_here=0, response_time=0.1
        )
        demand, state = adapt(state, m, profile=0.05)
    assert demand.terms["feed_forward"] == pytest.approx(0.0, abs=1e-6)


def after_a_burst(running, applied=0.625, periods=6):
    """Return the demand when nothing has arrived for some periods, and the state."""
    _, state = adapt(None, replace(BASE, applied=0.625))
    rest = replace(BASE, response_time=None, arrivals=0, completed_here=0, usage=0.0, in_flight=1)
    for _ in range(periods):
        m = replace(rest, oldest_age=0.1, in_flight_here=running, applied=applied)
        demand, state = adapt(state, m)
        applied = demand.cores
    return demand, state


def test_adaptive_takes_no_cores_from_under_what_runs():
    """One request at 0.05 core-s ends within 0.6·R° = 0.24 s with 0.208 cores."""
    demand, _ = after_a_burst(running=1)
    assert demand.cores == pytest.approx(0.05 / 0.24)
    assert sum(demand.terms.values()) == pytest.approx(demand.cores)
    assert after_a_burst(running=2)[0].cores == pytest.approx(0.1 / 0.24)
    assert after_a_burst(running=2, applied=0.3)[0].cores == pytest.approx(0.3)  # it adds none
    assert after_a_burst(running=0)[0].cores < 0.2


def test_what_kept_its_cores_gives_them_back_as_soon_as_it_has_ended():
    def later(running):
        demand, state = after_a_burst(running)
        ended = replace(BASE, arrivals=0, completed_here=2, usage=0.1, response_time=0.2)
        return adapt(state, replace(ended, in_flight=1, applied=demand.cores))[0].cores

    assert later(running=2) == pytest.approx(later(running=0))


def test_what_is_refused_adds_to_the_error_and_raises_cores_in_proportion():
    def rise(shed):
        _, state = adapt(None, BASE, profile=0.05)
        demand, _ = adapt(state, replace(BASE, shed=shed, response_time=0.9), profile=0.05)
        return demand.terms["integral"] - (BASE.applied - 0.625)

    # y = deadline = 1.0: e = 1 - 0.4 + shed/10, times K·applied
    assert rise(shed=2) == pytest.approx(0.3 * 1.0 * 0.8)
    assert rise(shed=4) == pytest.approx(0.3 * 1.0 * 1.0)


@pytest.mark.parametrize("wrong", [1 / 3, 1.0, 3.0])
def test_adaptive_serves_its_load_with_a_cost_that_is_misread(wrong):
    """A fluid of 20 req/s at 0.05 core-s that refuses what waits longer than the deadline."""
    law, state, cores, queue, refused = registry.build("adaptive", {}), None, 0.1, 0.0, []
    for _ in range(120):
        served = min(queue + 20, cores / 0.05)
        queue = queue + 20 - served
        shed = max(0.0, queue - served * BASE.deadline)
        queue -= shed
        m = replace(
            BASE, arrivals=20, completed_here=served, usage=0.05 * served * wrong, applied=cores,
            waiting=round(queue), shed=shed, response_time=min(1.0, 0.05 + queue / served),
        )  # fmt: skip
        demand, state = law(state, m, **BOUNDS)
        cores = cores if demand.cores is None else demand.cores
        refused.append(shed)
    assert sum(refused[-60:]) < 0.1 * 20 * 60
    assert cores < 4.0


def test_adaptive_raises_while_nothing_ends_although_nothing_arrives_any_more():
    _, state = adapt(None, replace(BASE, applied=0.6), profile=0.05)
    stuck = replace(IDLE, in_flight=1, oldest_age=5.0, applied=0.6)
    for _ in range(5):
        demand, state = adapt(state, stuck, profile=0.05)
        assert demand.cores > stuck.applied
        stuck = replace(stuck, applied=demand.cores, oldest_age=stuck.oldest_age + 1)


def test_adaptive_does_not_take_the_gpus_noise_for_load():
    """Completions trail arrivals; the difference is noise around zero, not load for the CPU."""
    state, served = None, 100
    for i in range(200):
        arrivals = 100 + 20 * (-1) ** i
        m = replace(BASE, arrivals=arrivals, completed_gpu=served, completed_here=0, usage=0.0)
        demand, state = adapt(state, m, profile=0.1)
        served = arrivals
    assert demand.terms["feed_forward"] < 0.1 * (2.5 + 12)


def test_adaptive_shares_the_load_with_the_other_workers():
    one, _ = adapt(None, BASE, profile=0.05)
    two, _ = adapt(None, replace(BASE, workers=2), profile=0.05)
    assert two.terms["feed_forward"] == pytest.approx(one.terms["feed_forward"] / 2)


def test_adaptive_answers_a_burst_within_one_period():
    law = registry.build("adaptive", {})
    _, state = settled(law, replace(BASE, applied=0.6))
    burst = replace(BASE, arrivals=40, waiting=25, oldest_age=0.6, applied=0.6)
    demand, _ = law(state, burst, **BOUNDS)
    assert demand.cores > 0.05 * 40  # the load itself, at once


def test_adaptive_never_demands_less_than_the_load_itself():
    law = registry.build("adaptive", {})
    fast, state = replace(BASE, response_time=0.001), None
    for _ in range(200):
        demand, state = law(state, fast, **BOUNDS)
        fast = replace(fast, applied=demand.cores)
    assert demand.cores == pytest.approx(0.05 * 10, rel=0.01)  # c·λ


def test_adaptive_learns_the_cost_and_does_not_believe_a_wild_sample():
    cost = UNKNOWN.update(BASE)
    assert cost.estimate == pytest.approx(0.05)
    assert cost.update(IDLE) == cost
    for nonsense in (math.nan, math.inf, -1.0):
        assert cost.update(replace(BASE, usage=nonsense)) is cost
    wild = UNKNOWN.update(replace(BASE, usage=100.0, completed_here=1, profile=0.05))
    assert wild.estimate == pytest.approx(0.2)  # four times the profile at most


def test_a_request_that_outlasts_the_period_used_the_earlier_ones_too():
    """0.7 core-s on 2.8 cores: 0.25 s, of which one period of 0.2 s ends before it does."""
    begun = UNKNOWN.update(replace(IDLE, usage=0.56, in_flight_here=1))
    assert begun.estimate is None
    ended = begun.update(replace(IDLE, usage=0.14, completed_here=1))
    assert ended.estimate == pytest.approx(0.7)
    again = ended.update(replace(IDLE, usage=0.7, completed_here=1))
    assert again.estimate == pytest.approx(0.7)  # nothing is counted twice


def test_what_is_used_while_no_request_runs_is_nobodys_cost():
    cost = UNKNOWN.update(BASE)
    for _ in range(100):
        cost = cost.update(replace(IDLE, usage=0.01))
    assert cost.update(BASE).estimate == pytest.approx(0.05)


def test_without_a_cost_adaptive_holds():
    demand, _ = adapt(None, replace(BASE, completed_here=0))
    assert demand.cores is None


def test_a_profile_stands_in_for_the_cost_until_a_request_is_answered():
    silent = replace(BASE, completed_here=0, usage=0.0, profile=0.05)
    demand, _ = adapt(None, silent, profile=0.05)
    assert demand.facts["cost"] == 0.05
    demand, _ = pi_step(PiGains(ErrorForm.INVERSE), PiState(e=0.0), silent, **BOUNDS)
    assert demand.cores is not None


@pytest.mark.parametrize("name", ["adaptive", "pi"])
def test_a_cost_is_no_gain_it_belongs_to_the_model(name):
    with pytest.raises(ConfigError, match=r"control\.gains\.cost = 0\.05: unknown gain"):
        registry.build(name, {"cost": 0.05})
