"""The promise in roma.yaml: budgets, statistics, weights, and what `config check` says of minima."""

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli import changed_defaults
from roma.cli.app import app
from roma.config import schema
from roma.domain.errors import ConfigError
from roma.domain.model import Statistic
from supervisor.assembly import managed


def parsed(sla=None, *, cores=2, control=None, **models):
    models = models or {"m": {}}
    for name, model in models.items():
        model.setdefault("path", name)
        model.setdefault("sla", sla or {"response_time": 0.5})
    file = {
        "models": models,
        "workers": [{"name": "w", "cores": cores}],
        "control": control or {},
    }
    return schema.parse(yaml.safe_dump(file)), yaml.safe_dump(file)


@pytest.mark.parametrize(
    ("sla", "budget", "statistic", "set_point", "deadline"),
    [
        ({}, 0.02, Statistic.P99, 0.25, 1.0),
        ({"budget": 0.03}, 0.03, Statistic.P95, 0.25, 1.0),
        ({"budget": 0.5, "deadline": 0.7}, 0.5, Statistic.P95, 0.25, 0.7),
        ({"statistic": "p95"}, 0.05, Statistic.P95, 0.25, 1.0),
        ({"statistic": "p99"}, 0.01, Statistic.P99, 0.25, 1.0),
        ({"statistic": "each"}, 0.001, Statistic.EACH, 0.4, 0.5),
        ({"statistic": "mean"}, None, Statistic.MEAN, 0.4, 1.0),
        ({"statistic": "mean", "alpha": 1}, None, Statistic.MEAN, 0.5, 1.0),
    ],
)
def test_what_a_promise_means(sla, budget, statistic, set_point, deadline):
    (spec,) = parsed({"response_time": 0.5, **sla})[0].model_specs
    assert (spec.sla.budget, spec.sla.statistic) == (budget, statistic)
    assert (spec.sla.set_point, spec.deadline) == (set_point, deadline)


@pytest.mark.parametrize(
    ("sla", "fault"),
    [
        ({"budget": 0.1, "statistic": "p95"}, "budget = 0.1: must be absent where statistic = p95"),
        ({"alpha": 0.5}, "alpha = 0.5: must be absent where statistic is absent: only mean has it"),
        (
            {"alpha": 0.5, "statistic": "p99"},
            "alpha = 0.5: must be absent where statistic = p99: only mean has it",
        ),
        ({"budget": 0}, "budget = 0: input should be greater than or equal to 0.000001"),
        ({"budget": 0.6}, "budget = 0.6: input should be less than or equal to 0.5"),
    ],
)
def test_keys_that_contradict_each_other_are_one_line_with_both(sla, fault):
    with pytest.raises(ConfigError) as error:
        parsed({"response_time": 0.5, **sla})
    assert str(error.value) == f"roma.yaml: models.m.sla.{fault}"


def test_weights_and_idle_minima_reach_the_supervisor():
    law = {"law": "pi"}  # late_share knows by itself what it keeps
    loaded, _ = parsed(control=law, a={"weight": 3}, b={"cpu": {"min": 0.2}})
    a, b = managed(loaded, loaded.workers[0])
    assert (a.weight, a.minimum, a.idles_by_cost) == (3.0, 0.1, True)
    assert (b.weight, b.minimum, b.idles_by_cost) == (1.0, 0.2, False)


def test_what_gpus_serve_keeps_no_idle_cores():
    file = """
models: {m: {sla: {response_time: 0.5}}}
workers:
  - backend: static
    cores: 2
    executables:
      - {url: 'http://127.0.0.1:1', model: m, cgroup: x}
      - {url: 'http://127.0.0.1:2', device: gpu}
"""
    loaded = schema.parse(file)
    (only,) = managed(loaded, loaded.workers[0])
    assert not only.idles_by_cost


BIG = {"profile": {"cost": 0.25}}


@pytest.mark.parametrize(
    ("cores", "models", "named"),
    [
        # Of 0.42 cores the bucket has 0.083 core-s, and 0.4 s bring the rest of 0.25.
        (2, {"big": BIG}, ""),
        (0.9, {"big": BIG, "small": {}}, ""),
        (0.6, {"big": BIG, "other": BIG}, "big@w 0.42, other@w 0.42"),
        (0.4, {"big": BIG}, "big@w 0.42"),
        (0.4, {"big": {**BIG, "cpu": {"min": 0.1, "initial": 0.1}}}, ""),  # who says so knows it
    ],
)
def test_config_check_names_who_cannot_answer_in_time_after_silence(tmp_path, cores, models, named):
    models = {
        name: {"cpu": {"initial": 0.1}, **model, "path": str(tmp_path)}
        for name, model in models.items()
    }
    _, text = parsed(cores=cores, **models)
    file = tmp_path / "roma.yaml"
    file.write_text(text)
    shown = CliRunner().invoke(app, ["config", "check", str(file)]).stdout
    note = f"{file}: note: worker w lacks the cores with which one request of each model is "
    assert (f"{note}in time after silence: needed are {named}" in shown) == bool(named)
    assert shown.startswith(f"{file}: ok: ")


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        ({"profile": {"cost": 0.9}}, "0.9"),
        ({"profile": {"cost": 0.9}, "cpu": {"threads": 2}}, ""),
        ({"profile": {"cost": 0.9, "parallelism": 3, "overhead": 0.3}}, "0.6"),
        ({"profile": {"cost": 0.1}}, ""),
        ({}, ""),
    ],
)
def test_config_check_names_a_promise_that_no_cores_can_keep(tmp_path, model, seconds):
    _, text = parsed(cores=64, m={**model, "path": str(tmp_path)})
    file = tmp_path / "roma.yaml"
    file.write_text(text)
    shown = CliRunner().invoke(app, ["config", "check", str(file)]).stdout
    told = f"models.m.sla.response_time = 0.5: one request takes {seconds} s when it is alone: no "
    assert (told in shown) == bool(seconds)
    assert ("when it is alone" in shown) == bool(seconds)
    assert "needed are" not in shown


def test_a_models_budget_can_be_added(tmp_path):
    _, text = parsed(m={"path": str(tmp_path)})
    file = tmp_path / "roma.yaml"
    file.write_text(text)
    (tmp_path / "n" / "1").mkdir(parents=True)
    asked = f"models add {file} n --path {tmp_path / 'n'} --response-time 0.2 --budget 0.1 --wait 0"
    done = CliRunner().invoke(app, asked.split())
    assert done.exit_code == 0, done.output
    assert schema.load(file).models["n"].sla.promise.budget == 0.1


SET = {"cfs_burst": 1, "law": "pi", "period": 1}


def notes(control=SET, **arguments):
    """The changed defaults that have an effect on a file, by their first words."""
    loaded, _ = parsed(control=control, **arguments)
    return [note.partition(":")[0] for note in changed_defaults.notes(loaded)]


def test_config_check_names_the_changed_defaults_that_have_an_effect():
    mean, p95 = ({"response_time": 1, "statistic": s} for s in ("mean", "p95"))
    assert notes(m={"sla": mean}) == []
    assert notes(m={"sla": p95}) == ["admission of m"]
    assert notes(m={}) == ["sla.budget of m", "admission of m"]
    assert notes(m={"sla": mean, **BIG}) == ["cpu.min, idle"]
    assert notes(m={"sla": mean, **BIG, "cpu": {"min": 0.1}}) == []
    assert notes(m={"sla": mean}, n={"sla": mean}) == ["control.sharing on w"]
    proportional = {**SET, "sharing": "proportional", "cfs_burst": 0}
    assert notes(control=proportional, m={"sla": mean}, n={"sla": mean}) == []
    changed = ["cpu.min, idle, of m@w", "control.law", "control.period", "control.cfs_burst"]
    assert notes(control={}, m={"sla": mean}) == changed
    assert notes(control={}, m={"sla": mean, "cpu": {"min": 0.1}}) == changed[1:]
    assert notes(control={"law": "pi"}, m={"sla": mean}) == ["control.cfs_burst"]


GPU = """
control: {law: pi}
models: {m: {path: m, sla: {response_time: 1, statistic: mean}}}
workers:
  - {name: a, backend: docker, cores: 2, gpus: 1}
  - {name: b, backend: docker, cores: 2, base_port: 8700}
"""


def test_config_check_names_the_changed_policies_where_there_is_a_choice():
    alone = GPU.replace("gpus: 1", "gpus: 0")
    found = [
        [note for note in changed_defaults.notes(schema.parse(text)) if "scheduling" in note]
        for text in (GPU, alone, GPU + "scheduling: {gpu: edf, cpu: balance, spill: 0}")
    ]
    cpu = "cpu balance (it was round_robin)"
    all_of_them = f"gpu gpu_savings_first (it was roma), {cpu}, spill 0.2 (it was 0)"
    assert found == [[f"scheduling: {all_of_them}"], [f"scheduling: {cpu}"], []]
