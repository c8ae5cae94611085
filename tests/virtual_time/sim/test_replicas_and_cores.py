"""An autoscaler of replicas above the control of cores: the two loops do not fight.

The autoscaler is HPA's rule (kubernetes.io, Horizontal Pod Autoscaling, "Algorithm details") on an
external metric: replicas times metric over target, rounded up, and nothing within a tolerance. The
metric is the demand over the cores that the replicas could have. HPA waits minutes between two
decisions, so each number of replicas is simulated until it is steady.
"""

import functools
import math

import pytest

from roma.config.schema import Config
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

TARGET = 0.7
TOLERANCE = 0.1
MOST = 6
SECONDS = 120


def ratios(replicas, load, cost, sla, most):
    """Return demand over available cores, period by period; `load` as in `plant`."""
    node = {"cores": 2, "period": 1}
    file = {
        "models": {"m": {"path": "m", "sla": {"response_time": sla}, "cpu": {"max": most}}},
        "workers": [
            {"name": f"node-{i}", "base_port": 8600 + 10 * i, **node} for i in range(replicas)
        ],
        "plant": {
            "duration": SECONDS,
            "models": {"m": {"cost": cost, "noise": 0.2, "load": load}},
        },
    }
    simulation = Simulation(from_config(Config.model_validate(file), seed=1))
    seen = []

    def look(_):
        found = [s for w in simulation.workers.values() for s in w.core.status.values()]
        if all(s.available for s in found):
            seen.append(sum(s.demand for s in found) / sum(s.available for s in found))

    simulation.run(look)
    return seen


@functools.cache
def ratio(replicas, load, cost, sla, most=1.0):
    """Return demand over available cores once steady; `load` in cores of one replica's maximum."""
    seen = ratios(replicas, {"profile": f"{load * most / cost:g}"}, cost, sla, most)
    return sum(seen[-40:]) / 40


def desired(replicas, value):
    """Return HPA's number of replicas for a value of its metric."""
    if abs(value / TARGET - 1) <= TOLERANCE:
        return replicas
    return max(1, min(MOST, math.ceil(replicas * value / TARGET)))


@pytest.mark.long
@pytest.mark.parametrize("load", [0.2, 0.9, 1.6, 2.4])
@pytest.mark.parametrize(
    ("cost", "sla", "most"), [(0.02, 0.2, 1.0), (0.06, 0.3, 1.0), (0.02, 0.6, 0.3)]
)
def test_replicas_settle_from_below_and_from_above(load, cost, sla, most):
    settled = []
    for replicas in (1, MOST):
        path = [replicas]
        while len(path) < 8:
            path.append(desired(path[-1], ratio(path[-1], load, cost, sla, most)))
        assert len(set(path[-4:])) == 1, path  # no cycle
        settled.append(path[-1])
    assert settled[0] <= settled[1] <= settled[0] + 1, settled
    assert load <= settled[0] <= math.ceil(2.5 * load / TARGET), settled


def test_one_replica_more_is_asked_for_where_one_has_no_more_to_get():
    assert desired(1, ratio(1, 0.9, 0.01, 0.1)) > 1
    assert ratio(2, 0.9, 0.01, 0.1) < ratio(1, 0.9, 0.01, 0.1)


@pytest.mark.parametrize("replicas", [1, 2, 6])
def test_a_surge_leaves_no_demand_behind_for_slots_that_no_replica_can_have(replicas):
    """Each replica of at most 0.3 cores has one slot; with the margin of a surge, four are wanted."""
    surge = {"profile": "90-4-4-4-4-4", "step": 20}
    after = ratios(replicas, surge, 0.02, 0.6, 0.3)[-SECONDS // 2 :]
    assert max(after) < TARGET


def test_the_larger_of_two_workers_carries_what_the_smaller_one_cannot():
    """Seven of ten cores are needed, 3.5 on each; one worker has but two."""
    file = {
        "models": {"m": {"path": "m", "sla": {"response_time": 0.1}}},
        "workers": [
            {"name": "small", "cores": 2, "base_port": 8600},
            {"name": "large", "cores": 8, "base_port": 8700},
        ],
        "plant": {
            "duration": 30,
            "models": {"m": {"cost": 0.02, "noise": 0.3, "load": {"profile": "350"}}},
        },
    }
    result = Simulation(from_config(Config.model_validate(file), seed=1)).run()
    assert result.late_share <= 0.02
