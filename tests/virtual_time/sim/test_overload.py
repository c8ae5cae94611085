"""More than a model can do: what is answered in time, by defaults, with every request counted."""

import pytest

from roma.config.schema import Config
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

CORES, COST = 2.0, 0.02
CAPACITY = CORES / COST


def run(load, *, services=5.0, noise=0.0, duration=60.0, seed=1, step=60, **sla):
    """Simulate a model that is promised `services` times what one request takes on a core."""
    file = {
        "models": {"m": {"path": "m", "sla": {"response_time": services * COST, **sla}}},
        "workers": [{"name": "w", "cores": CORES}],
        "plant": {
            "duration": duration,
            "models": {
                "m": {"cost": COST, "noise": noise, "load": {"profile": load, "step": step}}
            },
        },
    }
    return Simulation(from_config(Config.model_validate(file), seed=seed), record=True).run()


def in_time(result):
    """In-time answers per second."""
    (model,) = result.models
    return (model.answered - model.late) / result.seconds


@pytest.mark.long
@pytest.mark.parametrize("times", [1.1, 1.3, 2, 3, 10])
@pytest.mark.parametrize("services", [5.0, 12.5])
def test_an_overloaded_model_answers_in_time_what_it_can(times, services):
    kept = [
        in_time(run(times * CAPACITY, services=services, noise=0.1, duration=30, seed=seed))
        for seed in (1, 2, 3)
    ]
    assert sum(kept) / len(kept) >= 0.9 * CAPACITY


@pytest.mark.long
def test_a_promise_on_the_mean_still_queues_up_to_its_deadline():
    """Without a budget the deadline bounds the queue, and answers between the two are late."""
    assert in_time(run(2 * CAPACITY, statistic="mean")) < 0.1 * CAPACITY


@pytest.mark.long
def test_the_cores_are_given_back_after_an_overload():
    calm, flood = f"{0.3 * CAPACITY:g}", f"{3 * CAPACITY:g}"
    result = run(f"{calm}-{flood}-{calm}-{calm}", step=60, duration=240)
    before, after = (
        sum(s.applied for s in result.samples if start <= s.time < start + 60) for start in (0, 180)
    )
    assert 0.7 * before <= after <= 1.1 * before


def test_several_gateway_processes_are_simulated_as_the_one_dispatcher_that_has_all_requests():
    """Bursts from silence: with a quarter of the slots that may be granted many were refused."""
    file = {
        "models": {"m": {"path": "m", "sla": {"response_time": 0.1}, "profile": {"cost": COST}}},
        "workers": [{"name": "w", "cores": 4}],
        "plant": {"duration": 60, "models": {"m": {"load": {"on_off": [150, 3, 27]}}}},
    }
    one, four = (
        Simulation(from_config(Config.model_validate(file | {"gateway": {"processes": n}}))).run()
        for n in (1, 4)
    )
    assert four == one
