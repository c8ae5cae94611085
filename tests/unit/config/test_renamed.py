"""Old names in roma.yaml: one line each that has the new one."""

import pytest

from roma.config import renamed, schema
from tests.support.roma_yaml import faults

MODEL = "models: {m: {path: models/m, sla: {response_time: 0.1}}}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gateway: {workers: 2}", "gateway.workers: is called gateway.processes since 0.2"),
        ("gateway: {worker_port: 1}", "gateway.worker_port: is called gateway.process_port since"),
        ("control: {story: s}", "control.story: is called control.decision_log since 0.2"),
        (
            "scheduling: {gpu: advantage}",
            "scheduling.gpu = advantage: is called gpu_savings_first since 0.2",
        ),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(text, line):
    assert faults(MODEL + text)[0].startswith(f"roma.yaml: {line}")


def test_every_old_name_is_told_at_once():
    text = MODEL + "gateway: {workers: 2, worker_port: 3}\ncontrol: {story: s}\n"
    assert len(faults(text)) == 3


def test_new_names_are_keys_of_the_schema():
    for new in renamed.KEYS.values():
        section, key = new.split(".")
        fields = schema.Config.model_fields[section].annotation.model_fields
        assert key in fields


@pytest.mark.parametrize("text", ["gateway: 3", "control: [story]", "scheduling:"])
def test_a_section_of_another_form_is_left_to_validation(text):
    found = faults(MODEL + text)
    assert found[0].startswith("roma.yaml: ")
    assert not any("is called" in fault for fault in found)
