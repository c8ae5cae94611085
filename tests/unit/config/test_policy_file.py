"""Learned policies in roma.yaml: read, checked, refused."""

import json

import pytest
import yaml

from dispatcher.assembly import build_core
from roma.config import policy_file, schema
from roma.deploy import config_snapshot
from roma.domain.errors import ConfigError
from tests.support.policy import data, policy

VARIANTS = {"good": {"accuracy": 1}, "fast": {"accuracy": 0.5}}
MODEL = {"sla": {"response_time": 1, "statistic": "each", "deadline": 2}, "variants": VARIANTS}
GPU = {"actions": "x:1", "device": "gpu"}
LEARNED = {"gpu": "qos-rl", "quality": {"policy": "policy.json"}}


def load(tmp_path, *, found=None, text=None, scheduling=LEARNED, models=None):
    (tmp_path / "policy.json").write_text(text or json.dumps(found or data()))
    worker = {"cores": 2, "backend": "static", "executables": [GPU]}
    file = tmp_path / "roma.yaml"
    told = {"models": models or {"m": MODEL}, "workers": [worker], "scheduling": scheduling}
    file.write_text(yaml.safe_dump(told))
    return schema.load(file)


def test_a_policy_reaches_its_scheduler_from_wherever_programs_are_started(tmp_path):
    loaded = load(tmp_path)
    assert build_core(loaded).policies.state.learned == policy()
    again = schema.Config.model_validate(config_snapshot.plain(loaded))
    assert again.scheduling.quality.policy == tmp_path / "policy.json"


def test_what_is_written_is_what_is_read(tmp_path):
    policy_file.save(policy(), tmp_path / "policy.json")
    assert policy_file.load(tmp_path / "policy.json") == policy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"policy.json: format = 2: must be 1$"),
        (
            {"variants": [{"name": "good", "accuracy": 1}, {"name": "fast", "accuracy": 0.6}]},
            r"policy.json: variants = good \(1\), fast \(0.6\): must be good \(1\), fast \(0.5\)$",
        ),
        ({"bin": 0.1}, r"bin = 0.1: must be scheduling.quality.bin \(0.2\)"),
        ({"utility": "step"}, r"utility = step: must be scheduling.quality.utility \(linear\)"),
        ({"mean": [float("nan")] * 17}, r"policy.json: mean.0 = nan: input should be a finite"),
        ({"mean": [0.0] * 16}, r"policy.json: mean = 16 numbers: must be 17$"),
        ({"scale": [0.0] * 17}, r"scale = 0.0: must be > 0"),
        ({"hidden": {"weights": [[0.0]] * 17, "bias": [0, 0]}}, r"hidden.weights.0 = 1 numbers"),
        ({"actions": [{"batch": 1, "variant": "other"}]}, r"actions.0.variant = other: must be on"),
        ({"actions": [{"batch": 1}]}, r"actions.0.variant = None: must be one of good, fast"),
        ({"weights": 1}, r"weights = 1: unknown key"),
        ({"wait": True}, r"policy.json: wait = true: must be a value, not true or false"),
    ],
)
def test_a_policy_that_does_not_fit_is_named_with_its_bound(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, found=data(**changes))


def test_variants_of_another_name_are_another_policys(tmp_path):
    models = {"m": {**MODEL, "variants": {"best": {"accuracy": 1}, "fast": {"accuracy": 0.5}}}}
    with pytest.raises(ConfigError, match=r"good \(1\), fast \(0.5\): must be best \(1\), fast"):
        load(tmp_path, models=models)


@pytest.mark.parametrize("text", [json.dumps(data())[:-200], "[1", "[]", "{}", "[" * 100_000])
def test_a_file_that_is_no_policy_is_one_line(tmp_path, text):
    with pytest.raises(ConfigError, match=r"policy.json: (not valid JSON|format = None)") as found:
        load(tmp_path, text=text)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("scheduling", "models", "message"),
    [
        ({"gpu": "qos-rl"}, None, "scheduling.quality.policy = None: must be set where gpu is"),
        (
            {"gpu": "qos", "quality": {"policy": "policy.json"}},
            None,
            "scheduling.quality.policy = policy.json: must be absent where gpu is qos",
        ),
        (LEARNED, {"m": MODEL, "n": {"sla": MODEL["sla"]}}, "models = 2: must be exactly one"),
    ],
)
def test_a_policy_is_for_one_model_and_for_qos_rl(tmp_path, scheduling, models, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, scheduling=scheduling, models=models)
