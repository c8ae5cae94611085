"""Isolation: a neighbour's load, failures and idleness do not make other models late."""

from dataclasses import replace

import pytest

from roma.config.schema import Config
from roma.lab.sim.scenario import ExecutorFault, from_config
from roma.lab.sim.simulation import Simulation
from supervisor.executables import Apply

CORES = 2.0
CHEAP = {"cost": 0.01, "noise": 0.1, "load": {"profile": "60"}}  # 0.6 of 2 cores
"""A model that needs less than a fair share, 1 core."""


def run(
    neighbour=None,
    *,
    plant=None,
    cheap=CHEAP,
    seed=1,
    faults=(),
    duration=120.0,
    trace=None,
    **control,
):
    """The cheap model, beside a neighbour or alone; its late share, and the whole result."""
    models = {"cheap": {"path": "a", "sla": {"response_time": 0.1}}}
    costs = {"cheap": cheap}
    if neighbour is not None:
        models["other"] = {"path": "b", **neighbour}
        costs["other"] = plant
    file = {
        "models": models,
        "workers": [{"name": "w", "cores": CORES}],
        "control": control,
        "plant": {"duration": duration, "models": costs},
    }
    scenario = from_config(Config.model_validate(file), seed=seed)
    result = Simulation(replace(scenario, faults=tuple(faults)), trace=trace).run()
    first = result.models[0]
    return first.violations / first.arrivals, result


HEAVY = {"sla": {"response_time": 0.5}}


@pytest.mark.long
@pytest.mark.parametrize("times", [2, 5])
def test_a_heavy_neighbour_costs_who_needs_less_than_a_fair_share_nothing(times):
    flood = {"cost": 0.05, "noise": 0.1, "load": {"profile": f"{times * CORES / 0.05:g}"}}
    for seed in (1, 2, 3):
        alone, _ = run(seed=seed)
        beside, _ = run(HEAVY, plant=flood, seed=seed)
        assert beside - alone <= 0.005


def test_the_papers_rule_lets_the_heavy_neighbour_take():
    flood = {"cost": 0.05, "noise": 0.1, "load": {"profile": f"{5 * CORES / 0.05:g}"}}
    control = {"sharing": "proportional", "law": "pi"}
    assert run(HEAVY, plant=flood, **control)[0] > 0.05


def test_a_neighbour_that_is_down_holds_its_minimum_alone():
    down = ExecutorFault(10.0, "other@w", 1000.0)
    quiet = {"cost": 0.05, "load": {"profile": "0"}}
    applied = []
    run(HEAVY, plant=quiet, faults=[down], trace=lambda now, command: applied.append(command))
    cores = [c.cores for c in applied if isinstance(c, Apply) and c.executable == "other@w"]
    assert max(cores) > 0.02
    assert cores[-1] == 0.02


def test_models_that_nobody_asks_take_no_cores_from_a_busy_one_at_the_start():
    """Three quarters of the worker, while three others still hold what they loaded with."""
    names = ("busy", "a", "b", "c")
    file = {
        "models": {name: {"path": name, "sla": {"response_time": 0.5}} for name in names},
        "workers": [{"name": "w", "cores": 4}],
        "plant": {
            "duration": 10,
            "models": {name: {"cost": 0.05, "noise": 0.3} for name in names}
            | {"busy": {"cost": 0.05, "noise": 0.3, "load": {"profile": "60"}}},
        },
    }
    result = Simulation(from_config(Config.model_validate(file), seed=1)).run()
    assert result.models[0].violations <= 0.02 * result.models[0].arrivals


@pytest.mark.long
def test_a_rare_request_to_a_big_model_is_in_time():
    """0.25 core-seconds within 0.6 s, after a minute of silence: 0.1 cores would take 2.5 s."""
    big = {"sla": {"response_time": 0.6}, "profile": {"cost": 0.25}}
    rare = {"noise": 0.1, "load": {"on_off": [1.0, 1.0, 60.0], "process": "paced"}}
    quiet = {**CHEAP, "load": {"profile": "6"}}
    late = sent = 0
    for seed in range(1, 7):
        _, result = run(big, plant=rare, cheap=quiet, seed=seed, duration=1200.0)
        late, sent = late + result.models[1].violations, sent + result.models[1].arrivals
    assert sent >= 60
    assert late <= 0.02 * sent
