"""Choice of a model's versions, which are folders named by a number, as in TensorFlow Serving.

    base/1/saved_model.pb
    base/00000002/saved_model.pb      version 2

The default policy serves only the latest version, as in TensorFlow Serving. A version with a label
is served too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from roma.serving.errors import ModelDirectoryError

MAX_VERSION = 2**63 - 1
"""The largest version: TensorFlow Serving's protocols carry an int64."""


Policy = Callable[[Collection[int]], Iterable[int]]
"""Policy that chooses among existing versions; versions that do not exist are not served."""


def number(text: str) -> int | None:
    """Parse decimal digits as a version; return None for any other text.

    A number that exceeds an int64 is not a version, as in TensorFlow Serving.
    """
    # The length is checked first: Python refuses to convert thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text.lstrip("0")) > len(str(MAX_VERSION)):
        return None
    version = int(text)
    return version if version <= MAX_VERSION else None


def find(base: Path) -> dict[int, Path]:
    """Return the folders of a model's versions, by number; raises ModelDirectoryError."""
    try:
        folders = sorted(path for path in base.iterdir() if path.is_dir())
    except OSError as error:
        raise ModelDirectoryError(f"{base}: {error.strerror}") from error
    except ValueError as error:  # a name that contains a NUL
        raise ModelDirectoryError(f"{base}: {error}") from error
    numbers = {path: number(path.name) for path in folders}
    found = {version: path for path, version in numbers.items() if version is not None}
    if not found:
        raise ModelDirectoryError(
            f"{base}: holds no version: expected a folder named by a number, such as {base}/1"
        )
    return found


def latest(count: int) -> Policy:
    """Return the policy that serves the `count` highest versions."""
    return lambda found: sorted(found)[-count:]


LATEST = latest(1)


def choose(base: Path, labels: Mapping[str, int], policy: Policy = LATEST) -> dict[int, Path]:
    """Return the versions to serve, highest first; raises ModelDirectoryError."""
    found = find(base)
    for label, version in labels.items():
        if version not in found:
            raise ModelDirectoryError(
                f"{base}: label {label} names version {version}, which is not there"
            )
    wanted = {*policy(found), *labels.values()} & found.keys()
    if not wanted:
        raise ModelDirectoryError(f"{base}: holds none of the versions that its policy names")
    return {version: found[version] for version in sorted(wanted, reverse=True)}
