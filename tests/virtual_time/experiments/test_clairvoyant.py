"""The clairvoyant bound against cases computed by hand, and against policies that really serve."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roma.config.plant import LoadConfig
from roma.lab.experiments import clairvoyant, systems
from roma.lab.experiments.clairvoyant import Infeasible, ModelLoad, bound
from roma.lab.experiments.lab import clairvoyant_bound
from roma.lab.experiments.workloads import Model, RequestCost, Workload
from roma.lab.sim.simulation import Simulation
from tests.support.examples import examples

ONE = ModelLoad([0.0], cost=1.0, gpu_time=None, response_time=1.0, minimum=0.0, maximum=10.0)


def least(models, *, gpus=0, capacity=10.0, duration=3.0, late_share=0.0, period=1.0, slot=0.1):
    if isinstance(models, ModelLoad):
        models = {"m": models}
    return bound(
        models,
        gpus=gpus,
        capacity=capacity,
        duration=duration,
        late_share=late_share,
        period=period,
        slot=slot,
    )


def paced(rate, duration):
    return [i / rate for i in range(round(rate * duration))]


FIFTEEN = {"arrivals": paced(15, 10), "cost": 0.2, "gpu_time": 0.1}


@pytest.mark.parametrize(
    ("arrival", "sla", "expected"),
    [
        (0.0, 1.0, 1.0),  # the whole first second
        (0.0, 0.5, 2.0),  # 1/0.5 cores, allocated for a whole second
        (0.0, 2.0, 1.0),  # spread over two seconds, the same work
        (0.8, 0.4, 5.0),  # 0.2 s in each of two seconds: 1/0.2 in one of them
        (0.9, 0.5, 2.5),  # 0.4 s of the next second beat 0.1 s of this one
        (0.25, 0.5, 1 / 0.6),  # slots are used whole: from 0.2 to 0.8
    ],
)
def test_one_request_needs_its_cost_within_its_sla_in_whole_seconds(arrival, sla, expected):
    result = least(replace(ONE, arrivals=[arrival], response_time=sla))
    assert result.core_seconds == pytest.approx(expected)
    assert sum(result.cores["m"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        # A shorter slot sees the exact times.
        ({"arrivals": [0.25], "response_time": 0.5}, {"slot": 0.05}, 2.0),
        # What is due after the end need not be served.
        ({"arrivals": [2.5]}, {}, 0.0),
        # A GPU that can take all leaves the minimum.
        (
            {"arrivals": paced(9, 10), "gpu_time": 0.1, "minimum": 0.2},
            {"gpus": 1, "duration": 10},
            2.0,
        ),
        # Cores serve what the GPUs cannot: 136 requests are due by 10 s, one serves 100 of them,
        # two could serve 200.
        (FIFTEEN, {"gpus": 1, "duration": 10}, 36 * 0.2),
        (FIFTEEN, {"gpus": 2, "duration": 10}, 0.0),
        # A fraction of a request cannot be late.
        ({"arrivals": [0.0, 1.0]}, {"late_share": 0.49}, 2.0),
    ],
)
def test_what_a_load_needs_at_least(changes, options, expected):
    result = least(replace(ONE, **changes), **options)
    assert result.core_seconds == pytest.approx(expected, abs=1e-6)


def test_a_constant_load_needs_its_work_and_no_more():
    load = replace(ONE, arrivals=paced(10, 20), cost=0.05, response_time=0.5)
    result = least(load, duration=20)
    # Due by 20 s: what arrived until 19.5 s, that is 196 requests.
    assert result.core_seconds == pytest.approx(196 * 0.05)
    assert max(result.cores["m"]) <= 0.5 + 0.05 * 10  # never more than the SLA's slack explains


def test_the_minimum_is_always_allocated():
    result = least(replace(ONE, minimum=0.3, arrivals=[]), duration=2.5)
    assert result.core_seconds == pytest.approx(0.75)
    assert result.cores["m"] == pytest.approx([0.3, 0.3, 0.3])
    assert result.late_share == 0


def test_the_gpu_goes_where_it_saves_most_cores():
    """10 requests of each; within 2 s the GPU has time for half of them."""
    burst = replace(ONE, arrivals=[0.0] * 10, response_time=2.0, gpu_time=0.2)
    models = {"light": replace(burst, cost=0.1), "heavy": replace(burst, cost=0.5)}
    result = least(models, gpus=1, duration=3.0)
    assert result.core_seconds == pytest.approx(10 * 0.1)
    assert sum(result.cores["heavy"]) == pytest.approx(0.0, abs=1e-6)


def test_what_may_be_late_is_what_costs_most_cores():
    # From 5.8 to 6.3 s: 1/0.3 cores for a second; from 0 to 0.5 s: 1/0.5.
    load = replace(ONE, arrivals=[0.0, 5.8], response_time=0.5)
    everything = least(load, duration=8)
    assert everything.core_seconds == pytest.approx(2 + 1 / 0.3)
    assert everything.late_share == pytest.approx(0.0, abs=1e-6)
    half = least(load, duration=8, late_share=0.5)
    assert half.core_seconds == pytest.approx(2.0)
    assert half.late_share == pytest.approx(0.5)
    assert sum(half.cores["m"][5:7]) == pytest.approx(0.0, abs=1e-6)


def test_the_late_share_is_of_all_requests_together():
    cheap = replace(ONE, arrivals=paced(5, 9.8), cost=0.01)
    dear = replace(ONE, arrivals=[3.0], cost=2.0)
    result = least({"cheap": cheap, "dear": dear}, duration=12, late_share=0.02)
    assert result.core_seconds == pytest.approx(49 * 0.01)
    assert result.late_share == pytest.approx(1 / 50)


def test_an_impossible_load_names_the_least_share_that_must_be_late():
    # One core has 2 core-seconds for these ten requests.
    load = replace(ONE, arrivals=[0.0] * 10, response_time=2.0)
    with pytest.raises(Infeasible, match=r"at least 80\.00% of the requests") as error:
        least(load, capacity=1.0, duration=5)
    assert error.value.late_share == pytest.approx(0.8)
    overloaded = least(load, capacity=1.0, duration=5, late_share=error.value.late_share)
    assert overloaded.core_seconds == pytest.approx(2.0)


def test_models_share_the_capacity():
    load = replace(ONE, arrivals=[0.0] * 2, response_time=1.0)
    assert least({"a": load}, capacity=3.0).core_seconds == pytest.approx(2.0)
    with pytest.raises(Infeasible) as error:
        least({"a": load, "b": load}, capacity=3.0)
    assert error.value.late_share == pytest.approx(0.25)


def test_a_models_own_maximum_binds_it():
    with pytest.raises(Infeasible):
        least(replace(ONE, maximum=0.9))


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"duration": 0.0}, r"duration = 0\.0"),
        ({}, {"period": 0.0}, r"period = 0\.0: must be > 0"),
        ({}, {"slot": 0.3}, r"slot = 0\.3: must divide the period \(1 s\)"),
        ({"cost": 0.0}, {}, "m: cost"),
        ({"gpu_time": 0.0}, {}, "m: cost, gpu_time"),
        ({"minimum": 11.0}, {}, r"m: minimum = 11\.0"),
        ({"replicas": 0}, {}, r"m: replicas = 0"),
        ({"arrivals": [3.0]}, {}, r"arrivals must be in \[0, 3\)"),
        ({"minimum": 9.0}, {"capacity": 8.0}, r"sum of the minima \(9\)"),
    ],
)
def test_arguments_without_sense_are_refused_by_name(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        least(replace(ONE, **changes), **arguments)


# Against what really serves: FIFO, one request at a time, at the speed of the allocation.


def finish_times(arrivals, cost, cores, period=1.0):
    """Return when each request ends on `cores` per period; the queue is served in order."""
    edges = np.arange(len(cores) + 1) * period
    work = np.concatenate(([0.0], np.cumsum(cores))) * period
    done, ends = 0.0, []
    for arrival in arrivals:
        done = max(done, float(np.interp(arrival, edges, work))) + cost
        ends.append(float(np.interp(done, work, edges, right=np.inf)))
    return ends


def gpu_ends(arrivals, gpu_time):
    free, ends = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + gpu_time
        ends.append(free)
    return ends


times = st.lists(st.floats(0, 7.9), max_size=25).map(sorted)
allocations = st.lists(st.just(0.05) | st.floats(0.05, 4.0), min_size=40, max_size=40)
periods = st.sampled_from((1.0, 0.5, 0.2))
slas = st.floats(0.05, 2.0)


def late(arrivals, ends, sla):
    return sum(a + sla <= 8.0 and end > a + sla for a, end in zip(arrivals, ends, strict=True))


@settings(max_examples=examples(60), deadline=None)
@given(times, times, allocations, allocations, slas, st.floats(0.02, 0.5), periods)
def test_no_policy_that_really_serves_does_with_less(a, b, cores_a, cores_b, sla, cost, period):
    """Whatever is allocated, at the late share that it really has, the bound is not above it."""
    cores_a, cores_b = (cores[: round(8 / period)] for cores in (cores_a, cores_b))
    split = a[::2], a[1::2]  # every other request of model a goes to the GPU
    broken = late(split[0], gpu_ends(split[0], 0.1), sla)
    broken += late(split[1], finish_times(split[1], cost, cores_a, period), sla)
    broken += late(b, finish_times(b, 2 * cost, cores_b, period), 2 * sla)
    models = {
        "a": ModelLoad(a, cost, 0.1, sla, 0.05, 4.0),
        "b": ModelLoad(b, 2 * cost, None, 2 * sla, 0.05, 4.0),
    }
    share = broken / max(1, len(a) + len(b))
    result = least(models, gpus=1, capacity=8.0, duration=8.0, late_share=share, period=period)
    assert result.core_seconds <= period * (sum(cores_a) + sum(cores_b)) + 1e-6
    assert result.late_share <= share + 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(times, slas, st.floats(0.02, 0.5))
def test_an_easier_promise_never_needs_more(arrivals, sla, cost):
    load = ModelLoad(arrivals, cost, 0.3, sla, 0.05, 200.0)

    def need(load=load, **changes):
        return least(load, **{"capacity": 200.0, "duration": 8.0, **changes}).core_seconds

    base = need()
    assert need(replace(load, response_time=1.5 * sla)) <= base + 1e-6
    assert need(late_share=0.3) <= base + 1e-6
    assert need(gpus=1) <= base + 1e-6
    assert need(replace(load, cost=cost / 2)) <= base + 1e-6
    assert need(slot=0.2) <= base + 1e-6  # coarser: more relaxed


def test_a_request_that_needs_just_the_minimum_makes_no_row_of_infinite_size():
    """v and f of `_whole_requests` differ by rounding alone here."""
    load = ModelLoad([1.0], 0.020000000000000004, None, 0.25, 0.05, 4.0)
    assert least(load, capacity=8.0, duration=8.0).core_seconds == pytest.approx(0.4, rel=0.05)


def test_the_bound_is_near_what_a_good_policy_needs():
    """It is not only low: with steady traffic it leaves little room below a constant allocation."""
    arrivals, sla, cost = paced(10, 30), 0.5, 0.05
    cores = next(
        u
        for u in np.arange(0.3, 3.0, 0.01)
        if not any(
            end > a + sla
            for a, end in zip(arrivals, finish_times(arrivals, cost, [u] * 31), strict=True)
        )
    )
    load = ModelLoad(arrivals, cost, None, sla, 0.0, 4.0)
    assert least(load, duration=30).core_seconds > 0.9 * cores * 30


# Whole requests: what a minimum cannot do.

PAIR = ModelLoad(paced(2, 8), cost=0.5, gpu_time=0.6, response_time=0.5, minimum=0.1, maximum=4.0)
"""The GPU has time for five of six requests. One that the CPU answers needs 0.83 cores."""


def fluid(monkeypatch, *args, **kwargs):
    """Return the bound without the rows about whole requests."""
    with monkeypatch.context() as patch:
        patch.setattr(clairvoyant, "_whole_requests", lambda *_, **__: None)
        return least(*args, **kwargs)


def test_work_costs_more_than_the_minimum_that_could_not_do_it(monkeypatch):
    divisible = fluid(monkeypatch, PAIR, gpus=1, duration=8.0)
    whole = least(PAIR, gpus=1, duration=8.0)
    # Half a second of GPU time for each, a sixth of its work is left.
    work = 16 / 6 * PAIR.cost
    assert divisible.core_seconds == pytest.approx(work)
    v, f, g = 0.5 / 0.6, 0.1, 0.5
    per_core = v / (v - f) + 2 * g * f / (v - f)  # κ + 2μ
    assert whole.core_seconds == pytest.approx(8 * f + work / per_core, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [{"minimum": 0.0}, {"minimum": 0.9, "maximum": 4.0}, {"replicas": 10}],
    ids=["nothing is wasted without a minimum", "the minimum is enough", "a tenth each"],
)
def test_only_a_minimum_too_small_for_a_request_is_wasted(monkeypatch, changes):
    load = replace(PAIR, **changes)
    divisible = fluid(monkeypatch, load, gpus=1, duration=8.0).core_seconds
    whole = least(load, gpus=1, duration=8.0).core_seconds
    assert whole >= divisible - 1e-9
    assert (whole > divisible + 1e-6) == ("replicas" in changes)


@pytest.mark.parametrize(
    ("arrivals", "cost", "sla", "minimum", "cores"),
    [
        ([0.0, 1.0, 2.0], 0.5, 1.0, 0.3, [0.5, 0.5, 0.5]),  # all of it is used, minimum included
        ([0.8], 0.4, 0.8, 0.1, [0.1, 0.38 / 0.6, 0.1]),  # 0.2 s at the minimum, the rest after it
        ([0.4, 1.8], 0.4, 0.8, 0.1, [0.38 / 0.6, 0.1, 0.38 / 0.6]),  # and the same from both sides
    ],
)
def test_what_a_request_really_uses_of_a_minimum_counts(arrivals, cost, sla, minimum, cores):
    load = ModelLoad(arrivals, cost, None, sla, minimum, maximum=4.0)
    ends = finish_times(arrivals, cost, cores)
    assert not late(arrivals, np.array(ends) - 1e-9, sla)
    assert least(load).core_seconds == pytest.approx(sum(cores))


@pytest.mark.parametrize("period", [0.2, 0.5, 2.0])
def test_a_period_is_a_unit_of_time_like_any_other(period):
    """Everything in the same proportion to it costs as many cores for as much longer."""
    arrivals = [a * period for a in PAIR.arrivals]
    times = {n: period * getattr(PAIR, n) for n in ("cost", "gpu_time", "response_time")}
    scaled = replace(PAIR, arrivals=arrivals, **times)
    found = least(scaled, gpus=1, duration=8 * period, period=period, slot=0.1 * period)
    known = least(PAIR, gpus=1, duration=8.0)
    assert found.core_seconds == pytest.approx(period * known.core_seconds)


def test_a_minimum_counts_for_a_request_that_ends_many_periods_later():
    """The others have all the rest for three periods; then it needs 1.7 cores for one."""
    early = ModelLoad([0.0], 1.9 * 0.6, None, 0.6, 0.0, maximum=4.0)
    long = ModelLoad([0.0], 0.3 * 0.2 + 1.7 * 0.2, None, 0.8, 0.1, maximum=4.0)
    found = least({"early": early, "long": long}, capacity=2.0, duration=0.8, period=0.2)
    assert found.cores["long"] == pytest.approx([0.1, 0.1, 0.1, 1.7])


def served_whole(arrivals, on_cpu, cores, load):
    """Return whether every request ends in time: first come, first served on either device."""
    own = [a for a, here in zip(arrivals, on_cpu, strict=True) if here]
    others = [a for a, here in zip(arrivals, on_cpu, strict=True) if not here]
    ends = finish_times(own, load.cost, cores) + gpu_ends(others, load.gpu_time)
    return all(
        end <= a + load.response_time + 1e-9 for a, end in zip(own + others, ends, strict=True)
    )


@pytest.mark.parametrize("arrivals", [(0.1, 0.5, 0.9, 1.6), (0.8, 0.9, 1.0, 2.0), (0.0, 0.7, 1.4)])
def test_no_allocation_found_by_trying_all_does_with_less(monkeypatch, arrivals):
    """One GPU, one replica, three seconds: every choice of devices, every allocation of a grid."""
    load = replace(PAIR, arrivals=list(arrivals), maximum=3.0)
    grid = [0.1, *np.arange(0.2, 3.01, 0.2)]
    found = min(
        sum(cores)
        for cores in product(grid, repeat=3)
        for on_cpu in product((False, True), repeat=len(arrivals))
        if served_whole(arrivals, on_cpu, cores, load)
    )
    whole = least(load, gpus=1, duration=3.0).core_seconds
    assert fluid(monkeypatch, load, gpus=1, duration=3.0).core_seconds <= whole <= found + 1e-9


NO_BURST = replace(systems.SHIPPED_ENGINE, burst=0.0)
"""As the bound has it."""

SHARED = Workload(
    "shared",
    "Two models, two workers, one GPU each",
    (
        Model(
            "a", 0.38, RequestCost(0.10, 0.05, noise=0.0, gpu_noise=0.0), LoadConfig(profile="30")
        ),
        Model(
            "b", 0.54, RequestCost(0.25, 0.06, noise=0.0, gpu_noise=0.0), LoadConfig(profile="14")
        ),
    ),
    duration=12.0,
)


def test_a_quota_serves_from_its_first_period_to_its_last():
    """Five periods within 0.38 s: two tenths of a core carry a tenth of a core-second."""

    def twice_a_second(duration, seed):
        return iter([k + part for k in range(round(duration)) for part in (0.05, 0.55)])

    service = RequestCost(0.1, 0.05, noise=0.0)
    alone = replace(SHARED, models=(Model("a", 0.38, service, twice_a_second),), workers=1, gpus=0)
    played = Simulation(alone.scenario(NO_BURST, 1, script={"a@w1": [0.2] * 12})).run()
    assert played.late_share == 0
    assert clairvoyant_bound(alone, 1, 0.0).core_seconds == pytest.approx(played.core_seconds)


@pytest.mark.parametrize("period", [1.0, 0.2])
def test_a_plan_is_played_by_control_periods(period):
    ticks = round(12 / period)
    plan = [0.2 if k < ticks / 4 else 0.6 for k in range(ticks)]
    script = {f"{model}@{worker}": plan for model in "ab" for worker in ("w1", "w2")}
    system = replace(NO_BURST, period=period)
    played = Simulation(SHARED.scenario(system, 1, script=script)).run()
    assert played.core_seconds == pytest.approx(4 * period * sum(plan))


@pytest.mark.parametrize("period", [1.0, 0.2])
@pytest.mark.parametrize("seed", range(1, 11))
def test_no_plan_played_in_the_laboratory_does_with_less(seed, period):
    """Plans of all kinds, most of them just above or below what one request needs."""
    draw = random.Random(seed)
    most = draw.choice((0.4, 0.8, 1.5, 3.0))
    busy = draw.random()
    script = {
        f"{model}@{worker}": [
            draw.uniform(0.15, most) if draw.random() < busy else 0.1
            for _ in range(round(12 / period))
        ]
        for model in "ab"
        for worker in ("w1", "w2")
    }
    system = replace(NO_BURST, period=period)
    played = Simulation(SHARED.scenario(system, seed, script=script)).run()
    reference = clairvoyant_bound(SHARED, seed, played.late_share, period)
    assert reference.core_seconds <= played.core_seconds + 1e-6
