"""Guard for one machine-learning framework per process: TensorFlow or PyTorch, never both.

TensorFlow and Triton, which `torch.export` imports, each contain LLVM, and importing the second of
the two crashes the process with a segmentation fault (TensorFlow 2.21 before PyTorch 2.13; the
other order happens to work). Even where it works, their thread pools compete without coordination.
So every module that imports one of them calls `claim` first.
"""

import os
import sys
from typing import Literal

from roma.domain.errors import LaunchError

Framework = Literal["tensorflow", "torch"]

_NAMES: dict[Framework, str] = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
"""Product names by the name of the package."""


def skip_keras() -> None:
    """Make TensorFlow import without Keras, in a program that only runs SavedModels.

    Keras 3, which imports scikit-learn and matplotlib, takes two fifths of the import's CPU time
    (4.1 s of 7.1 s remain). If Keras 2 is requested but missing, TensorFlow continues without
    Keras.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def claim(framework: Framework) -> None:
    """Raise LaunchError if another framework has been imported into this process."""
    for other, name in _NAMES.items():
        if other != framework and other in sys.modules:
            raise LaunchError(
                f"{_NAMES[framework]} cannot be imported: {name} is in this process already, and "
                "both in one end in a segmentation fault: run each in a process of its own"
            )
