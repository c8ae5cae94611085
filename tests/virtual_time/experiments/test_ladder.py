"""`ladder`: the rungs, the constant beside them, and how far ours is from the aims."""

from dataclasses import replace

import pytest

from roma.lab.experiments import ladder
from roma.lab.experiments.ladder import Climb, Rung, Runs, climb, draw, report
from roma.workload.arrivals import Process

RUNG = Rung(0.02, 1, 3.0, 10.0, Process.POISSON)


def test_each_model_promise_and_process_has_one_rung():
    rungs = draw(11)
    assert len(rungs) == len(set(rungs)) == 63
    assert rungs == draw(11) != draw(12)
    assert {r.rate for seed in range(20) for r in draw(seed)} == set(ladder.RATES)
    assert not any((r.cost, r.rate) == ladder.TOO_MUCH for seed in range(20) for r in draw(seed))


@pytest.mark.parametrize("rate", ladder.RATES)
def test_runs_are_long_enough(rate):
    rung = replace(RUNG, rate=rate)
    assert rung.duration >= 600
    assert rung.duration * rate >= 2500


def test_ours_is_a_file_of_models_and_workers():
    ours, constant = RUNG.config(), RUNG.config(0.5)
    for section in (ours.control, ours.scheduling, ours.gateway, constant.scheduling):
        assert section.model_fields_set == set()
    assert constant.control.model_fields_set == {"law"}
    assert ours.models["m"].cpu.model_fields_set == {"threads"}
    assert ours.models["m"].sla == constant.models["m"].sla
    assert constant.control.cfs_burst == ours.control.cfs_burst


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(ladder, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(ladder, "LEAST_REQUESTS", 100)


@pytest.mark.usefixtures("short")
def test_the_constant_keeps_the_promise_and_the_one_below_does_not():
    found = climb((RUNG, (1, 2)))
    assert found.constant.share <= 0.02
    assert ladder._runs(RUNG, (1, 2), found.cores / ladder.STEP).share > 0.02
    assert found.constant.core_seconds == pytest.approx(2 * 60 * found.cores, rel=0.1)
    assert found.constant.requests == found.ours.requests
    assert found.ratio == found.ours.core_seconds / found.constant.core_seconds


@pytest.mark.usefixtures("short")
def test_a_promise_that_no_constant_keeps_has_no_yardstick():
    """Within 0.9 of the service nobody can answer."""
    found = climb((replace(RUNG, services=0.9), (1,)))
    assert (found.cores, found.constant, found.ratio) == (None, None, None)


def runs(late, core_seconds):
    return Runs((late,) * 5, (1000,) * 5, core_seconds)


def climbs(late=15, ratio=1.0):
    steady = Climb(RUNG, runs(late, 100 * ratio), 1.0, runs(20, 100))
    bursty = replace(steady, rung=replace(RUNG, process=Process.MMPP, rate=50.0))
    sparse = replace(steady, rung=replace(RUNG, process=Process.MMPP, rate=2.0))
    hopeless = Climb(replace(RUNG, services=1.5), runs(900, 1.0), None, None)
    return [steady, bursty, sparse, hopeless]


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (climbs(ratio=0.8), [True] * 6),
        (climbs(ratio=1.0), [True, True, True, True, False, True]),
        (climbs(ratio=1.2), [True, True, False, True, False, True]),
        (climbs(ratio=1.3), [True, True, False, False, False, False]),
        (climbs(late=25, ratio=0.8), [False, True, True, True, True, True]),
        (climbs(late=35, ratio=0.8), [False, False, True, True, True, True]),
    ],
)
def test_what_is_reached(found, reached):
    """Late shares; runs beyond 3 %; steady in the mean and at worst; MMPP dense and others."""
    checks = [check for _, checks in report(found) for check in checks]
    assert [check.holds for check in checks] == reached
    assert all(check.is_aim for check in checks)


def test_a_rung_without_a_yardstick_is_shown_and_not_counted():
    (shown, _), (cost, _) = report(climbs())
    assert [row[-1] for row in shown.rows] == [1.0, 1.0, 1.0, None]
    assert [row[1] for row in cost.rows] == [1, 1, 1]
