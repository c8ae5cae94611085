"""`preset: paper`: what it fills in, and that single keys win over it."""

from pathlib import Path

import pytest
import yaml

from roma.config import schema
from roma.domain.errors import ConfigError
from roma.domain.model import Sharing, Statistic
from roma.tools.demo import plan

PAPER = {"law": "paper", "gains": {"K": 0.15, "a": 0.11}}


def parsed(sla=None, **file):
    sla = {"response_time": 0.5, **(sla or {})}
    models = {"m": {"path": "m", "sla": sla}}
    file = {"preset": "paper", "models": models, "workers": [{"cores": 2}], **file}
    return schema.parse(yaml.safe_dump(file))


def test_one_line_is_the_paper():
    found = parsed()
    scheduling, control = found.scheduling, found.control
    assert (scheduling.gpu, scheduling.cpu, scheduling.spill) == ("roma", "round_robin", 0)
    assert (control.law, control.gains) == (PAPER["law"], PAPER["gains"])
    assert found.period(found.workers[0]) == 1
    assert (control.sharing, control.cfs_burst) == (Sharing.PROPORTIONAL, 0)
    promise = found.models["m"].sla.promise
    assert (promise.statistic, promise.alpha) == (Statistic.MEAN, 0.8)


def test_single_keys_win():
    found = parsed(
        {"budget": 0.05}, scheduling={"gpu": "edf"}, control={"period": 0.5, "gains": {"K": 0.3}}
    )
    assert (found.scheduling.gpu, found.scheduling.cpu) == ("edf", "round_robin")
    assert (found.control.law, found.control.gains, found.control.period) == (
        "paper",
        {"K": 0.3},
        0.5,
    )
    assert found.models["m"].sla.promise.budget == 0.05


def test_null_is_no_choice():
    control = {"gains_file": None, "period": None, "gains": {"K": 0.3}}
    found = parsed({"budget": None, "statistic": None}, control=control)
    assert found.models["m"].sla.promise.statistic is Statistic.MEAN
    assert (found.control.gains, found.control.period) == ({"K": 0.3}, 1.0)
    assert parsed(control={"gains_file": None}).control.gains == PAPER["gains"]


def test_its_gains_are_for_its_law():
    assert parsed(control={"law": "pi"}).control.gains == {}
    assert parsed(control={"law": "paper"}).control.gains == PAPER["gains"]


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ({"preset": "papre"}, "preset = papre: input should be 'paper'"),
        ({"preset": ["paper"]}, "preset = "),
        ({"control": [1]}, "control = "),
        ({"control": None}, "control = None"),
        ({"models": {"m": None}}, "models.m = None"),
        ({"models": {"m": {"sla": 3}}}, "models.m.sla = 3"),
        ({"models": 3}, "models = 3"),
        ({"scheduling": {"gup": "roma"}}, "scheduling.gup = 'roma': unknown key"),
    ],
)
def test_faults_are_found_as_without_it(file, fault):
    with pytest.raises(ConfigError) as error:
        parsed(**file)
    assert str(error.value).startswith(f"roma.yaml: {fault}")


def test_gains_of_a_file_are_alone(tmp_path):
    (tmp_path / "gains.yaml").write_text("law: paper\ngains: {a: 0.5}\n")
    text = yaml.safe_dump(
        {
            "preset": "paper",
            "models": {"m": {"path": "m", "sla": {"response_time": 0.5}}},
            "workers": [{"cores": 2}],
            "control": {"gains_file": "gains.yaml"},
        }
    )
    (tmp_path / "roma.yaml").write_text(text)
    assert schema.load(tmp_path / "roma.yaml").control.gains == {"a": 0.5}


ROOT = Path(__file__).parents[3]
FILES = [*sorted((ROOT / "examples").glob("*.yaml")), ROOT / "compose/roma.yaml"]
SUBJECTS = {"variants.yaml": {"scheduling.gpu"}}
"""Keys of the files whose subject is another policy."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_shown_is_what_is_shipped(file):
    """Examples set no policy, law, gain, period or queue rule: they show the defaults."""
    found = schema.load(file)
    assert found.preset is None
    chosen = {f"scheduling.{key}" for key in found.scheduling.model_fields_set}
    chosen |= {f"control.{key}" for key in found.control.model_fields_set & TUNING}
    assert chosen == SUBJECTS.get(file.name, set())
    assert all(worker.period is None for worker in found.workers)
    assert all(m.cpu.in_flight is None for m in found.models.values())


TUNING = {"law", "gains", "gains_file", "period", "window", "sharing", "gamma"} | {
    "cfs_period",
    "cfs_burst",
}


def test_the_demo_is_what_is_shipped(tmp_path):
    paths = {model.name: tmp_path for model in plan.MODELS}
    for law, expected in (("late_share", set()), ("rules", {"law"})):
        file = tmp_path / "roma.yaml"
        machine = plan.DemoMachine(2.0, 0.6)
        plan.write_config(file, machine, paths, law=law, ports=(9000, 9001, 9002, 9003))
        found = schema.load(file)
        assert found.control.model_fields_set & TUNING == expected
        assert found.scheduling.model_fields_set == set()
