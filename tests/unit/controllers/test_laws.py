"""Laws against hand-made periods; every trap of the control problem has its test here."""

import math
from dataclasses import replace

import pytest

from controllers import registry
from controllers.error import ErrorForm, error
from controllers.pi import PiGains, PiState, pi_step
from roma.domain.errors import ConfigError
from tests.support.periods import BASE, BOUNDS, IDLE, settled

LAWS = [
    ("pi", {"error": "rt"}),
    ("pi", {"error": "inverse"}),
    ("pi", {"error": "log"}),
    ("rules", {"every": 1.0}),
    ("static", {"level": "max"}),
    ("static", {"level": "min"}),
    ("captain", {}),
    ("late_share", {}),
    ("paper", {}),
    ("usage", {}),
]


FEEDBACK = LAWS[:3]


# Measurement


UNANSWERED = {"response_time": None, "completed_here": 0}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # What completes nothing is judged by its oldest request.
        (UNANSWERED | {"arrivals": 0, "in_flight": 1, "oldest_age": 7.0}, 7.0),
        # Fast answers do not hide a request that starves.
        ({"response_time": 0.01, "waiting": 1, "oldest_age": 3.0}, 3.0),
        # A request refused as too late counts as its deadline.
        ({"response_time": 0.2, "shed": 1}, 1.0),
        # Failures alone are no response times.
        (UNANSWERED | {"failed": 50}, None),
        # Young requests and no answer say nothing yet.
        ({"response_time": None, "in_flight": 1, "oldest_age": 0.1}, None),
        # An impossible response time is none.
        *(({"response_time": value}, None) for value in (math.nan, math.inf, -1.0, 0.0)),
    ],
)
def test_the_response_time_that_a_law_sees(changes, seconds):
    assert replace(BASE, **changes).effective_response_time == seconds


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


@pytest.mark.parametrize(
    ("law", "gains", "message"),
    [
        ("magic", {}, f"control.law = magic: must be one of {', '.join(registry.LAWS)}"),
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
            "late_share",
            {"step": math.nan},
            "control.gains.step = nan: input should be less than or equal to 1",
        ),
        (
            "rules",
            {"step": float("inf")},
            "control.gains.step = inf: input should be less than or equal to 4096",
        ),
        (
            "rules",
            {"every": float("inf")},
            "control.gains.every = inf: input should be less than or equal to 3600",
        ),
        ("static", {"level": 3}, "control.gains.level = 3: input should be 'max' or 'min'"),
    ],
)
def test_a_bad_gain_is_refused_by_name(law, gains, message):
    with pytest.raises(ConfigError) as e:
        registry.build(law, gains)
    assert str(e.value) == message
