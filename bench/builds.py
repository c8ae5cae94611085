"""The two builds that benchmarks compare: the checkout's sources, and the compiled wheel."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILED = ROOT / "build" / "compiled"

BUILDS = {"interpreted": (ROOT,), "compiled": (COMPILED, ROOT)}
"""Where a process of each build finds modules; the benchmarks themselves are never compiled."""


def environment(build: str) -> dict[str, str]:
    """Return the environment in which a Python process runs that build; exit if it is missing."""
    if not (COMPILED / ".built").exists():
        sys.exit("bench: the compiled build is missing: make wheel")
    path = os.pathsep.join(str(directory) for directory in BUILDS[build])
    # Safe path: else the working directory, which holds the sources, comes first.
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
