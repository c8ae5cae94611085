"""The builds that benchmarks compare: the sources and the compiled wheel, here and elsewhere."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILED = Path("build", "compiled")
"""Directory, within a checkout, of the build that `make wheel` compiles."""

BUILDS = ("interpreted", "compiled")
"""The benchmarks themselves are never compiled."""


def environment(build: str, root: Path = ROOT) -> dict[str, str]:
    """Return the environment in which a Python process runs that build; exit if it is missing."""
    if build == "compiled" and not is_compiled(root):
        sys.exit("bench: the compiled build is missing: make wheel")
    paths = (root / COMPILED, root) if build == "compiled" else (root,)
    # Safe path: else the working directory, which holds the sources, comes first.
    path = os.pathsep.join(str(directory) for directory in paths)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def interpreter(root: Path = ROOT) -> str:
    """Return the Python of a checkout: its own `.venv`'s if there is one, else ours."""
    own = root / ".venv" / "bin" / "python"
    return str(own) if root != ROOT and own.exists() else sys.executable


def is_compiled(root: Path) -> bool:
    """Return True if a checkout has its compiled build."""
    return (root / COMPILED / ".built").exists()
