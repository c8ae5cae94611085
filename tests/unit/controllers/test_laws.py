"""Each law against hand-made periods; every trap of the control problem has its test here."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from controllers import registry
from controllers.captain import CaptainGains, CaptainState, captain_step
from controllers.error import ErrorForm, error
from controllers.history import Used, length, mean, remember
from controllers.paper import PaperGains, PaperState, paper_step
from controllers.pi import PiGains, PiState, pi_step
from controllers.registry import Shape
from controllers.usage import UsageGains, usage_step
from roma.config.control import ControlConfig
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
            "control.law = magic: must be one of captain, late_share, paper, pi, rules, static, usage",
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
            "late_share",
            {"step": math.nan},
            "control.gains.step = nan: input should be less than or equal to 1",
        ),
        ("static", {"level": 3}, "control.gains.level = 3: input should be 'max' or 'min'"),
    ],
)
def test_a_bad_gain_is_refused_by_name(law, gains, message):
    with pytest.raises(ConfigError) as e:
        registry.build(law, gains)
    assert str(e.value) == message
