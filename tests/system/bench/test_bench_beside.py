"""`python -m bench --beside`: what it refuses, and in which order it measures."""

import contextlib
import os

import pytest

from bench import beside
from bench.beside import Figure, Round, compare


@pytest.fixture
def clone(tmp_path):
    """A checkout of which nothing was made yet."""
    root = tmp_path / "clone"
    root.mkdir()
    return root


def make(root, file):
    """Make an empty file."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def refused(capsys, *arguments):
    """Return the only line that is printed."""
    with pytest.raises(SystemExit) as ended:
        beside.run([str(argument) for argument in arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_clone_must_be_named(capsys):
    assert "--beside needs CLONE" in refused(capsys)


def test_names_are_checked_before_the_clone(capsys, tmp_path):
    line = refused(capsys, tmp_path / "missing", "ticks", "tick")
    assert line == "bench: tick: must be one of gateway, decisions, ticks"


def test_a_clone_that_is_missing_is_named_with_what_makes_it(capsys, tmp_path):
    line = refused(capsys, tmp_path / "missing")
    assert f"{tmp_path}/missing is missing: run `git clone" in line


def test_a_clone_needs_its_own_environment_and_build(capsys, clone):
    line = refused(capsys, clone)
    assert line == f"bench: {clone}/.venv/bin/python is missing: run `make wheel` in {clone}"
    make(clone, ".venv/bin/python")
    line = refused(capsys, clone)
    assert line == f"bench: {clone}/build/compiled/.built is missing: run `make wheel` in {clone}"


def test_a_build_that_is_older_than_its_sources_is_refused(capsys, clone, monkeypatch):
    monkeypatch.setattr(beside, "ROOT", clone)
    for file in (".venv/bin/python", "build/compiled/.built", "dispatcher/core.py"):
        make(clone, file)
    built = (clone / "build/compiled/.built").stat().st_mtime
    os.utime(clone / "dispatcher/core.py", (built + 1, built + 1))
    line = refused(capsys, clone)
    expected = f"{clone}/build/compiled is older than the sources: run `make wheel` in {clone}"
    assert line == f"bench: {expected}"


def figure(cost):
    """Return a figure that costs `cost(root)`."""
    return Figure("f", lambda root: contextlib.nullcontext(lambda: cost(root)))


def test_rounds_alternate_and_keep_the_sides_apart(clone):
    measured = []

    def cost(root):
        measured.append(root)
        return 1.0 if root == beside.ROOT else 2.0

    assert compare(figure(cost), clone) == [Round(ours=1.0, theirs=2.0)] * beside.ROUNDS
    assert measured[:4] == [beside.ROOT, clone, clone, beside.ROOT]


@pytest.mark.parametrize(("cost", "status"), [(1.03, 0), (1.04, 1)])
def test_the_exit_status_says_whether_the_median_is_within_the_aim(
    monkeypatch, capsys, clone, cost, status
):
    # Fewer than half of the rounds are far off.
    costs = iter([9.0] * (beside.ROUNDS // 2) + [cost] * beside.ROUNDS)
    ticks = [figure(lambda root: next(costs) if root == beside.ROOT else 1.0)]
    monkeypatch.setattr(beside, "_check", lambda clone: None)
    monkeypatch.setattr(beside, "FIGURES", {"ticks": ticks})
    with pytest.raises(SystemExit) as ended:
        beside.run([str(clone), "ticks"])
    assert ended.value.code == status
    assert f"{cost:.3f}" in capsys.readouterr().out
