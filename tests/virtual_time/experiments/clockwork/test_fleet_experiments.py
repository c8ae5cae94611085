"""`clockwork-trace` and `clockwork-scale` on short runs, and the load that both are under."""

from dataclasses import replace
from itertools import islice, takewhile

import pytest

from roma.domain.actions import ModelCapabilities
from roma.domain.errors import ConfigError
from roma.lab.experiments.clockwork import functions, scale, trace
from roma.lab.experiments.clockwork.bound import unservable
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.lab import Lab
from tests.virtual_time.experiments.clockwork.test_clockwork_experiments import rows

LAB = Lab((11,))
MODELS = tuple(f"m{i}" for i in range(200))
SMALL = trace.TraceJob(11, None, copies=10, devices=2, rate=300.0, seconds=20.0)


def counts(seed, *, seconds=120, rate=500.0, traces=None):
    sends = functions.sends(MODELS, rate, seed=seed, traces=traces)
    return {m: [*takewhile(lambda t: t < seconds, times)] for m, times in sends}


def test_the_rate_is_that_of_all_models_together():
    total = sum(map(len, counts(1).values()))
    assert total == pytest.approx(120 * 500, rel=0.05)


def test_few_models_have_most_of_the_requests():
    sizes = sorted(map(len, counts(1).values()), reverse=True)
    assert sum(sizes[:40]) > 0.6 * sum(sizes)
    assert sum(sizes[100:]) < 0.15 * sum(sizes)


def test_a_seed_is_a_load():
    assert counts(1) == counts(1)
    assert counts(1) != counts(2)


def test_spikes_come_to_all_at_the_same_time():
    by_second = [0] * 120
    for times in counts(1).values():
        for time in times:
            by_second[int(time)] += 1
    mean = sum(by_second) / len(by_second)
    spikes = [by_second[s] for s in range(0, 120, 60)]
    assert min(spikes) > 1.2 * mean


def test_recorded_functions_lend_their_shape(tmp_path):
    lines = ["app,func,end_timestamp,duration"]
    lines += [f"a,f,{60 * minute + 30},1.5" for minute in range(0, 10, 2)]  # every other minute
    lines += ["a,f,589,1"]
    (tmp_path / functions.RECORDED).write_text("\n".join(lines))
    ((_, times),) = islice(functions.sends(("m",), 100.0, seed=1, traces=tmp_path), 1)
    seconds = [int(t) % 2 for t in takewhile(lambda t: t < 9, times)]
    assert 0.0 < sum(seconds) / len(seconds) < 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "holds 0 invocations; must be at least 1"),
        ("func,end_timestamp,duration", "holds 0 invocations; must be at least 1"),
        ("func,end_timestamp\nf,60", "no column 'duration'"),
        ("func,end_timestamp,duration\nf,60", "cannot be read: float() argument must be"),
        ("func,end_timestamp,duration\nf,60,x", "cannot be read: could not convert"),
    ],
)
def test_a_trace_that_lacks_something_is_told_in_a_line(tmp_path, text, why):
    path = tmp_path / functions.RECORDED
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        next(functions.sends(("m",), 1.0, seed=1, traces=tmp_path))
    assert str(caught.value).startswith(f"--traces: {path}: {why}")


def test_a_small_fleet_keeps_its_slo_and_counts_every_request():
    found = trace.compare(LAB, SMALL)
    stretches = rows(found.tables[0])
    assert len(stretches) == 2
    for row in stretches:
        assert row["offered r/s"] == pytest.approx(300, rel=0.35)
        assert row["goodput r/s"] == pytest.approx(row["offered r/s"], rel=0.02)
        assert row["max ms"] <= 100
        assert row["batch"] >= 1
    assert found.checks[0].holds


def test_the_intervals_of_a_fleet_are_those_of_its_runs():
    lab = Lab((11, 12))
    smaller = replace(SMALL, rate=60.0)
    both = rows(trace.compare(lab, smaller).tables[0])[0]
    ones = [rows(trace.compare(Lab((seed,)), smaller).tables[0])[0] for seed in lab.seeds]
    assert [one["goodput ±"] for one in ones] == [None, None]
    mean, half = interval([one["goodput r/s"] for one in ones])
    assert (both["goodput r/s"], both["goodput ±"]) == (pytest.approx(mean), pytest.approx(half))
    assert both["refused ±"] == pytest.approx(interval([one["refused"] for one in ones])[1])


def test_prediction_errors_are_longer_or_shorter_and_all_of_them():
    found = trace.compare(LAB, SMALL)
    errors = rows(found.tables[1])
    for kind in ("INFER", "LOAD"):
        pair = [row for row in errors if row["prediction"] == kind]
        assert sum(row["share"] for row in pair) == pytest.approx(1.0)
        longer, shorter = pair
        # The largest of ten is rarely exceeded.
        assert longer["share"] < 0.2 < shorter["share"]


def test_more_devices_do_more():
    found = scale.compare(LAB, (1, 2), copies=5)
    one, two = rows(found.tables[0])
    assert two["peak goodput r/s"] > 1.5 * one["peak goodput r/s"]
    assert one["core µs per request"] > 0
    assert 0 < one["dispatcher busy"] < 1


def test_the_peak_is_at_the_load_with_the_largest_mean_over_the_seeds():
    runs = {10.0: (30.0, 34.0), 20.0: (60.0, 2.0)}
    found = {
        scale.ScaleJob(2, rate): [scale.ScaleResult(40.0, goodput, 0.01) for goodput in goodputs]
        for rate, goodputs in runs.items()
    }
    devices, offered, goodput, half, each, cost, busy = scale._row(found)
    assert (devices, offered, each) == (2, 20.0, 16.0)
    assert (goodput, half) == interval([30.0, 34.0])
    assert (cost, busy) == (pytest.approx(1e4), pytest.approx(0.4))


def test_devices_that_add_nothing_end_the_growth():
    def checks(*goodput):
        return scale._checks([(n, None, g, None, g / n, 1.0, 0.5) for n, g in goodput])

    (grows,) = checks((1, 10.0), (2, 20.0), (4, 21.0), (8, 5.0))
    assert "to 2" in grows.claim
    assert grows.holds
    assert not checks((1, 10.0), (2, 9.0))[0].holds


OFFERS = {"a": ModelCapabilities(1, 0.01, {1: 0.010, 2: 0.012})}
"""6 ms a request at best."""


@pytest.mark.parametrize(
    ("times", "changes", "share"),
    [
        ([1.0] * 3, {}, 0.0),
        ([1.0] * 6, {}, 0.5),
        ([1.0] * 6, {"devices": 2}, 0.0),
        ([1.0] * 6 + [1.012, 1.012], {}, 3 / 8),
        # Only what comes in the counted time is lost.
        ([1.0] * 6, {"begin": 2.0}, 0.0),
        ([1.0] * 6, {"end": 0.5}, 0.0),
    ],
)
def test_no_scheduler_serves_more_than_its_devices_do_within_the_slo(times, changes, share):
    fields = {"devices": 1, "slo": 0.018, "begin": 0.0, "end": 10.0, **changes}
    assert unservable([("a", iter(times))], OFFERS, **fields) == pytest.approx(share)
