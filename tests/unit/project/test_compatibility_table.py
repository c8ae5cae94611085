"""docs/protocols.md says which client was checked by which test: with what is installed, and here."""

import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/protocols.md").read_text()
ROWS = re.findall(r"^\| (?!client|-)(.+?) \| .+ \| (.+?) \|$", TEXT, re.MULTILINE)


def test_there_are_rows():
    assert len(ROWS) > 12


@pytest.mark.parametrize(("client", "test"), ROWS)
def test_the_client_is_installed_and_the_test_exists(client, test):
    for name, version in re.findall(r"([a-z-]{4,}) (\d+\.\d+)", client):
        assert metadata.version(name).startswith(f"{version}."), name
    (reference,) = re.findall(r"`(\S+\.py(?:::\w+)?)`", test)
    file, _, function = reference.partition("::")
    path = ROOT / file if "/" in file else ROOT / "tests/tensorflow/serving" / file
    assert path.exists(), path
    if function:
        assert f"def {function}(" in path.read_text(), function
    for case in re.findall(r"\[([\w-]+)\]", test):
        assert f'"{case}"' in path.read_text(), case
