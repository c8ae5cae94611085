"""TensorFlow Serving's own test program, run where its Bazel workspace is not.

    python -m tests.support.tensorflow_serving_tests SOURCES [TEST ...]

`SOURCES` is a directory that holds TensorFlow Serving's `tensorflow_serving`. What it imports
beside the package tensorflow-serving-api is found there; a free port comes from `roma.tools.demo.ports`.
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import tensorflow_serving

from roma.tools.demo.ports import free_ports

PROGRAM = Path("tensorflow_serving/model_servers/tensorflow_model_server_test.py")


def main() -> None:
    """Run the tests that are named, or all; the exit status is unittest's."""
    sources = Path(sys.argv.pop(1)).resolve()
    tensorflow_serving.__path__.append(str(sources / "tensorflow_serving"))
    portpicker = ModuleType("portpicker")
    portpicker.pick_unused_port = lambda: free_ports(1)[0]
    sys.modules.setdefault("portpicker", portpicker)
    sys.argv[0] = str(sources / PROGRAM)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
