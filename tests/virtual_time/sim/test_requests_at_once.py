"""Requests that come many at once: the law keeps the promise, near the cost of a constant."""

import pytest

from roma.lab.experiments.ladder import Rung
from roma.lab.sim.simulation import Simulation
from roma.workload.arrivals import Process


@pytest.mark.parametrize(
    ("cost", "threads", "services", "rate", "size", "constant", "most"),
    [(0.0108, 4, 20.0, 25.0, 10, 1.0, 2.2), (0.02, 1, 50.0, 20.0, 30, 1.1, 1.0)],
)
def test_they_are_in_time(cost, threads, services, rate, size, constant, most):
    rung = Rung(cost, threads, services, rate, Process.POISSON, size)
    ours = Simulation(rung.scenario(1)).run()
    theirs = Simulation(rung.scenario(1, constant)).run()
    assert ours.late_share <= 0.02
    assert ours.core_seconds <= most * theirs.core_seconds
    assert theirs.late_share > 0.01
