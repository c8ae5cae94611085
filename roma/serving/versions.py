"""Which versions of a model are served: folders named by a number, as TensorFlow Serving wants.

    base/1/saved_model.pb
    base/00000002/saved_model.pb      version 2

The default policy is the latest version only. A label that names another version has it served
too.
"""

from collections.abc import Mapping
from pathlib import Path

from roma.serving.errors import ModelDirectoryError


def find(base: Path) -> dict[int, Path]:
    """Return the folders of a model's versions, by number; raises ModelDirectoryError."""
    try:
        folders = sorted(path for path in base.iterdir() if path.is_dir())
    except OSError as error:
        raise ModelDirectoryError(f"{base}: {error.strerror}") from error
    found = {int(path.name): path for path in folders if _is_number(path.name)}
    if not found:
        raise ModelDirectoryError(
            f"{base}: holds no version: expected a folder named by a number, such as {base}/1"
        )
    return found


def choose(base: Path, labels: Mapping[str, int]) -> dict[int, Path]:
    """Return the versions to serve, highest first; raises ModelDirectoryError."""
    found = find(base)
    for label, version in labels.items():
        if version not in found:
            raise ModelDirectoryError(
                f"{base}: label {label} names version {version}, which is not there"
            )
    wanted = {max(found), *labels.values()}
    return {version: found[version] for version in sorted(wanted, reverse=True)}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
