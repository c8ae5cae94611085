"""Clockwork's evaluation on short runs: what it finds, and that it could find otherwise."""

import math
import random
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from roma.domain.events import Reason
from roma.domain.model import Request
from roma.lab.experiments.clockwork import isolation, low, runs, slo, thousands
from roma.lab.experiments.clockwork.clipper import LARGEST, Clipper
from roma.lab.experiments.clockwork.counts import GROWTH, Counts, Latencies
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Ended

LAB = Lab((11,))
NAMED = {system.name: system for system in slo.SYSTEMS}


def rows(table):
    names = [c.name for c in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def ended(at, response=0.01, *, slo=0.1, reason=None, is_cold=False):
    return Ended(Request(1, "m", at - response, at - response + slo), at, slo, reason, is_cold)


# What is kept


def test_quantiles_are_a_percent_too_large_at_most():
    draw = random.Random(1)
    samples = [draw.lognormvariate(-4, 1) for _ in range(5000)]
    found = Latencies()
    for sample in samples:
        found.add(sample)
    samples.sort()
    for q in (0.01, 0.5, 0.99, 0.999):
        exact = samples[int(q * len(samples)) - 1]
        assert exact <= found.quantile(q) <= exact * GROWTH
    assert found.largest == samples[-1] == found.quantile(1.0)
    assert found.mean == pytest.approx(sum(samples) / len(samples))


def test_without_samples_there_is_no_latency():
    assert Latencies().quantile(0.5) is None
    assert Latencies().mean is None


def test_a_request_counts_once_and_only_between_begin_and_end():
    counts = Counts(1.0, 2.0)
    for each in (
        ended(0.9),
        ended(1.0, is_cold=True),
        ended(1.5, 0.2),
        ended(1.6, reason=Reason.DEADLINE, is_cold=True),
        ended(2.0),
    ):
        counts.add(each)
    assert (counts.good, counts.late, counts.refused) == (1, 1, 1)
    assert (counts.cold, counts.cold_answered) == (2, 1)
    assert counts.late_at == [1.5]
    assert counts.satisfaction == pytest.approx(1 / 3)


def test_two_runs_are_one_twice_as_long():
    first, second = Counts(0.0, 1.0), Counts(0.0, 1.0)
    first.add(ended(0.5))
    second.add(ended(0.5, 0.2))
    both = Counts.of_runs([first, second])
    assert (both.goodput, both.late, both.latencies.largest) == (0.5, 1, 0.2)
    assert (both.satisfaction, both.refused_share, both.seconds) == (0.5, 0.0, 2.0)
    assert both.half("goodput") == pytest.approx(interval([1.0, 0.0])[1])
    assert first.half("goodput") is None


def test_stretches_of_a_run_are_one_run():
    stretches = [Counts(0.0, 1.0), Counts(1.0, 3.0)]
    for counts in stretches:
        counts.add(ended(0.5))
        counts.add(ended(2.5, reason=Reason.DEADLINE))
    whole = Counts.of_stretches(stretches)
    assert (whole.begin, whole.end, whole.seconds, whole.refused_share) == (0.0, 3.0, 3.0, 0.5)
    assert whole.half("refused_share") is None
    assert Counts.of_runs([whole, whole]).half("refused_share") == 0.0


# Fig. 5


def test_the_ideal_is_the_best_batch_that_fits():
    assert slo.ideal(0.5) == pytest.approx(16 / 0.01567)
    assert slo.ideal(0.01) == pytest.approx(8 / 0.00913)
    assert slo.ideal(0.0027) == 0.0  # messages take 0.2 ms


@pytest.fixture(scope="module")
def short():
    systems = [NAMED[n] for n in ("clockwork (ours)", "Clockwork", "EDF, refusing", "Clipper-like")]
    return slo.compare(LAB, (0.05, 0.25), systems, seconds=0.5)


def test_ours_beats_what_it_is_compared_with(short):
    found = {(r["SLO ms"], r["system"]): r["goodput r/s"] for r in rows(short.tables[0])}
    at_50 = {name: goodput for (ms, name), goodput in found.items() if ms == 50.0}
    ours = at_50.pop("clockwork (ours)")
    assert ours > 1.2 * at_50["Clockwork"] > 1.2 * at_50["EDF, refusing"]
    assert at_50["Clipper-like"] < 0.1 * ours
    assert found[250.0, "Clipper-like"] > 0


def test_batches_are_all_that_a_loose_promise_needs():
    """What waits behind a head of EDF fills the device as ours does, as long as there is time."""
    found = slo.compare(LAB, (0.5,), [NAMED["EDF, refusing"], NAMED["FCFS"]], seconds=0.5)
    assert all(r["of ideal"] > 0.95 for r in rows(found.tables[0]))


def test_its_claims_hold_undisturbed(short):
    assert short.checks
    assert [c.claim for c in short.checks if not c.holds] == []


def test_a_claim_fails_where_a_system_does_not_do_it(monkeypatch):
    monkeypatch.setattr(slo, "OURS", NAMED["EDF, refusing"])
    found = slo.compare(LAB, (0.1,), [NAMED["EDF, refusing"]], seconds=0.5)
    assert not any(c.holds for c in found.checks if "of the ideal" in c.claim)


def test_the_same_seed_gives_the_same_table_and_another_one_does_not():
    def table(seed):
        lab = Lab((seed,))
        return slo.compare(lab, (0.1,), [slo.OURS, NAMED["Clipper-like"]], 0.1).tables[0].rows

    assert table(1) == table(1)
    assert table(1) != table(2)


def test_a_device_that_is_late_makes_answers_late_for_a_moment_only():
    table, checks = slo.disturb(LAB, (0.1,), seconds=1.0)
    found = {r["disturbance"]: r for r in rows(table)}
    assert found[slo.DISTURBANCES[0].name]["late answers"] == 0
    delayed = found[slo.DISTURBANCES[2].name]
    assert delayed["late answers"] > 0
    assert delayed["of ideal"] > 0.8
    assert [c.claim for c in checks if not c.holds] == []


def test_the_time_to_the_last_late_answer_is_that_since_the_disturbance_before_it():
    assert slo._longest([1.01, 2.03, 2.01], [1.0, 2.0]) == pytest.approx(0.03)
    assert slo._longest([], [1.0]) == 0.0
    assert slo._longest([0.9, 1.01], [1.0]) == math.inf  # late although nothing had struck


# The reactive baseline


def clipper(deadline):
    plan = replace(NAMED["Clipper-like"].plan(deadline, slo.QUIET), seed=1)
    fleet = Fleet(plan, on_end=lambda ended: runs.send_next(fleet, ended))
    for model in plan.models:
        for i in range(32):
            fleet.send(model, iter([i * 1e-5]))
    return fleet, fleet.dispatcher.policies.active[0]


def test_a_batch_grows_while_it_is_in_time():
    fleet, policy = clipper(10.0)
    assert isinstance(policy, Clipper)
    fleet.run(5.0)
    assert set(policy.bounds.values()) == {LARGEST}


def test_a_batch_shrinks_when_it_is_not():
    fleet, policy = clipper(0.1)
    fleet.run(3.0)
    before = {model: policy.bounds[model] for model in policy.bounds}
    assert max(before.values()) < LARGEST  # 15 turns of it would take 235 ms
    changes = set()
    for step in range(100):
        fleet.run(3.0 + step / 100)
        changes |= {
            bound - before[m] if bound > before[m] else bound / before[m]
            for m, bound in policy.bounds.items()
            if bound != before[m]
        }
        before = dict(policy.bounds)
    assert {round(change, 6) for change in changes} == {1.0, 0.9}


def test_models_take_turns():
    fleet, policy = clipper(10.0)
    fleet.run(5.0)
    ran = []
    for step in range(30_000):
        fleet.run(5.0 + step * 1e-4)
        running = [model for model, _ in policy._running.values()]
        if running and (not ran or ran[-1] != running[0]):
            ran.append(running[0])
    turns = ran[-15:]
    assert len(set(turns)) == 15
    assert all(a == b for a, b in zip(ran[-30:-15], turns, strict=True))


# Figs. 7 and 8


def test_satisfied_is_from_where_on_all_are():
    steps = (1.0, 2.0, 3.0, 4.0)
    assert low.satisfied_from((0.5, 1.0, 0.9, 1.0), steps) == 4.0
    assert low.satisfied_from((0.5, 0.99, 1.0, 1.0), steps) == 2.0
    assert low.satisfied_from((1.0, 1.0, 1.0, 0.5), steps) is None


def test_the_steps_are_the_paper_s():
    assert [round(s * 1e3, 1) for s in low.STEPS] == [
        2.9, 4.3, 6.5, 9.8, 14.7, 22.0, 33.0, 49.5, 74.3,
    ]  # fmt: skip
    assert all(b == pytest.approx(1.5 * a) for a, b in pairwise(low.STEPS))


def test_a_longer_slo_satisfies_more():
    found = low.compare(LAB, [(12, 600)], (0.0029, 0.0098, 0.0743), seconds=1.0)
    (row,) = found.tables[0].rows
    _, _, *cells, first, paper = row
    shares, halves = cells[::2], cells[1::2]
    assert halves == [None] * 3
    assert shares == sorted(shares)
    assert shares[0] < 0.9
    assert shares[-1] > 0.99
    assert (first, paper) == (pytest.approx(9.8), 10.0)
    assert all(c.holds for c in found.checks)


def test_two_seeds_have_the_mean_and_the_interval_of_one_each():
    def figures(*seeds):
        table = low.compare(Lab(seeds), [(12, 600)], (0.0029, 0.0065), seconds=0.5).tables[0]
        return table.rows[0][2:6], table.note

    (both, note), ones = figures(11, 12), [figures(seed)[0] for seed in (11, 12)]
    assert note.endswith("± is an interval of 95 % over 2 seeds.")
    for column in (0, 2):
        mean, half = interval([row[column] for row in ones])
        # Of all requests together: the seeds do not have as many.
        assert both[column] == pytest.approx(mean, rel=0.01)
        assert both[column + 1] == pytest.approx(half)


def test_batch_clients_take_what_is_left():
    some = [replace(s, clients=s.clients // 2) for s in isolation.SCENARIOS[:2]]
    found = isolation.compare(LAB, (0.0029, 0.0743), some, seconds=0.3)
    tight, wide = rows(found.tables[0])
    assert wide["alone: satisfied"] > 0.99
    assert wide[f"{some[1].name}: satisfied"] > 0.99
    assert tight["alone: satisfied"] < 0.9
    assert tight["batch r/s"] > wide["batch r/s"] > 1000


def test_clients_of_a_closed_loop_have_one_request_each_on_its_way():
    trial = slo._trial(slo.OURS.plan(0.5, slo.QUIET), 0.5)
    counts = runs.simulate(trial)["all"]
    # Little's law, with an error of the answers on their way at both ends.
    on_their_way = counts.goodput * (counts.latencies.mean + 1e-4)
    assert on_their_way == pytest.approx(slo.COPIES * slo.CONCURRENCY, rel=0.1)


# Fig. 6

SMALL = thousands.Setup("small", 35, models=60, step=12, after=3.0, bucket=5.0, seed=1)


def test_the_active_models_share_one_rate():
    for second in (0, 5, 7, 9, 12):
        total = sum(next(islice(thousands.rates(i, SMALL), second, None)) for i in range(60))
        assert total == pytest.approx(0.0 if second < thousands.ALONE else thousands.MAJOR_RATE)


def test_what_does_not_fit_is_loaded_again_and_again():
    buckets = thousands.simulate(SMALL)
    assert len(buckets) == 3
    first, *_, last = buckets
    assert (first.major.total, first.minor.total > 900) == (0, True)
    assert first.loads == 1
    assert last.loads > 180  # of the 360 that the bus could do in three seconds
    assert last.major.cold_share > 0.5
    assert last.loading <= 3.0 * 1.01
    assert all(b.major.late == b.minor.late == 0 for b in buckets)


def test_a_device_that_holds_all_loads_each_once():
    roomy = replace(SMALL, pages=7 * 61, models=24, after=3.0)
    found = thousands.compare(LAB, (roomy,))
    first, last = rows(found.tables[0])
    assert (first["active"], last["active"]) == (0, 24)
    assert last["PCIe"] == pytest.approx(24 * 0.00833 / 5, rel=0.05)
    cold = next(c for c in found.checks if "cold starts" in c.claim)
    assert not cold.holds
