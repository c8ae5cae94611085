"""Defaults that follow from the law and the backend: control periods and idle minima."""

import pytest
import yaml

from dispatcher.assembly import build_core
from roma.config import schema
from roma.config.placement import executables
from roma.domain.errors import ConfigError

STATIC = {
    "backend": "static",
    "executables": [{"url": "http://127.0.0.1:1", "model": "m", "cgroup": "x"}],
}
BACKENDS = {"process": {}, "static": STATIC, "docker": {"backend": "docker"}}


def parsed(*workers, **control):
    file = {
        "models": {"m": {"path": "m", "sla": {"response_time": 0.5}}},
        "workers": [
            {"name": f"w{i}", "cores": 2, "base_port": 8600 + 100 * i, **worker}
            for i, worker in enumerate(workers)
        ],
        "control": control,
    }
    return schema.parse(yaml.safe_dump(file))


def periods(*workers, **control):
    found = parsed(*workers, **control)
    return [found.period(worker) for worker in found.workers]


def test_the_default_is_short_where_a_quota_is_a_file():
    workers = [BACKENDS[name] for name in ("process", "static", "docker")]
    assert periods(*workers) == [0.2, 0.2, 1.0]


@pytest.mark.parametrize("law", ["pi", "paper", "rules", "static", "usage", "captain"])
def test_other_laws_have_gains_for_a_second(law):
    assert periods({}, law=law) == [1.0]


def test_the_key_of_a_worker_wins():
    docker = BACKENDS["docker"]
    assert periods({}, docker, {"period": 0.3}, period=0.5) == [0.5, 0.5, 0.3]
    assert periods({}, {**docker, "period": 0.4}) == [0.2, 0.4]


@pytest.mark.parametrize(("law", "early"), [("late_share", True), ("pi", False)])
def test_periods_end_early_under_a_law_that_takes_periods_of_any_length(law, early):
    found = parsed({}, law=law)
    assert found.decides_early is early
    assert build_core(found)._grace == (found.reaction if early else 0.0)


def test_the_window_is_the_longest_period_and_long_enough_to_say_something():
    docker = BACKENDS["docker"]
    assert parsed({}, docker).window == 1.0
    assert parsed({}).window == 1.0
    assert parsed({}, {"period": 2}).window == 2.0
    assert parsed({}, law="pi", period=0.2).window == 0.2
    assert parsed({}, docker, window=0.3).window == 0.3


def test_the_least_that_an_idle_model_keeps():
    assert parsed({}).minimum("m") == 0.02
    assert parsed({}, law="pi").minimum("m") == 0.1
    # Of a shorter quota period a millisecond is more.
    assert parsed({}, cfs_period=0.02).minimum("m") == 0.05
    assert [e.min_cores for e in executables(parsed({}, cfs_period=0.02))] == [0.05]


@pytest.mark.parametrize("period", [0.09, 2.1])
def test_bounds(period):
    with pytest.raises(ConfigError, match=rf"workers\.0\.period = {period}: input should be "):
        parsed({"period": period})


def test_a_quota_outlasts_its_period():
    """The kernel grants a whole one at each change: a second's would bound nothing."""
    fault = r"control\.cfs_period = 1\.0: must be ≤ the control period of worker w1 \(0\.2\)"
    with pytest.raises(ConfigError, match=fault):
        parsed(BACKENDS["docker"], {}, cfs_period=1)
    assert periods(BACKENDS["docker"], {"period": 1}, cfs_period=1) == [1.0, 1.0]
    assert periods({}, law="pi", cfs_period=1) == [1.0]
    assert periods({}, cfs_period=0.2) == [0.2]
