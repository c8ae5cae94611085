"""`roma demo` as a user starts it: what it refuses in one line, before it builds a model."""

import pytest

from roma.tools.demo import models


@pytest.mark.parametrize(
    ("option", "place", "line"),
    [
        ("--cache", "file", "--cache = {}: cannot be written: File exists"),
        ("--cache", "file/below", "--cache = {}: cannot be written: Not a directory"),
        ("--picture", ".", "--picture = {}: must be a file"),
        ("--picture", "file/below/x.svg", "--picture = {}: cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_written_is_said_first(roma, monkeypatch, tmp_path, option, place, line):
    monkeypatch.setattr(models, "prepare", lambda *_, **__: pytest.fail("it builds"))
    (tmp_path / "file").touch()
    path = tmp_path / place
    named = path.parent if path.suffix else path
    done = roma("demo", "--cache", tmp_path / "cache", option, path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == line.format(named) + "\n"


def test_an_unknown_law_is_said_first(roma, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "prepare", lambda *_, **__: pytest.fail("it builds"))
    done = roma("demo", "--cache", tmp_path, "--law", "rulez")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("--law = rulez: must be one of captain, late_share, ")
