"""Old names in roma.yaml: one line each that has the new one."""

import pytest

from roma.config import renamed, schema
from roma.domain.errors import ConfigError

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
    with pytest.raises(ConfigError, match=f"roma.yaml: {line}"):
        schema.parse(MODEL + text)


def test_every_old_name_is_told_at_once():
    with pytest.raises(ConfigError) as error:
        schema.parse(MODEL + "gateway: {workers: 2, worker_port: 3}\ncontrol: {story: s}\n")
    assert len(str(error.value).splitlines()) == 3


def test_new_names_are_keys_of_the_schema():
    for new in renamed.KEYS.values():
        section, key = new.split(".")
        fields = schema.Config.model_fields[section].annotation.model_fields
        assert key in fields


@pytest.mark.parametrize("text", ["gateway: 3", "control: [story]", "scheduling:"])
def test_a_section_of_another_form_is_left_to_validation(text):
    with pytest.raises(ConfigError, match=r"roma\.yaml: ") as error:
        schema.parse(MODEL + text)
    assert "is called" not in str(error.value)
