"""`late_share`, and the theory and the rate that it rests on."""

import math
import random
from dataclasses import replace

import pytest

from controllers import registry
from controllers.dispersion import Dispersion
from controllers.late_share import (
    LEAST,
    MEAN_BUDGET,
    MOST,
    MOST_ON_GPU,
    LateShareGains,
    LateShareState,
    late_share_step,
    part,
)
from controllers.rate import RequestRate
from controllers.staffing import WORST, Promise, bucket_need, needed, slots_needed
from roma.config.schema import Config
from roma.domain.model import ModelSpec, Sla
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading
from tests.support.periods import BASE
from tests.support.supervisor import reply, report

TIGHT = Promise(0.03, 0.015, 0.1, 0.2)


def step(state, m, *, dt=1.0, lo=0.02, hi=32.0):
    return late_share_step(LateShareGains(), state, m, dt=dt, lo=lo, hi=hi)


def test_slots_are_erlangs_where_nobody_may_wait():
    """C(k, 2): 0.444, 0.174, 0.060, 0.018, 0.005 for 3 to 7 slots."""
    assert [slots_needed(2.0, 0.02, 0.0, late) for late in (0.5, 0.2, 0.1, 0.05, 0.01)] == [
        3,
        4,
        5,
        6,
        7,
    ]


def test_the_bucket_holds_one_request_where_there_is_no_load():
    assert bucket_need(0.0, 0.02, TIGHT) == pytest.approx(0.1)
    assert bucket_need(1e-9, 0.02, TIGHT) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("work", [0.01, 0.2, 1.0, 5.0])
def test_the_bucket_is_empty_as_often_as_is_allowed(work):
    cost, v = 0.02, 0.55
    cores = bucket_need(work, cost, TIGHT)
    rho = work / cores
    tail = rho * math.exp(-(1 - rho) * (cores * 0.2 - cost) / (cost * v))
    assert cores > work
    assert tail <= TIGHT.late * 1.05


def test_a_margin_moves_what_is_beyond_the_load_alone():
    needs = [needed(50.0, 0.02, 1, TIGHT, margin) for margin in (0.0, 0.5, 1.0, 2.0)]
    assert needs == sorted(needs)
    assert needs[0] == pytest.approx(1.0)
    # Four erlangs need 7 slots; with 5/3 of what is beyond the load, 9.
    calm = Promise(0.02, 0.05, 0.1, 0.2)
    assert slots_needed(4.0, 0.02, 0.0, 0.05) == 9
    assert needed(200.0, 0.02, 1, calm, 1.0) == pytest.approx(8.02)


def test_slots_that_not_even_the_worst_case_needs_come_last():
    """Four erlangs need 7 slots, and 8 if arrivals and service vary four times as much."""
    calm = Promise(0.03, 0.03, 0.1, 0.2)
    assert slots_needed(4.0, 0.02, 0.01 / 0.55, 0.03) == 7
    assert slots_needed(4.0, 0.02, 0.01 / WORST, 0.03) == 8
    slots = [needed(200.0, 0.02, 1, calm, margin) + 0.98 for margin in (1, 1.3, 2, 2.4, 3, 4)]
    assert slots == pytest.approx([7, 8, 8, 8, 11, 16])


def test_a_margin_adds_slots_where_requests_come_that_may_use_them():
    """One slot is enough in theory; by the margin two, but not for one request in 10 s."""
    assert slots_needed(0.002, 0.02, 0.0, TIGHT.late) == 1
    assert needed(0.1, 0.02, 1, TIGHT, 2.5) == pytest.approx(1.02)
    assert needed(0.099, 0.02, 1, TIGHT, 2.5) < 0.3


def test_replicas_have_a_slot_each_and_cores_buy_none_that_they_cannot_have():
    assert needed(0.1, 0.02, 1, TIGHT, 2.5, executables=2) < 0.3
    assert needed(0.1, 0.02, 1, TIGHT, 2.5, most=0.5) < 0.3
    assert needed(0.1, 0.02, 1, TIGHT, 2.5, most=1.5) == pytest.approx(1.02)
    # Eleven slots: four on each of three, and three on each with at most three cores.
    calm = Promise(0.03, 0.03, 0.1, 0.2)
    assert needed(200.0, 0.02, 1, calm, 3.0, executables=3) == pytest.approx(3 * 3.02)
    assert needed(200.0, 0.02, 1, calm, 3.0, executables=3, most=3.0) == pytest.approx(3 * 2.02)


def test_a_rate_believes_a_step_at_once_and_no_noise():
    rate = RequestRate()
    for count in (2, 1, 3, 2, 2, 1, 2, 3, 2, 2) * 5:
        rate = rate.update(count, 0.2)
    assert rate.mean == pytest.approx(10.0)
    assert rate.age == pytest.approx(10.0)
    assert rate.update(4, 0.2).mean < 10.5
    risen = rate.update(14, 0.2)
    assert risen.mean == pytest.approx(70.0)
    assert (risen.fast, risen.slow) == pytest.approx((70.0, 70.0))
    fell = rate
    for _ in range(8):
        fell = fell.update(0, 0.2)
    assert fell.mean < 3


def test_a_silence_between_requests_that_come_at_once_is_no_step():
    """Twelve at once, 2.5 times a second: Poisson's would not be silent for 0.2 s."""
    rate = RequestRate()
    for count in (12, 0, 0, 12, 0, 12) * 20:
        rate = rate.update(count, 0.2, excess=9.0)
    assert rate.mean == pytest.approx(30.0, rel=0.1)
    assert rate.update(0, 0.2, excess=9.0).mean > 25
    assert rate.update(0, 0.2).mean == 0
    assert rate.update(100, 0.2, excess=9.0).mean == 500


@pytest.mark.parametrize("periods", [(0.2,), (1.0,), (0.2, 3.0), (0.25, 1.0), (0.05, 0.15, 1.0)])
@pytest.mark.parametrize("rate", [0.5, 5.0, 50.0])
def test_poisson_arrivals_are_known_at_any_rate_and_whenever_ticks_come(rate, periods):
    draw, found, excesses = random.Random(1), Dispersion(), []
    for dt in periods * (3000 // len(periods)):
        count, gap = 0, draw.expovariate(rate)
        while gap < dt:
            count, gap = count + 1, gap + draw.expovariate(rate)
        found = found.update(count, dt)
        excesses.append(found.excess)
    assert sum(excesses) / len(excesses) < 1.01


@pytest.mark.parametrize(("size", "least", "most"), [(2, 1.0, 1.1), (5, 2.0, 3.2), (10, 4.0, 8.0)])
@pytest.mark.parametrize("dt", [0.2, 1.0])
def test_the_more_requests_come_at_once_the_more_dispersed_they_are(size, least, most, dt):
    draw, found, excesses = random.Random(2), Dispersion(), []
    for _ in range(4000):
        count = size * sum(draw.random() < 0.1 for _ in range(round(20 * dt)))
        found = found.update(count, dt)
        excesses.append(found.excess)
    # Draws of 0.1 vary by 0.9 of Poisson's, and large differences are cut off.
    assert least <= sum(excesses[200:]) / 3800 < most


def test_a_tick_in_the_middle_of_those_that_come_at_once_changes_nothing():
    whole = cut = Dispersion()
    for count in (10, 0, 20, 0, 0, 10, 10, 0) * 40:
        whole = whole.update(count, 0.2)
        cut = cut.update(count / 2, 0.05).update(count / 2, 0.15)
    assert cut.excess == pytest.approx(whole.excess)
    assert whole.excess > 4


def test_a_step_is_not_noise_and_after_a_long_silence_nothing_is_known():
    steady = Dispersion()
    for _ in range(100):
        steady = steady.update(10, 0.2)
    assert steady.update(60, 0.2).update(60, 0.2).excess == 1.0
    noisy = Dispersion()
    for count in (30, 0, 0, 0) * 200:
        noisy = noisy.update(count, 0.2)
    assert noisy.excess == pytest.approx(14.0, abs=0.5)
    for _ in range(100):
        noisy = noisy.update(0, 10.0)
    assert noisy.excess == noisy.update(10, 0.2).excess == 1.0


@pytest.mark.parametrize("dt", [0.2, 1.0])
def test_before_its_first_request_a_model_gives_its_cores_back(dt):
    """Nobody knows what it costs: it would keep a core for good."""
    nothing = replace(BASE, arrivals=0, completed_here=0, usage=0.0, waiting=0, in_flight=0)
    nothing, state = replace(nothing, profile=None, response_time=None), None
    for _ in range(round(20 / dt)):
        demand, state = step(state, nothing, dt=dt, lo=0.1, hi=4.0)
        nothing = replace(nothing, applied=demand.cores)
    assert demand.cores == 0.1
    first = replace(nothing, arrivals=1, in_flight=1, threads=2)
    assert step(state, first, dt=dt, lo=0.1, hi=4.0)[0].cores == 2.0


def test_a_night_of_silence_and_the_cheapest_request_are_numbers_like_others():
    """Averages of silence become subnormal after hours, where divisions by them end in zeros."""
    state, m = None, replace(BASE, profile=0.05)
    silence = replace(m, arrivals=0, completed_here=0, usage=0.0)
    for period in [m] * 10 + [silence] * 6 * 3600 * 5 + [replace(m, arrivals=900)] * 5:
        demand, state = step(state, period, dt=0.2)
    assert demand.cores > 20
    cheap = replace(BASE, usage=5e-324, waiting=3)
    assert 0 < step(None, cheap, dt=0.2)[0].cores < 0.1


def learned(m, state=None, periods=20):
    for _ in range(periods):
        _, state = step(state, m, lo=0.1)
        m = replace(m, applied=state.asked or m.applied)
    return state


def test_the_margin_follows_the_late_share_within_bounds():
    calm = replace(BASE, profile=0.05, budget=0.02, violations=0)
    assert learned(calm, periods=2000).x == LEAST
    late = replace(calm, violations=2)
    assert learned(late, periods=200).x == MOST


@pytest.mark.parametrize("steepness", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("seed", range(2))
def test_in_the_long_run_the_late_share_is_the_aim_whatever_the_plant_is(steepness, seed):
    """After n requests they differ by (MOST - LEAST)/(s·n) at most, as long as no bound is hit."""
    draw, n, late = random.Random(seed), 0, 0
    m = replace(BASE, profile=0.05, budget=0.02)
    state = LateShareState(RequestRate(10.0, 20.0, 10.0, 10.0))
    for _ in range(2000):
        now = sum(draw.random() < 0.02 * math.exp(-steepness * state.x) for _ in range(10))
        n, late = n + 10, late + now
        m = replace(m, violations=now, applied=state.asked or 1.0)
        _, state = step(state, m)
        assert abs(late / n - 0.015) <= (MOST - LEAST) / (LateShareGains().step * n)
    assert LEAST < state.x < MOST


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@pytest.mark.parametrize("steepness", [0.5, 2.0])
def test_in_the_long_run_the_mean_is_its_set_point_whatever_the_plant_is(steepness, alpha):
    """With R* = 1 s; one request has the weight of a fifth of its time."""
    draw, n, total = random.Random(1), 0, 0.0
    m = replace(BASE, profile=0.05, budget=None, sla=1.0, set_point=alpha, completed_cpu=10)
    state = LateShareState(RequestRate(10.0, 20.0, 10.0, 10.0))
    for _ in range(2000):
        mean = min(5.0, draw.expovariate(1 / (alpha * math.exp(-steepness * state.x))))
        n, total = n + 10, total + 10 * mean
        m = replace(m, mean_time=mean, applied=state.asked or 1.0)
        _, state = step(state, m)
    assert abs(total / n - alpha) <= (MOST - LEAST) / (LateShareGains().step * MEAN_BUDGET * n)
    assert LEAST < state.x < MOST


def test_answers_of_unknown_time_say_nothing_of_a_mean():
    m = replace(BASE, profile=0.05, budget=None, completed_cpu=10)
    assert learned(m).x == 0
    assert learned(replace(m, mean_time=0.1)).x < 0


@pytest.mark.parametrize(
    ("x", "share"), [(-2.0, 0.5), (-1.5, 0.75), (-1.0, 1.0), (0.0, None), (1.0, None)]
)
def test_below_the_load_what_waits_brings_the_rest(x, share):
    """10 req/s of 50 core-ms are 0.5 cores; a promise of 1 s leaves the time to wait."""
    m = replace(BASE, arrivals=10, profile=0.05, budget=0.02, sla=1.0, violations=0.15)
    state = LateShareState(RequestRate(10.0, 20.0, 10.0, 10.0), x)
    demand, _ = step(state, m)
    load = 0.5
    if share is None:
        assert demand.cores > load
    else:
        assert demand.cores == pytest.approx(share * load, abs=0.01)
    waiting = replace(m, waiting=20)
    assert step(state, waiting)[0].cores >= 2 * 0.05 * 20 / 2


@pytest.mark.parametrize("workers", [1, 2])
def test_after_silence_each_executable_has_what_one_request_in_time_needs(workers):
    """Whatever the margin has become by day."""
    quiet = replace(BASE, arrivals=0, completed_here=0, usage=0.0, profile=0.05, workers=workers)
    state = LateShareState(RequestRate(), LEAST)
    assert step(state, quiet)[0].cores == pytest.approx(
        0.05 / (BASE.bucket + BASE.sla - BASE.quota_period)
    )


@pytest.mark.parametrize(
    ("smaller", "share"),
    [((), 2.0), ((3.0,), 2.0), ((1.0,), 2.5), ((0.5, 1.0), 4.5), ((9.0,), 2.0)],
)
def test_a_replica_takes_what_smaller_ones_cannot_have(smaller, share):
    """Six cores for three replicas."""
    assert part(6.0, replace(BASE, workers=3, smaller=smaller)) == pytest.approx(share)


def test_a_demand_for_what_smaller_replicas_cannot_have_is_explained():
    m = replace(BASE, arrivals=100, profile=0.05, budget=0.02, workers=2, violations=1)
    state = LateShareState(RequestRate(100.0, 20.0, 100.0, 100.0), asked=m.applied)
    alone, _ = step(state, m)
    m = replace(m, smaller=(1.0,))
    beside, _ = step(state, m)
    assert beside.cores == pytest.approx(2 * alone.cores - 1.0)
    assert sum(beside.terms.values()) == pytest.approx(beside.cores)
    assert beside.terms["smaller_replicas"] == pytest.approx(alone.cores - 1.0)


@pytest.mark.parametrize("by_gpu", [0, 10])
@pytest.mark.parametrize("dt", [0.2, 1.0])
def test_many_late_requests_at_once_move_x_by_three_a_second(by_gpu, dt):
    late = replace(BASE, profile=0.05, budget=0.02, violations=1000, arrivals=1000)
    late = replace(late, completed_gpu=by_gpu * dt)
    rate = RequestRate(10.0, 20.0, 10.0, 10.0)
    state = LateShareState(rate, -2.0, asked=late.applied, by_gpu=float(by_gpu))
    _, after = step(state, late, dt=dt, lo=0.1)
    most = MOST_ON_GPU if by_gpu else MOST
    assert after.x == pytest.approx(min(most, -2.0 + 3.0 * dt))


def test_what_was_late_before_the_first_demand_says_nothing_about_the_margin():
    """A replica that joins others in an overload, and a model whose cost was not known."""
    late = replace(BASE, profile=0.05, budget=0.02, violations=1000, arrivals=1000)
    demand, state = step(None, late, lo=0.1, hi=99.0)
    assert state.x == 0.0
    late = replace(late, applied=demand.cores)
    _, state = step(state, late, lo=0.1, hi=99.0)
    assert state.x > 0.0


def test_beside_gpus_the_margin_has_a_bound_of_its_own():
    late = replace(BASE, profile=0.05, budget=0.02, violations=5, completed_gpu=5)
    assert learned(late, periods=200).x == MOST_ON_GPU


GPUS_ANSWER_ALL = replace(
    BASE, on_gpu=True, arrivals=40, completed_gpu=40, completed_here=0, usage=0.0, threads=4
)


def test_where_gpus_answer_all_an_unknown_cost_takes_no_cores():
    state, cores = None, 4.0
    for _ in range(40):
        seen = replace(GPUS_ANSWER_ALL, applied=cores)
        demand, state = step(state, seen)
        cores = demand.cores
    assert demand.why == "GPUs reach all requests in time"
    assert cores == 0.02


@pytest.mark.parametrize("needs", [{"in_flight_here": 1}, {"waiting": 200}, {"completed_cpu": 3}])
def test_what_a_cpu_does_has_all_threads_while_its_cost_is_unknown(needs):
    seen = replace(GPUS_ANSWER_ALL, applied=0.02, arrivals=60, **needs)
    _, state = step(None, seen)
    assert step(state, seen)[0].cores == 4.0


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("x", [-2.0, 0.5, MOST])
def test_silence_needs_no_margin(threads, x):
    """Nothing is late in silence, so a margin learnt in a burst would be held for good."""
    quiet = replace(BASE, arrivals=0, completed_here=0, usage=0.0, profile=0.4, threads=threads)
    state = LateShareState(RequestRate(10.0, 20.0, 10.0, 10.0), x)
    for _ in range(1500):
        demand, state = step(state, quiet, dt=0.2)
    assert demand.cores == pytest.approx(0.4 / 0.5, rel=0.05)
    served = replace(quiet, on_gpu=True)
    assert step(state, served, dt=0.2)[0].cores == pytest.approx(0.02, abs=0.03)


def test_what_was_late_without_the_cores_teaches_nothing():
    """Beyond theory: a margin below it is the law's own doing."""
    late = replace(BASE, profile=0.05, budget=0.02, violations=5)
    for x, after in ((0.1, 0.1), (0.0, 0.0), (-0.1, 0.0), (-1.0, -0.5)):
        state = replace(learned(late, periods=2), x=x)
        short = replace(late, applied=0.5 * state.asked)
        _, found = step(state, short, lo=0.1)
        assert found.x == pytest.approx(after, abs=0.02)
        _, at_most = step(state, late, lo=0.1, hi=state.asked)
        assert at_most.x == pytest.approx(after, abs=0.02)


def test_what_runs_keeps_its_threads_while_its_cost_is_unknown():
    """A model that starts under load has 16 cores, and no answer for longer than a period."""
    busy = replace(BASE, completed_here=0, in_flight=8, in_flight_here=8, applied=16.0, threads=2)
    assert step(None, busy, dt=0.2, lo=0.1)[0].cores == 16.0
    one = replace(busy, in_flight=1, in_flight_here=1)
    assert step(None, one, dt=0.2, lo=0.1)[0].cores == 2.0


def test_failures_and_unknown_costs_teach_nothing():
    late = replace(BASE, profile=0.05, budget=0.02)
    failed = replace(late, violations=5, failed=5)
    assert learned(failed, periods=5).x == learned(late, periods=5).x
    unknown = replace(BASE, completed_here=0, violations=5, applied=32.0, threads=2)
    demand, state = step(None, unknown, lo=0.1)
    assert demand.cores == 2
    assert state.x == 0


def test_gpus_leave_what_waits_beyond_their_reach():
    """A GPU that ends 40/s reaches 16 within 0.4 s; the margin multiplies all the rest."""
    served = replace(BASE, arrivals=40, completed_gpu=40, completed_here=0, profile=0.05)
    served = replace(served, on_gpu=True)
    reached = replace(served, waiting=16)
    demand, state = step(None, reached, lo=0.0)
    assert state.rate.mean == 0
    assert "backlog" not in demand.terms
    assert demand.cores == 0.0
    beyond, state = step(None, replace(served, waiting=66), lo=0.0)
    # 50 beyond: within 2·dt, since that is longer than the response time.
    assert beyond.cores == pytest.approx(2 * 0.05 * 50 / 2)
    shared = replace(served, waiting=66, workers=2)
    half, _ = step(None, shared, lo=0.0)
    assert half.cores == pytest.approx(beyond.cores / 2)


def test_a_quota_without_burst_needs_more():
    """The law counts on the burst that was read, not on the one that was asked for."""
    spec = ModelSpec("m", Sla.within(0.05, 0.02), 0.1)
    found = []
    for burst in (1.0, None):
        core = Supervisor(
            [Managed("m@w", spec, 0.1, 4.0, 4.0, cost=0.02, burst=1.0)],
            registry.build("late_share", {}),
            capacity=4.0,
        )
        for now in (0.0, 1.0, 2.0):
            count = int(5 * now)
            times = {"response_time": 0.02, "mean_time": 0.02}
            told = report(arrivals=count, completed_cpu=count, **times)
            reading = Reading(4.0, 0.1 * now, int(10 * now), 0, burst=burst)
            answer = reply(told, state="idle", completed=count)
            core.tick({"d": answer}, {"m@w": reading}, now=now)
        found.append(core.status["m@w"].allocation)
    assert found[1] > 1.3 * found[0]


@pytest.mark.parametrize(
    ("cost", "threads", "services", "rate", "process", "cores"),
    [
        (0.02, 1, 3, 10, "poisson", 0.43),
        (0.06, 2, 1.5, 10, "mmpp", 3.1),
        (0.06, 2, 5, 10, "poisson", 1.05),
        (0.4, 4, 5, 10, "mmpp", 7.0),
    ],
)
def test_promises_are_kept_from_tight_to_wide(cost, threads, services, rate, process, cores):
    """`cores` on average at most; constants of 0.37, 4.0, 0.97 and 10.3 keep the promise too."""
    plant = {"cost": cost, "parallelism": threads}
    plant["load"] = {"profile": f"{rate}", "process": process}
    sla = {"response_time": services * cost / threads}
    config = Config.model_validate(
        {
            "models": {"m": {"path": "m", "sla": sla, "cpu": {"threads": threads}}},
            "workers": [{"name": "w", "cores": 32.0}],
            "control": {"law": "late_share", "period": 0.2},
            "plant": {"duration": 300.0, "models": {"m": plant}},
        }
    )
    result = Simulation(from_config(config, seed=9)).run()
    assert result.late_share <= 0.025
    assert result.core_seconds / result.seconds <= cores
