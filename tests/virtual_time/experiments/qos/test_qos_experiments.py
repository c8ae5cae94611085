"""The QoS paper's setting, its bounds against brute force, and short runs of the experiments."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.optimal import QosOpt
from roma.config.scheduling import QualityConfig
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.qos import bounds, compare, paper
from roma.lab.experiments.qos.runs import Trial, run, watch
from roma.lab.experiments.qos.setting import (
    CLUSTER,
    HARD,
    SINGLE,
    SOFT,
    SPEEDS,
    STEP,
    TESTS,
    VARIANTS,
    Part,
    Queries,
    day,
    offer,
    queries,
)


def asked(*arrivals, delay=0.05):
    times = np.array(arrivals)
    return Queries(times - delay, times)


def trial(policy=Qos, kinds=SINGLE, seconds=60, **more):
    return Trial(policy, QualityConfig(), kinds, TESTS[1], 11, seconds=seconds, **more)


# The setting


def test_batch_times_are_those_of_table_1():
    p2 = offer("p2")
    assert p2["full"].seconds(8) == pytest.approx(8 / 28.4)
    assert p2["tiny"].seconds(64) == pytest.approx(64 / 141.9)
    assert max(offer("g2")["full"].executions) == 32  # the card has no memory for more


def test_the_day_has_its_peak_in_the_afternoon():
    shape = day(None)
    assert len(shape) == 24 * 3600 // STEP
    assert shape.argmax() * STEP / 3600 == pytest.approx(16.5, abs=0.1)


def test_queries_come_in_order_at_the_rate_and_after_they_were_sent():
    part = Part(15, 18, 0, 0)
    found = queries(part, 20.0, 1)
    assert len(found) / 10800 == pytest.approx(20, rel=0.03)
    assert (np.diff(found.arrived) >= 0).all()
    assert (found.arrived - found.sent).min() >= 0.03
    assert (found.arrived - found.sent).mean() == pytest.approx(0.05, rel=0.03)


def test_a_faster_day_has_the_same_shape_in_less_time():
    part = Part(12, 24, 0, 0)
    slow, fast = (queries(part, 20.0, 1, speed=s) for s in (1, 6))
    assert fast.sent.max() == pytest.approx(slow.sent.max() / 6, rel=0.01)
    halves = [np.mean(q.sent < q.sent.max() / 2) for q in (slow, fast)]
    assert halves[0] == pytest.approx(halves[1], abs=0.02)


def test_the_papers_tables_are_complete():
    for kinds in (SINGLE, CLUSTER):
        for table in (paper.QUALITY, paper.DEVIATION, paper.TINY):
            assert set(table[kinds]) == {"fixed", "qos", "qos-rl"}


# Bounds


def best_by_hand(found, kind="p2"):
    """The best of every partition into batches in order, each as early as it can be."""
    count, best = len(found), 0.0
    table = offer(kind)

    def go(first, free, total):
        nonlocal best
        best = max(best, total)
        if first == count:
            return
        go(first + 1, free, total)  # left out
        for size in range(1, count - first + 1):
            for variant in VARIANTS:
                known = table[variant.name].executions
                seconds = known[min(b for b in known if b >= size)]
                end = max(free, found.arrived[first + size - 1]) + seconds
                late = end - found.sent[first : first + size] - SOFT
                worth = np.clip(1 - late / (HARD - SOFT), 0, 1).sum()
                go(first + size, end, total + variant.accuracy * worth)

    go(0, 0.0, 0.0)
    return best / count


@pytest.mark.parametrize(
    "arrivals",
    [
        (0.1,),
        (0.1, 0.12, 0.5, 0.52, 0.9),
        tuple(0.1 + 0.01 * i for i in range(7)),
        tuple(np.sort(np.random.default_rng(3).uniform(0.1, 1.5, 7))),
    ],
)
def test_the_bound_in_order_is_the_best_of_all_schedules_in_order(arrivals):
    # A slow device, so that there is something to lose: seven queries that came 0.9 s ago.
    found = asked(*arrivals, delay=0.95)
    exact = best_by_hand(found)
    grid = bounds.in_order(found, "p2")
    assert exact - 1e-9 <= grid <= exact + 3 * bounds.GRID


def test_nobody_is_served_before_he_came():
    # Each is late when it comes: a batch of two would be quicker if it began with the first.
    found = asked(0.1, 0.4, 0.7, 1.0, 1.3, delay=1.2)
    assert bounds.in_order(found, "g2") == pytest.approx(
        best_by_hand(found, "g2"), abs=2 * bounds.GRID
    )


@pytest.mark.parametrize("count", [1, 7, 40])
def test_the_priced_bound_is_above_what_is_reached_in_order(count):
    found = asked(*(0.1 + 0.02 * i for i in range(count)), delay=0.3)
    assert bounds.in_order(found, "p2") - 1e-9 <= bounds.priced(found, SINGLE) <= 1.02


@pytest.mark.parametrize("price", [0.0, 0.3, 1.0, "any"])
def test_it_is_a_bound_whatever_the_prices_are(price, monkeypatch):
    found = asked(*(0.1 + 0.01 * i for i in range(60)), delay=0.6)
    best = bounds.priced(found, SINGLE)
    numbers = np.random.default_rng(1).random(60) if price == "any" else np.full(60, price)
    monkeypatch.setattr(bounds, "_prices", lambda *_: numbers)
    assert bounds.priced(found, SINGLE) >= bounds.in_order(found, "p2") - 1e-9
    # The program's are better than any that come to mind.
    assert bounds.priced(found, SINGLE) >= best - 1e-9


def test_a_priced_query_is_worth_what_a_device_alone_makes_of_it():
    """A query, which the device can answer 0.069 s after it comes: on the grid after 0.06."""
    found = asked(0.1, delay=1.4)  # half of its value is gone when it is sent
    done = np.floor(found.arrived[0] / bounds.GRID) * bounds.GRID + 0.06
    late = done - found.sent[0] - SOFT
    assert bounds.priced(found, SINGLE) == pytest.approx(1 - late / (HARD - SOFT))


def test_more_devices_raise_the_priced_bound():
    found = asked(*(0.1 + 0.004 * i for i in range(120)), delay=0.3)
    assert bounds.priced(found, ("p2", "g2")) > bounds.priced(found, ("g2",)) + 0.05


# Runs


@pytest.mark.parametrize("policy", [Fixed, Qos, QosOpt])
@pytest.mark.parametrize("kinds", [SINGLE, CLUSTER])
def test_every_query_ends_and_is_worth_no_more_than_its_variant(policy, kinds):
    one = trial(policy, kinds, 20)
    scores, dispatches = watch(one)
    drawn = queries(one.part, one.part.rate(kinds), one.seed, seconds=20)
    assert sorted(scores.sent) == pytest.approx(sorted(drawn.sent))
    worth = np.where(scores.is_tiny, 0.5, 1.0)
    assert ((scores.quality >= 0) & (scores.quality <= worth)).all()
    assert sum(d.count for d in dispatches) <= len(drawn)


def test_a_run_is_the_same_again_and_another_seed_is_another():
    again, other = run(trial()), run(trial(rate=30.0))
    assert (again.quality == run(trial()).quality).all()
    assert len(other.quality) != len(again.quality)


@pytest.mark.long
def test_better_policies_are_better_and_nobody_beats_the_bound():
    found = {p: run(trial(p, seconds=300)).mean for p in (Fixed, Qos, QosOpt)}
    limit = bounds.in_order(queries(TESTS[1], TESTS[1].single, 11, seconds=300), "p2")
    assert found[Fixed] < found[Qos] < found[QosOpt] < limit


def test_two_seeds_have_the_mean_and_the_interval_of_one_each(monkeypatch):
    monkeypatch.setattr(compare, "SAMPLE", 1.0)
    monkeypatch.setattr(compare, "TESTS", TESTS[:1])
    lab = Lab((11, 12))
    quality, tiny = compare.compare(lab, CLUSTER, 6, busy=True).tables
    trial = Trial(Fixed, QualityConfig(), CLUSTER, TESTS[0], 11, seconds=6, rate=TESTS[0].busy)
    scores = [run(replace(trial, seed=seed, speed=SPEEDS[CLUSTER])) for seed in lab.seeds]
    mean, half = interval([s.mean for s in scores])
    deviation = np.sqrt(np.mean([s.deviation**2 for s in scores]))
    assert quality.rows[0] == ("fixed", f"{mean:.3f} ± {half:.3f} ({deviation:.3f})")
    assert tiny.rows[0] == ("fixed", *interval([100 * s.tiny for s in scores]))
    assert tiny.rows[1][:3] == ("fixed, paper", pytest.approx(32.6), None)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [SINGLE, CLUSTER])
def test_an_experiment_has_every_table_and_picture(kinds, monkeypatch):
    monkeypatch.setattr(compare, "SAMPLE", 1.0)
    monkeypatch.setattr(compare, "SHOWN", 60.0)
    output = compare.compare(Lab((11,)), kinds, 60 if kinds == SINGLE else 12)
    quality, tiny = output.tables
    names = [row[0] for row in quality.rows]
    policies = ("fixed", "qos", "qos-rl", "qos-opt", "qos-rl, paper")
    assert {*policies, "bound, in samples", "qos-opt, in the same"} <= set(names)
    assert len(tiny.rows) == 7
    assert len(output.checks) == 6 * len(TESTS)
    for picture in output.pictures:
        figure = Figure()
        picture.draw(figure)
        assert figure.axes


@pytest.mark.parametrize("seconds", [20, 200, 2000, None])
def test_no_query_is_in_two_samples(seconds):
    one = trial(kinds=CLUSTER, seconds=seconds)
    samples = [compare._sample(one, at) for at in compare.SAMPLES]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(samples))
