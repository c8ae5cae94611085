"""`roma load` refuses in one line, before anything is sent or shown."""

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.tools.load import LoadInputError


@pytest.fixture
def load(tmp_path):
    body = tmp_path / "body.json"
    body.write_text('{"instances": [1]}')
    options = ["--body", str(body), "--profile", "5", "--step", "1"]
    return lambda *more: CliRunner().invoke(app, ["load", *more, *options])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("",), "model = : must not be empty"),
        (("m", "--timeout", "0"), "timeout 0 s: must be finite and > 0"),
        (("m", "--url", "ftp://x"), "url 'ftp://x': must be http://"),
    ],
)
def test_what_is_refused_shows_no_progress(load, arguments, line):
    done = load(*arguments)
    assert isinstance(done.exception, LoadInputError)
    assert str(done.exception).startswith(line)
    assert done.output == ""


def test_a_seed_is_not_negative(load):
    done = load("m", "--seed", "-1")
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == 2
