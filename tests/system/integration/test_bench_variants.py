"""`bench.variants` for real, but small: every request ends, and is worth something from 0 to 1."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import readers
from bench.readers import LARGE, SMALL
from bench.variants import Setting, measured, quality, row

ROOT = Path(__file__).parents[3]
TIMES = {
    LARGE: {8: 0.1, 16: 0.2},
    SMALL: {8: 0.05, 16: 0.1},
}
BUILD = f"""
import pathlib, sys
from bench.readers import Shape, build
build(pathlib.Path(sys.argv[1]), {{"{LARGE}": Shape(1, 8, 64), "{SMALL}": Shape(2, 4, 16)}})
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="has two cores, one for the worker")
def test_all_answers_are_accounted_for(tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    assert (tmp_path / readers.FACTS).exists()
    setting = Setting({LARGE: 0.9, SMALL: 0.8}, TIMES, (0.5, 1.5), 1.5)
    cores = os.sched_getaffinity(0)
    (found,) = measured(tmp_path, setting, ("qos-opt",), warm_up=0.5)
    assert os.sched_getaffinity(0) == cores
    asked = setting.profile.requests
    assert 0.5 * asked < len(found.told) < 1.5 * asked
    statuses = Counter(t.status for t in found.told)
    assert set(statuses) <= {200, 504}
    assert statuses[200] == sum(t.variant in (LARGE, SMALL) for t in found.told)
    assert all(0.0 <= quality(t, setting) <= 1.0 for t in found.told)
    assert 0.0 < row(found.told, setting)["quality"] <= 1.0
