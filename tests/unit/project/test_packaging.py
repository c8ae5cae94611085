"""pyproject.toml has every extra that the Makefile installs; constraints.txt pins them all."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()
LOCKED = {canonicalize_name(line.partition("==")[0]) for line in CONSTRAINTS}


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


OLDEST = "3.11.2"


def test_the_demo_installs_nothing_that_only_tests_need():
    demo = packages(*installed_by("demo"))
    assert "tensorflow" in demo
    assert not demo & (packages("dev", "build", "torch") - packages())


def test_only_the_extra_torch_brings_pytorch():
    assert [name for name in EXTRAS if "torch" in packages(name)] == ["torch"]


def test_the_lock_has_everything_that_is_installed_for_tests():
    assert packages(*installed_by("dev")) <= LOCKED
    # PyTorch's own, which a lock made from a build for CPUs lacks: they would come unlocked.
    assert {"triton", "cuda-toolkit"} <= LOCKED


def test_what_ci_tested_installs_on_debian_12s_python():
    """The lock may be written on a later one, and pip and uv refuse what that one alone can run."""
    found = {
        canonicalize_name(d.metadata["Name"]): d.metadata["Requires-Python"]
        for d in metadata.distributions()
    }
    assert len(LOCKED & found.keys()) > 100
    too_new = {
        n: found[n]
        for n in LOCKED & found.keys()
        if found[n] and OLDEST not in SpecifierSet(found[n])
    }
    assert too_new == {}
