"""The snapshot that the launcher writes for its programs means what the file meant."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roma.config import schema, yaml_file
from roma.deploy import config_snapshot
from roma.domain.errors import LaunchError

MODELS = "models: {m: {path: /m, sla: {response_time: 0.5}}}"


def written(text, tmp_path):
    config, file = schema.parse(text), tmp_path / "run" / "roma.yaml"
    config_snapshot.write(config, file)
    return config, schema.parse(file.read_text())


@pytest.mark.parametrize(
    "text",
    [
        f"preset: paper\n{MODELS}\nworkers: [{{cores: 2}}]\n"
        "control: {law: late_share, sharing: max_min}\nscheduling: {cpu: balance}",
        MODELS.replace("m:", '"1e5":', 1) + "\nworkers: [{cores: 2}]",
        f"{MODELS}\nworkers: [{{cores: 2, backend: docker, "
        "docker: {host: 'ssh://u@h', address: 127.0.0.1}}]",
    ],
    ids=["preset", "a name like a number", "a default that is required"],
)
def test_it_is_the_configuration_that_was_accepted(text, tmp_path):
    config, again = written(text, tmp_path)
    same = {"preset": None}  # it is filled in
    assert again == config.model_copy(update=same)


def test_what_cannot_be_written_is_a_line(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(LaunchError, match=r"run/roma.yaml: cannot be written: "):
        written(f"{MODELS}\nworkers: [{{cores: 2}}]", tmp_path)


WORDS = [
    "1e5",
    "0x10",
    "0b1",
    "010",
    "08",
    "1_000",
    "1:30",
    "yes",
    "True",
    "~",
    "",
    "null",
    ".inf",
    "2020-01-01",
]


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], include_characters="\n\x85")
)


@given(
    st.one_of(st.sampled_from(WORDS), st.from_regex(r"[-+0-9.eExob_:]{1,8}", fullmatch=True), TEXTS)
)
@example("a\x85b\u2028c")
def test_a_text_is_read_back_as_a_text(text):
    assert yaml_file.read(yaml_file.dump({text: [text]}), source="dump") == {text: [text]}


@given(st.one_of(st.integers(-(10**18), 10**18), st.floats(allow_nan=False), st.booleans()))
def test_a_number_is_read_back_as_a_number(number):
    read = yaml_file.read(yaml_file.dump([number, None]), source="dump")
    assert (read, type(read[0])) == ([number, None], type(number))
