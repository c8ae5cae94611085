"""TensorFlow Serving's own tests of its model server, unmodified, over `roma up`.

    TFS_TESTS=DIRECTORY pytest tests/tensorflow/tfserving

`DIRECTORY` is a copy of https://github.com/tensorflow/serving; docs/protocols.md says which commit
was run last. Each test is a process of its own, and so is the deployment that it starts.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tensorflow_serving_tests import PROGRAM

ROOT = Path(__file__).parents[3]
SOURCES = Path(os.environ["TFS_TESTS"]).resolve()
SUITE = "TensorflowModelServerTest"

KERAS_2 = importlib.util.find_spec("tf_keras") is not None

OUT_OF_SCOPE = {
    "testPredictOnTfLite": "TFLite",
    "testPredictWithSignatureDefOnTfLite": "TFLite",
    "test_profiler_service_with_valid_trace_request": "profiler",
    "test_tf_text": "tf.text",
}
"""Tests of what TensorFlow's Python package cannot serve, and what it would take."""

OF_KERAS_2 = {
    "test_sequential_keras_saved_model_save",
    "test_distrat_sequential_keras_saved_model_save",
}
"""Tests that save a model first, and ask it for an input `x`. Keras 3 calls it `inputs`."""


def names():
    tree = ast.parse((SOURCES / PROGRAM).read_text())
    (suite,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == SUITE)
    tests = [n.name for n in suite.body if isinstance(n, ast.FunctionDef)]
    left_out = OUT_OF_SCOPE.keys() | (set() if KERAS_2 else OF_KERAS_2)
    return [n for n in tests if n.startswith("test") and n not in left_out]


@pytest.fixture(scope="module")
def runfiles(tmp_path_factory):
    """The tree of files that Bazel would make, with our program in place of theirs."""
    root = tmp_path_factory.mktemp("runfiles")
    package = root / "tf_serving/tensorflow_serving"
    (package / "model_servers").mkdir(parents=True)
    (package / "servables").symlink_to(SOURCES / "tensorflow_serving/servables")
    program = package / "model_servers/tensorflow_model_server"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tests.support.tensorflow_model_server "$@"\n'
    )
    program.chmod(0o755)
    return root


@pytest.mark.parametrize("name", names())
def test_passes(name, runfiles, tmp_path):
    (tmp_path / "t").mkdir()
    argv = [sys.executable, "-m", "tests.support.tensorflow_serving_tests", str(SOURCES)]
    run = subprocess.run(
        [*argv, f"{SUITE}.{name}"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TEST_SRCDIR": str(runfiles),
            "TEST_TMPDIR": str(tmp_path / "t"),
            "TMPDIR": str(tmp_path),
            "TF_USE_LEGACY_KERAS": str(int(KERAS_2)),
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:]
