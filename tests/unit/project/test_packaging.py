"""pyproject.toml has every extra that the Makefile installs; constraints.txt pins them all."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()


def installed_by(verb):
    """The extras that .venv has for `verb`."""
    (listed,) = re.findall(rf"^EXTRAS_{verb} := (\S+)$", MAKEFILE, re.MULTILINE)
    found = []
    for name in listed.split(","):
        other = re.fullmatch(r"\$\(EXTRAS_(\w+)\)", name)
        found += installed_by(other[1]) if other else [name]
    return found


def packages(*extras):
    lines = PROJECT["dependencies"] + [line for name in extras for line in EXTRAS[name]]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_the_demo_installs_nothing_that_only_tests_need():
    demo = packages(*installed_by("demo"))
    assert "tensorflow" in demo
    assert not demo & (packages("dev", "build", "torch") - packages())


def test_only_the_extra_torch_brings_pytorch():
    assert [name for name in EXTRAS if "torch" in packages(name)] == ["torch"]


def test_the_lock_has_everything_that_is_installed_for_tests():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    locked = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert packages(*installed_by("dev")) <= locked
    # PyTorch's own, which a lock made from a build for CPUs lacks: they would come unlocked.
    assert {"triton", "cuda-toolkit"} <= locked
