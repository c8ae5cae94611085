"""Each law against hand-made periods; every trap of the control problem has its test here."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from controllers import registry
from controllers.adaptive import AdaptiveGains, AdaptiveState, adaptive_step
from controllers.captain import CaptainGains, CaptainState, captain_step
from controllers.cost import UNKNOWN
from controllers.error import ErrorForm, error
from controllers.history import Used, length, mean, remember
from controllers.measurement import Measurement
from controllers.paper import PaperGains, PaperState, paper_step
from controllers.pi import PiGains, PiState, pi_step
from controllers.registry import Shape
from controllers.usage import UsageGains, usage_step
from roma.config import ControlConfig
from roma.errors import ConfigError

BASE = Measurement(
    response_time=0.4,
    oldest_age=0.0,
    arrivals=10,
    completed_gpu=0,
    completed_here=10,
    failed=0,
    shed=0,
    waiting=0,
    in_flight=0,
    usage=0.5,
    applied=1.0,
    sla=0.5,
    set_point=0.4,
    deadline=1.0,
)
IDLE = replace(BASE, response_time=None, arrivals=0, completed_here=0, usage=0.0)
BOUNDS = {"dt": 1.0, "lo": 0.1, "hi": 4.0}

LAWS = [
    ("adaptive", {}),
    ("pi", {"error": "rt"}),
    ("pi", {"error": "inverse"}),
    ("pi", {"error": "log"}),
    ("rules", {"every": 1.0}),
    ("static", {"level": "max"}),
    ("static", {"level": "min"}),
    ("captain", {}),
    ("paper", {}),
    ("usage", {}),
]
FEEDBACK = LAWS[:4]


def settled(law, measurement=BASE, periods=30):
    """Run a law until it knows the cost; return its state."""
    state = None
    for _ in range(periods):
        demand, state = law(state, measurement, **BOUNDS)
    return demand, state


# Measurement


def test_an_executable_that_completes_nothing_is_judged_by_its_oldest_request_not_idle():
    stuck = replace(
        BASE, response_time=None, arrivals=0, completed_here=0, in_flight=1, oldest_age=7.0
    )
    assert not stuck.idle
    assert stuck.effective_response_time == 7.0


def test_fast_answers_do_not_hide_a_request_that_starves():
    assert (
        replace(BASE, response_time=0.01, waiting=1, oldest_age=3.0).effective_response_time == 3.0
    )


def test_a_request_refused_as_too_late_counts_as_its_deadline():
    assert replace(BASE, response_time=0.2, shed=1).effective_response_time == 1.0


def test_failures_alone_are_no_response_times():
    failing = replace(BASE, response_time=None, completed_here=0, failed=50)
    assert failing.effective_response_time is None


def test_young_requests_and_no_answer_say_nothing_yet():
    young = replace(BASE, response_time=None, in_flight=1, oldest_age=0.1)
    assert young.effective_response_time is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_an_impossible_response_time_is_no_response_time(value):
    assert replace(BASE, response_time=value).effective_response_time is None


# Error forms


@pytest.mark.parametrize(
    ("form", "y", "expected"),
    [
        (ErrorForm.RT, 0.4, 0.0),
        (ErrorForm.RT, 0.8, 1.0),
        (ErrorForm.RT, 0.2, -0.5),
        (ErrorForm.LOG, 0.8, math.log(2)),
        (ErrorForm.LOG, 0.2, -math.log(2)),
        (ErrorForm.INVERSE, 0.4, 0.0),
        (ErrorForm.INVERSE, 0.8, 0.05 * (2.5 - 1.25)),
        (ErrorForm.INVERSE, 1e-6, -0.05 * 2.5),  # bounded: a very fast answer is one answer
        (ErrorForm.INVERSE, 1e6, 0.05 * 2.5),
    ],
)
def test_error_is_positive_when_slow(form, y, expected):
    assert error(form, y, 0.4, 0.05) == pytest.approx(expected, abs=1e-5)


# PI


def test_pi_is_the_papers_equation_11():
    gains = PiGains(ErrorForm.RT, K=0.15, a=0.11)
    m = replace(BASE, response_time=0.6, applied=1.3)
    demand, state = pi_step(gains, PiState(e=0.2), m, **BOUNDS)
    e = 0.6 / 0.4 - 1
    assert demand.cores == pytest.approx(1.3 + 0.15 * (e - 0.11 * 0.2))
    assert state.e == pytest.approx(e)


def test_pi_starts_without_a_jump():
    """The first error makes no proportional step: only the integral's share of one period."""
    demand, _ = pi_step(
        PiGains(ErrorForm.RT, K=1.0, a=0.9), None, replace(BASE, response_time=4.0), **BOUNDS
    )
    assert demand.cores == pytest.approx(1.0 + 1.0 * 0.1 * 9.0)


@pytest.mark.parametrize(("name", "gains"), FEEDBACK)
def test_too_slow_gets_more_and_much_too_fast_gets_less(name, gains):
    law = registry.build(name, gains)
    _, state = settled(law)
    slow = replace(BASE, response_time=4.0, waiting=9, oldest_age=4.0)
    assert law(state, slow, **BOUNDS)[0].cores > BASE.applied
    fast = replace(BASE, response_time=0.01)
    for _ in range(40):
        demand, state = law(state, fast, **BOUNDS)
        fast = replace(fast, applied=demand.cores)
    assert demand.cores < 1.0


@pytest.mark.parametrize(("name", "gains"), FEEDBACK)
def test_nothing_winds_up_while_the_supervisor_gives_less(name, gains):
    """A minute of shortage must not be paid back: anti-windup from the applied value."""
    law = registry.build(name, gains)
    slow = replace(BASE, response_time=3.0, waiting=30, oldest_age=3.0, applied=0.5)
    _, after_long = settled(law, slow, periods=60)
    _, after_short = settled(law, slow, periods=6)
    fine = replace(BASE, response_time=0.3, applied=0.5)
    long_demand, _ = law(after_long, fine, **BOUNDS)
    short_demand, _ = law(after_short, fine, **BOUNDS)
    assert long_demand.cores == pytest.approx(short_demand.cores, abs=0.05)


@pytest.mark.parametrize(("name", "gains"), FEEDBACK)
def test_idle_decays_to_the_floor_and_never_to_zero(name, gains):
    law = registry.build(name, gains)
    _, state = settled(law)
    cores = 4.0
    seen = []
    for _ in range(40):
        demand, state = law(state, replace(IDLE, applied=cores), **BOUNDS)
        cores = demand.cores
        seen.append(cores)
    assert seen[0] == pytest.approx(3.2)  # 0.8 per second
    assert seen == sorted(seen, reverse=True)
    assert cores == 0.1


@pytest.mark.parametrize(("name", "gains"), FEEDBACK)
def test_in_flight_but_nothing_completed_is_not_idle(name, gains):
    law = registry.build(name, gains)
    _, state = settled(law)
    stuck = replace(IDLE, in_flight=1, oldest_age=5.0, applied=0.2)
    assert law(state, stuck, **BOUNDS)[0].cores > 0.2


@pytest.mark.parametrize(("name", "gains"), FEEDBACK)
def test_a_model_that_fails_fast_keeps_its_cores(name, gains):
    law = registry.build(name, gains)
    _, state = settled(law)
    failing = replace(BASE, response_time=None, completed_here=0, failed=10, usage=0.0)
    demand, _ = law(state, failing, **BOUNDS)
    assert demand.cores is None or demand.cores >= BASE.applied * 0.5


@pytest.mark.parametrize(("name", "gains"), LAWS)
@pytest.mark.parametrize("dt", [0.0, -1.0, 3.1, 60.0, math.nan, math.inf])
def test_an_unusable_period_holds(name, gains, dt):
    law = registry.build(name, gains)
    state = object()
    demand, after = law(state, BASE, dt=dt, lo=0.1, hi=4.0)
    assert demand.cores is None
    assert after is state


@pytest.mark.parametrize(("name", "gains"), LAWS)
@pytest.mark.parametrize("field", ["usage", "applied", "oldest_age", "response_time"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_holds(name, gains, field, value):
    demand, _ = registry.build(name, gains)(None, replace(BASE, **{field: value}), **BOUNDS)
    assert demand.cores is None


@pytest.mark.parametrize(("name", "gains"), LAWS)
@pytest.mark.parametrize("response_time", [1e-9, 0.4, 1e9])
def test_demand_stays_between_the_bounds(name, gains, response_time):
    law = registry.build(name, gains)
    state = None
    for _ in range(20):
        m = replace(BASE, response_time=response_time)
        demand, state = law(state, m, **BOUNDS)
        assert demand.cores is None or 0.1 <= demand.cores <= 4.0


# Adaptive


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
    """30 a second: 6 in a period, or 2, or none. Twelve that wait are within their reach."""
    _, state = adaptive_step(
        AdaptiveGains(), None, replace(BASE, arrivals=6, completed_gpu=6), dt=0.2, lo=0.1, hi=4.0
    )
    for completed in (2, 0):
        m = replace(BASE, arrivals=6, completed_gpu=completed, completed_here=0, waiting=5)
        _, after = adaptive_step(AdaptiveGains(), state, m, dt=0.2, lo=0.1, hi=4.0)
        assert after.for_cpu == 0.0


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


# History


def used(*periods):
    history = ()
    for dt, cores in periods:
        history = remember(history, Used(dt, cores), 5.0)
    return history


def test_a_history_keeps_the_periods_of_its_span_newest_first():
    history = used(*((1.0, float(i)) for i in range(9)))
    assert [u.cores for u in history] == [8.0, 7.0, 6.0, 5.0, 4.0]


@pytest.mark.parametrize("dt", [0.99, 1.0, 1.01])
def test_a_tick_a_little_early_or_late_changes_no_history(dt):
    assert len(used(*[(dt, 1.0)] * 20)) == 5


def test_a_period_longer_than_the_span_is_all_there_is():
    assert used((1.0, 1.0), (60.0, 2.0)) == (Used(60.0, 2.0),)


def test_a_long_period_weighs_more_in_the_mean():
    history = used((1.0, 0.0), (3.0, 4.0))
    assert length(history) == 4.0
    assert mean(history) == 3.0


# Usage


def run_usage(measurements, state=None, **gains):
    """Feed periods whose `applied` follows the demand; return the demands and the state."""
    cores, seen = measurements[0].applied, []
    for m in measurements:
        now = replace(m, applied=cores)
        demand, state = usage_step(UsageGains(**gains), state, now, **BOUNDS)
        cores = demand.cores
        seen.append(cores)
    return seen, state


def test_usage_aims_for_its_share_of_the_allocation():
    seen, _ = run_usage([replace(BASE, usage=0.9)], stabilization=0.0)
    assert seen == [pytest.approx(0.9 / 0.6)]


def test_usage_is_cores_not_core_seconds():
    demand, _ = usage_step(UsageGains(), None, replace(BASE, usage=1.8), **{**BOUNDS, "dt": 2.0})
    assert demand.cores == pytest.approx(0.9 / 0.6)


def test_usage_rises_at_once_and_falls_after_its_stabilisation():
    load = [replace(BASE, usage=u) for u in [1.8] + [0.3] * 25]
    seen, _ = run_usage(load)
    assert seen[0] == pytest.approx(3.0)
    assert seen[1:20] == [pytest.approx(3.0)] * 19
    assert seen[20:] == [pytest.approx(0.5)] * 6


def test_usage_keeps_the_start_for_one_stabilisation():
    """Kubernetes: what runs is the first recommendation; nothing is taken away on no evidence."""
    seen, _ = run_usage([replace(BASE, usage=0.06, applied=2.0)] * 25)
    assert seen[18] == 2.0
    assert seen[19] == pytest.approx(0.1)  # it stood for a period before the first tick


@pytest.mark.parametrize(("utilisation", "moves"), [(0.55, False), (0.65, False), (0.7, True)])
def test_usage_tolerates_a_tenth_of_deviation(utilisation, moves):
    (cores,), _ = run_usage([replace(BASE, usage=utilisation)], stabilization=0.0)
    assert (cores != 1.0) is moves


def test_usage_averages_over_its_window():
    load = [replace(BASE, usage=u) for u in [0.6] * 3 + [1.5]]
    seen, _ = run_usage(load, window=3.0)
    assert seen[-1] == pytest.approx((0.6 + 0.6 + 1.5) / 3 / 0.6)


def test_usage_rises_by_one_over_its_target_at_most_however_long_the_queue():
    """Its trap: usage never exceeds what is applied, so a burst is met step by step."""
    cores, state, seen = 0.2, None, []
    for _ in range(5):
        m = replace(BASE, waiting=10_000, oldest_age=9.0, applied=cores, usage=cores)
        demand, state = usage_step(UsageGains(), state, m, **BOUNDS)
        seen.append(demand.cores / cores)
        cores = demand.cores
    assert seen == [pytest.approx(1 / 0.6)] * 5


def test_usage_forgets_what_cannot_win_again():
    """The state stays small over a day, whatever is recommended."""
    state = None
    for i in range(2000):
        m = replace(BASE, usage=(i * 7919 % 100) / 50)
        _, state = usage_step(UsageGains(stabilization=300.0), state, m, **BOUNDS)
    assert len(state.recommended) < 50
    ages = [r.age for r in state.recommended]
    assert ages == sorted(ages)
    assert max(ages) < 300


# Captain


def captain(state, m, **gains):
    return captain_step(CaptainGains(**gains), state, m, **BOUNDS)


def watched(cores=0.4, *, margin=0.0):
    """The state after five steady periods: a full history."""
    return CaptainState(margin, (Used(1.0, cores),) * 5)


def test_captain_scales_up_by_what_exceeds_alpha_times_the_target():
    demand, _ = captain(None, replace(BASE, throttled=0.5))
    assert demand.cores == pytest.approx(1.0 * (1 + 0.5 - 3 * 0.1))


def test_captain_tolerates_throttling_up_to_alpha_times_the_target():
    demand, state = captain(None, replace(BASE, throttled=0.29))
    assert demand.cores == 1.0
    assert state.rollback is None


def test_captain_cuts_to_the_peak_of_its_history_and_margins_of_its_deviation():
    state = CaptainState(2.1, tuple(Used(1.0, c) for c in (0.5, 0.3, 0.5, 0.3, 0.5)))
    demand, after = captain(state, replace(BASE, usage=0.3))
    # The newest 0.3 pushes the oldest 0.5 out; stdev(0.3, 0.5, 0.3, 0.5, 0.3) = 0.1095
    assert after.margin == pytest.approx(2.0)  # not throttled: the margin shrinks by the target
    assert demand.cores == pytest.approx(0.5 + 2.0 * 0.10954, abs=1e-4)


def test_captain_halves_at_most():
    demand, _ = captain(watched(0.1), replace(BASE, usage=0.1))
    assert demand.cores == 0.5


def test_captain_does_not_bother_to_cut_a_tenth():
    assert captain(watched(0.91), replace(BASE, usage=0.91))[0].cores == 1.0
    assert captain(watched(0.89), replace(BASE, usage=0.89))[0].cores == pytest.approx(0.89)


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


def test_captain_sees_no_response_time():
    """Its trap: a model that misses its SLA without being throttled keeps what it has."""
    late = replace(BASE, response_time=9.0, waiting=99, oldest_age=9.0, usage=0.95)
    assert captain(watched(0.95), late)[0].cores == 1.0


# Paper


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


# Rules, static, shaping, registry


def test_rules_decide_every_15_seconds_by_a_whole_core():
    law = registry.build("rules", {})
    state, seen = None, []
    for _ in range(30):
        demand, state = law(state, replace(BASE, response_time=0.45), **BOUNDS)
        seen.append(demand.cores)
    assert [i for i, cores in enumerate(seen, 1) if cores is not None] == [15, 30]
    assert seen[14] == 2.0


@pytest.mark.parametrize(
    ("response_time", "cores"), [(0.4, 3.0), (0.39, 2.0), (0.11, 2.0), (0.1, 1.0), (0.01, 1.0)]
)
def test_rules_thresholds_are_0_8_and_0_2_of_the_sla(response_time, cores):
    law = registry.build("rules", {"every": 1.0})
    demand, _ = law(None, replace(BASE, response_time=response_time, applied=2.0), **BOUNDS)
    assert demand.cores == cores


@pytest.mark.parametrize(("level", "cores"), [("max", 4.0), ("min", 0.1)])
def test_static_demands_its_bound(level, cores):
    assert registry.build("static", {"level": level})(None, IDLE, **BOUNDS)[0].cores == cores


def test_a_dead_band_holds_small_changes_only():
    shaped = registry.build("pi", {"error": "rt", "K": 1.0, "a": 0.0}, Shape(dead_band=0.05))
    demand, _ = shaped(PiState(e=0.0), replace(BASE, response_time=0.41), **BOUNDS)
    assert demand.cores == BASE.applied
    demand, _ = shaped(PiState(e=0.0), replace(BASE, response_time=0.6), **BOUNDS)
    assert demand.cores > BASE.applied


def test_a_slew_limit_bounds_the_fall_and_not_the_rise():
    shaped = registry.build("static", {"level": "min"}, Shape(max_fall=0.2))
    assert shaped(None, BASE, **BOUNDS)[0].cores == pytest.approx(0.8)
    shaped = registry.build("static", {"level": "max"}, Shape(max_fall=0.2))
    assert shaped(None, BASE, **BOUNDS)[0].cores == 4.0


def test_the_configuration_offers_exactly_the_registered_laws():
    assert sorted(get_args(ControlConfig.model_fields["law"].annotation)) == sorted(registry.LAWS)


@pytest.mark.parametrize(
    ("law", "gains", "message"),
    [
        (
            "magic",
            {},
            "control.law = magic: must be one of adaptive, captain, paper, pi, rules, static, usage",
        ),
        (
            "pi",
            {"k": 1.0},
            "control.gains.k = 1.0: unknown gain of law pi (known: error, K, a)",
        ),
        ("pi", {"K": -1.0}, "control.gains.K = -1.0: input should be greater than 0"),
        ("pi", {"a": 1.0}, "control.gains.a = 1.0: input should be less than 1"),
        (
            "pi",
            {"error": "rtt"},
            "control.gains.error = rtt: input should be 'rt', 'inverse' or 'log'",
        ),
        (
            "adaptive",
            {"K": math.nan},
            "control.gains.K = nan: input should be less than or equal to 1",
        ),
        ("static", {"level": 3}, "control.gains.level = 3: input should be 'max' or 'min'"),
    ],
)
def test_a_bad_gain_is_refused_by_name(law, gains, message):
    with pytest.raises(ConfigError) as e:
        registry.build(law, gains)
    assert str(e.value) == message
