"""The `plant` section of roma.yaml: one clear line per fault, naming key, value and bound."""

import pytest

from roma.config import schema
from roma.domain.errors import ConfigError
from roma.lab.sim.scenario import from_config
from roma.workload.arrivals import Profile
from tests.support.roma_yaml import faults

GOOD = """
models:
  m:
    path: m
    sla: {response_time: 0.5}
workers:
  - {cores: 2}
plant:
  duration: 60
  actuation_delay: 0.1
  burst: 0.5
  usage_error: 1.5
  models:
    m: {cost: 0.02, noise: 0.1, parallelism: 2, overhead: 0.01, load: {profile: 10-20, step: 30}}
"""


def test_a_good_section_says_what_it_means():
    scenario = from_config(schema.parse(GOOD), seed=3)
    assert (scenario.duration, scenario.actuation_delay, scenario.burst) == (60, 0.1, 0.5)
    assert (scenario.usage_error, scenario.seed) == (1.5, 3)
    profile = scenario.profiles["m"]
    assert (profile.cost, profile.noise, profile.parallelism) == (0.02, 0.1, 2)
    assert list(scenario.arrivals) == ["m"]


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        ("10", [10]),
        ("0.5", [0.5]),
        ("0.0000116", [1.16e-5]),
        ("1234567", [1234567]),
        ("1-2", [1, 2]),
    ],
)
def test_a_single_rate_is_what_was_written(rate, steps):
    config = schema.parse(GOOD.replace("profile: 10-20", f"profile: {rate}"))
    load = config.plant.models["m"].load
    assert [s.rate for s in Profile.parse(load.profile, step=load.step).steps] == steps


def test_what_the_plant_says_wins_over_the_profile():
    measured = "    sla: {response_time: 0.5}\n    profile: {cost: 0.5, noise: 0.9}"
    text = GOOD.replace("    sla: {response_time: 0.5}", measured).replace("noise: 0.1, ", "")
    profile = from_config(schema.parse(text)).profiles["m"]
    assert (profile.cost, profile.noise) == (0.02, 0.9)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("duration: 60", "duration: 0", "plant.duration = 0: input should be greater than 0"),
        (
            "actuation_delay: 0.1",
            "actuation_delay: -1",
            "plant.actuation_delay = -1: input should be greater than or equal to 0",
        ),
        ("burst: 0.5", "burst: 2", "plant.burst = 2: input should be less than or equal to 1"),
        (
            "usage_error: 1.5",
            "usage_error: 0",
            "plant.usage_error = 0: input should be greater than or equal to 0.1",
        ),
        ("burst:", "brust:", "plant.brust = 0.5: unknown key"),
        (
            "    m: {cost",
            "    n: {cost",
            "plant.models.n = n: must be one of m",
        ),
        (
            "overhead: 0.01",
            "overhead: -0.01",
            "plant.models.m.overhead = -0.01: input should be greater than or equal to 0",
        ),
        (
            "parallelism: 2",
            "parallelism: 0",
            "plant.models.m.parallelism = 0: input should be greater than or equal to 0.1",
        ),
        (
            "profile: 10-20,",
            "profile: ten,",
            "plant.models.m.load.profile = ten: must be rates >= 0 joined by '-'",
        ),
        (
            "profile: 10-20,",
            "",
            "plant.models.m.load.given = none: must be exactly one of profile, on_off, trace",
        ),
        (
            "profile: 10-20,",
            "profile: '10', on_off: [1, 2, 3],",
            "plant.models.m.load.given = profile, on_off: must be exactly one of profile, on_off, trace",
        ),
        (
            "profile: 10-20,",
            "on_off: [1, 0, 3],",
            "plant.models.m.load.on_off.1 = 0: input should be greater than or equal to 0.1",
        ),
        (
            "step: 30",
            "step: 0",
            "plant.models.m.load.step = 0: input should be greater than 0",
        ),
        (
            "step: 30",
            "process: bursty",
            "plant.models.m.load.process = bursty: input should be 'poisson', 'paced' or 'mmpp'",
        ),
        (
            "profile: 10-20, step: 30",
            "trace: t.txt, process: paced",
            "plant.models.m.load.process = paced: must be absent beside trace, which has none",
        ),
        (
            "profile: 10-20,",
            "on_off: [1, 2, 3],",
            "plant.models.m.load.step = 30.0: must be absent beside on_off, which has none",
        ),
        (
            "step: 30",
            "column: t",
            "plant.models.m.load.column = t: must be absent beside profile, which has none",
        ),
    ],
)
def test_faults(old, new, line):
    assert old in GOOD
    found = faults(GOOD.replace(old, new))
    assert any(fault.startswith(f"roma.yaml: {line}") for fault in found), found


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (GOOD[GOOD.index("plant:") :], "", "plant: missing"),
        (", load: {profile: 10-20, step: 30}", "", "plant.models: no load"),
        ("cost: 0.02, ", "", "plant.models.m.cost: missing, and no `profile` has it"),
        (
            "profile: 10-20, step: 30",
            "trace: /nowhere",
            "plant.models.m.load: trace /nowhere: cannot be read: No such file",
        ),
        ("10-20, step: 30", "1e9", "plant.models.m.load: 6e+10 requests in 60 s: must be at most"),
        (
            "{cores: 2}",
            "{cores: 2, backend: docker, gpus: 1}",
            "plant.models.m.gpu_time: missing, and no `profile` has it",
        ),
        (
            "{cores: 2}",
            "{cores: 2}\n  - {name: pods, cores: 2, backend: kubernetes, node: n}",
            "workers.1.backend = kubernetes: must be process, docker or static",
        ),
    ],
)
def test_what_a_simulation_lacks_is_named(old, new, line):
    assert old in GOOD
    with pytest.raises(ConfigError) as e:
        from_config(schema.parse(GOOD.replace(old, new)))
    assert str(e.value).startswith(line)
