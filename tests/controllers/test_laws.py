"""Each law against hand-made periods; every trap of the control problem has its test here."""

import math
from dataclasses import replace

import pytest

from controllers import registry
from controllers.adaptive import AdaptiveGains, adaptive_step
from controllers.cost import UNKNOWN
from controllers.error import ErrorForm, error
from controllers.measurement import Measurement
from controllers.pi import PiGains, PiState, pi_step
from controllers.registry import Shape
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


def adapt(state, m, **gains):
    return adaptive_step(AdaptiveGains(**gains), state, m, **BOUNDS)


def test_adaptive_feeds_the_load_forward():
    demand, _ = adapt(None, BASE, cost=0.05)
    # ĉ(λ + 1/R°) = 0.05·(10 + 2.5)
    assert demand.terms["feed_forward"] == pytest.approx(0.625)
    assert demand.terms["backlog"] == 0.0


def test_adaptive_adds_what_drains_the_backlog_beyond_littles_law():
    demand, _ = adapt(None, replace(BASE, waiting=20, oldest_age=0.4), cost=0.05)
    assert demand.terms["backlog"] == pytest.approx(0.05 * (20 - 10 * 0.4))


def test_adaptive_leaves_to_the_gpus_what_they_finish():
    alone, _ = adapt(None, BASE, cost=0.05)
    helped, _ = adapt(None, replace(BASE, completed_gpu=8), cost=0.05)
    assert alone.terms["feed_forward"] - helped.terms["feed_forward"] == pytest.approx(0.05 * 8)


def test_adaptive_does_not_take_the_gpus_noise_for_load():
    """Completions trail arrivals; the difference is noise around zero, not load for the CPU."""
    state, served = None, 100
    for i in range(200):
        arrivals = 100 + 20 * (-1) ** i
        m = replace(BASE, arrivals=arrivals, completed_gpu=served, completed_here=0, usage=0.0)
        demand, state = adapt(state, m, cost=0.1)
        served = arrivals
    assert demand.terms["feed_forward"] < 0.1 * (2.5 + 12)


def test_adaptive_shares_the_load_with_the_other_workers():
    one, _ = adapt(None, BASE, cost=0.05)
    two, _ = adapt(None, replace(BASE, workers=2), cost=0.05)
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
    cost = UNKNOWN.update(usage=0.5, completed=10, profile=None)
    assert cost.estimate == pytest.approx(0.05)
    assert cost.update(usage=0.0, completed=0, profile=None) is cost
    for nonsense in (math.nan, math.inf, -1.0):
        assert cost.update(usage=nonsense, completed=1, profile=None) is cost
    wild = UNKNOWN.update(usage=100.0, completed=1, profile=0.05)
    assert wild.estimate == pytest.approx(0.2)  # four times the profile at most


def test_without_a_cost_adaptive_holds():
    demand, _ = adapt(None, replace(BASE, completed_here=0))
    assert demand.cores is None


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


@pytest.mark.parametrize(
    ("law", "gains", "message"),
    [
        ("magic", {}, "control.law = magic: must be one of adaptive, pi, rules, static"),
        (
            "pi",
            {"k": 1.0},
            "control.gains.k = 1.0: unknown gain of law pi (known: error, K, a, cost)",
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
