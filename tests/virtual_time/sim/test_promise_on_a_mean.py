"""`statistic: mean`: the law closes its loop on the mean, at the set point."""

import pytest

from roma.config.schema import Config
from roma.lab.experiments.workloads import one_worker
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

COST = 0.02
PROMISE = 1.3 * COST


def run(**sla):
    """Twenty requests a second of 20 core-ms each, which may wait for six milliseconds more."""
    models = {"m": {"sla": {"response_time": PROMISE, **sla}, "cpu": {"threads": 1}}}
    plant = {"m": {"cost": COST, "noise": 0.3, "load": {"profile": "20"}}}
    file = one_worker(models, plant, cores=16, duration=300)
    return Simulation(from_config(Config.model_validate(file), seed=1)).run()


@pytest.mark.parametrize("alpha", [0.8, 0.9])
def test_the_mean_becomes_its_set_point(alpha):
    (model,) = run(statistic="mean", alpha=alpha).models
    assert 0.88 < model.mean / (alpha * PROMISE) < 1.02


def test_more_of_the_promise_costs_less():
    """A late share of 2 % needs more cores than either."""
    spent = [
        run(**sla).core_seconds
        for sla in ({"statistic": "mean", "alpha": 0.9}, {"statistic": "mean", "alpha": 0.8}, {})
    ]
    assert spent == sorted(spent)
    assert spent[0] < 0.9 * spent[1]
