"""`roma models add | remove` on files; with a running deployment: tests/system/integration/test_models_live.py."""

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema
from roma.domain.errors import ConfigError

FILE = """\
# The models of this host.
models:
  a:  # the small one
    path: models/a
    sla: {response_time: 0.5}
  b: {path: models/b, sla: {response_time: 0.5}}
  c: {path: models/c, sla: {response_time: 0.5}}
workers:
  - {name: w, cores: 2}  # two of four
gateway: {port: PORT, admin_port: 8500}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "roma.yaml"
    path.write_text(FILE.replace("PORT", "1"))  # where nobody answers
    path.chmod(0o640)
    return path


def models(command, file, *arguments):
    done = CliRunner().invoke(app, ["models", command, str(file), *arguments])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_model_is_written_with_what_was_said_and_comments_stay(file, tmp_path):
    (tmp_path / "models" / "d" / "1").mkdir(parents=True)
    said = ["--path", str(tmp_path / "models" / "d"), "--response-time", "0.2"]
    output = models("add", file, "d", *said, "--statistic", "p95", "--max", "1.5")
    assert "in force when `roma up` starts" in output
    text = file.read_text()
    for comment in ("# The models of this host.", "# the small one", "# two of four"):
        assert comment in text
    added = schema.load(file).models["d"]
    assert added.path == tmp_path / "models" / "d"
    assert "path: models/d" in text  # relative to the file, as its neighbours
    assert (added.sla.response_time, added.sla.statistic, added.cpu.max) == (0.2, "p95", 1.5)
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("made", "said"), [("", "No such file"), ("latest", "holds no version")])
def test_a_path_without_a_version_is_not_written(file, tmp_path, made, said):
    before = file.read_text()
    if made:
        (tmp_path / "models" / "d" / made).mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"models\.d\.path = .*models/d: {said}"):
        models("add", file, "d", "--path", tmp_path / "models/d", "--response-time", "0.2")
    assert file.read_text() == before


def test_the_others_keep_their_ports_when_one_goes(file, tmp_path):
    before = schema.load(file).slots
    models("remove", file, "b")
    loaded = schema.load(file)
    assert loaded.slots == {name: before[name] for name in "ac"}
    assert file.read_text().count("slot:") == 1  # only where the default would be another
    (tmp_path / "models" / "b" / "1").mkdir(parents=True)
    models("add", file, "b", "--path", str(tmp_path / "models/b"), "--response-time", "0.5")
    assert schema.load(file).slots == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a", "--path", "x", "--response-time", "1"), r"models\.a: is there already"),
        (("add", "d", "--path", "x", "--response-time", "0"), r"models\.d\.sla\.response_time = 0"),
        (("add", "d", "--response-time", "1"), r"models\.d\.path = None: must be set"),
        (
            ("add", "d", "--volume", "v", "--response-time", "1"),
            r"models\.d\.volume = v: .* absent",
        ),
        (("add", "d/e", "--path", "x", "--response-time", "1"), r"models\.d/e"),
        (("remove", "z"), r"models\.z: must be one of a, b, c"),
    ],
)
def test_what_would_be_wrong_is_named_and_not_written(file, arguments, message):
    command, model, *rest = arguments
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=message) as error:
        models(command, file, model, *rest)
    assert str(error.value).startswith(str(file))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["roma.yaml"]


def test_the_last_model_stays(file):
    for model in "ab":
        models("remove", file, model)
    with pytest.raises(ConfigError, match="models"):
        models("remove", file, "c")
    assert list(schema.load(file).models) == ["c"]
