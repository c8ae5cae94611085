"""Time of an in-place resize on a real node, its cost with 200 pods; `make kubernetes` first."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def run() -> None:
    """Print both tables; exit 1 if an aim is missed. The cluster is that of the tests."""
    module = "tests.system.kubernetes.figures"
    done = subprocess.run([sys.executable, "-m", module], cwd=CHECKOUT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
