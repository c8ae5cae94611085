"""What roma.yaml takes from other files: profiles of `roma profile`, gains of `roma design tune`."""

import pytest
import yaml

from roma.config import schema
from roma.domain.errors import ConfigError
from supervisor.assembly import build_core

BASE = {
    "models": {"m": {"path": "m", "sla": {"response_time": 0.5}}},
    "workers": [{"cores": 2}],
}
PROFILE = {
    "machine": {"cpu": "a cpu", "cores": 2, "measured": "2026-01-01T00:00:00+00:00"},
    "models": {"m": {"cost": 0.02, "noise": 0.1}, "other": {"cost": 1}},
}
GAINS = {"law": "pi", "gains": {"error": "rt", "K": 0.388, "a": 0.92}, "provenance": {"q": 0.85}}


def load(tmp_path, **changes):
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(PROFILE))
    (tmp_path / "gains.yaml").write_text(yaml.safe_dump(GAINS))
    file = tmp_path / "roma.yaml"
    file.write_text(yaml.safe_dump({**BASE, **changes}))
    return schema.load(file)


def test_a_profile_reaches_the_model_and_its_supervisor(tmp_path):
    loaded = load(tmp_path, profile="profile.yaml")
    assert loaded.models["m"].profile.cost == 0.02
    (status,) = build_core(loaded, loaded.workers[0]).status.values()
    assert status.managed.cost == 0.02


def test_what_the_file_itself_says_wins_over_the_profile(tmp_path):
    models = {"m": {**BASE["models"]["m"], "profile": {"cost": 0.5}}}
    assert load(tmp_path, profile="profile.yaml", models=models).models["m"].profile.cost == 0.5


def test_without_a_profile_costs_are_learned(tmp_path):
    loaded = load(tmp_path)
    (status,) = build_core(loaded, loaded.workers[0]).status.values()
    assert status.managed.cost is None


def test_tuned_gains_are_read_and_own_gains_win(tmp_path):
    control = {"law": "pi", "gains_file": "gains.yaml", "gains": {"K": 0.2}}
    assert load(tmp_path, control=control).control.gains == {"error": "rt", "K": 0.2, "a": 0.92}


def test_gains_of_another_law_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"gains.yaml: law = pi: must be control.law \(late_share\)"
    ):
        load(tmp_path, control={"gains_file": "gains.yaml"})


def test_true_is_no_gain_in_a_file_either(tmp_path):
    (tmp_path / "true.yaml").write_text(yaml.safe_dump({"law": "pi", "gains": {"K": True}}))
    with pytest.raises(ConfigError, match=r"true.yaml: gains.K = true: must be a value, not true"):
        load(tmp_path, control={"law": "pi", "gains_file": "true.yaml"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": "none.yaml"}, "none.yaml: cannot be read"),
        ({"profile": "a\0b"}, "a path cannot contain NUL"),
        ({"control": {"gains_file": "\0"}}, "a path cannot contain NUL"),
        ({"profile": "gains.yaml"}, "gains.yaml: machine: missing"),
        ({"control": {"gains_file": "none.yaml"}}, "none.yaml: cannot be read"),
        ({"control": {"gains_file": "profile.yaml"}}, "profile.yaml: law: missing"),
    ],
)
def test_files_that_are_wrong_are_named(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **changes)


def test_trace_files_are_found_beside_the_configuration(tmp_path):
    plant = {"models": {"m": {"cost": 0.01, "load": {"trace": "t.txt"}}}}
    assert load(tmp_path, plant=plant).plant.models["m"].load.trace == tmp_path / "t.txt"


def test_gpus_of_a_docker_worker_become_executables_with_all_models(tmp_path):
    from roma.config.placement import executables

    workers = [{"name": "a", "backend": "docker", "cores": 2, "gpus": 2}]
    placed = executables(load(tmp_path, workers=workers))
    assert [e.name for e in placed] == ["m@a", "gpu0@a", "gpu1@a"]
    assert len({e.port for e in placed}) == 3
