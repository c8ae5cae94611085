"""The table of commands: every entry has its module, old names have one clear line."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from roma.cli.app import COMMANDS, app
from roma.config import renamed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_entry_of_the_table_is_a_command(name):
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert re.search(rf"Usage: \S+ {name} ", done.output)


def test_help_lists_every_command_and_imports_none():
    code = (
        "import sys\nfrom roma.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.startswith('roma.cli.') and m.endswith('_command')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f" {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("worker", "--port", "0"), "roma worker: is called roma device since 0.2"),
        (
            ("simulate", "examples/simulate.yaml", "--story", "x"),
            "--story: is called --decision-log since 0.2",
        ),
        (
            ("experiment", "run", next(iter(renamed.EXPERIMENTS))),
            r"experiment = \w+: is called clairvoyant-bound since 0\.2",
        ),
    ],
)
def test_an_old_name_has_one_line_that_names_the_new_one(arguments, line):
    done = subprocess.run(
        [sys.executable, "-m", "roma", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert re.fullmatch(line, done.stderr.strip())


def test_the_version_is_the_distributions():
    done = CliRunner().invoke(app, ["--version"])
    assert done.output.startswith("roma 0.")
