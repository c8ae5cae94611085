"""Registry of the runtimes by name, and of the models named on a command line.

A runtime is imported only when it is requested: TensorFlow and PyTorch take seconds to import, and
either may be missing.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from roma.device.runtimes.base import Runtime
from roma.domain.actions import BATCHES
from roma.domain.errors import ConfigError, LaunchError
from roma.tensors import frameworks


class RuntimeKind(StrEnum):
    """Kind of runtime that executes the models."""

    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    EMULATED = "emulated"


_SUFFIXES = (".pt", ".pt2")
SAMPLE = "sample"


def models(named: Sequence[str], folder: Path | None, kind: RuntimeKind) -> dict[str, Path]:
    """Return paths by model name: those of `NAME=PATH`, and the models in a folder.

    In a folder, a SavedModel or a folder of versions has its directory's name; a PyTorch file has
    its name without the suffix. Raises ConfigError.
    """
    found: dict[str, Path] = {} if folder is None else _in_folder(folder, kind)
    own: set[str] = set()
    for text in named:
        name, _, where = text.partition("=")
        if not (name and where):
            raise ConfigError(f"model = {text}: must be NAME=PATH")
        if name in own:
            raise ConfigError(f"model = {text}: must have another name than {name}={found[name]}")
        own.add(name)
        found[name] = Path(where)
    for name, path in found.items():
        if not path.exists():
            raise ConfigError(f"model {name}: {path}: is not there")
    if not found and folder is not None:
        kinds = " or ".join(_SUFFIXES) if kind is RuntimeKind.TORCH else "directory of a SavedModel"
        raise ConfigError(f"models = {folder}: has no {kinds} (runtime = {kind})")
    if not found:
        raise ConfigError("models: none is named: --model NAME=PATH, or --models DIRECTORY")
    return found


def make(
    kind: RuntimeKind,
    paths: Mapping[str, Path],
    device: str,
    threads: int,
    batches: Sequence[int] = BATCHES,
) -> Runtime:
    """Return a runtime with these models; raises ConfigError or LaunchError. Takes seconds."""
    if kind is RuntimeKind.TENSORFLOW:
        if device != "cpu":
            raise ConfigError(f"device = {device}: must be cpu, where runtime = tensorflow")
        from roma.device.runtimes.tensorflow import TensorFlowRuntime  # noqa: PLC0415

        return TensorFlowRuntime(paths, threads, batches)
    assert kind is RuntimeKind.TORCH, "an emulated device has no files"
    frameworks.claim("torch")
    try:
        from roma.device.runtimes.torch import TorchRuntime  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise LaunchError(f"runtime = torch: {error}: install the extra `torch`") from error
    return TorchRuntime(paths, device, threads)


def emulated(models: str, *, full: bool) -> Runtime:
    """Return the emulated runtime with copies of the table's models (`models_table.parse`)."""
    from roma.device import models_table  # noqa: PLC0415
    from roma.device.emulated import EmulatedRuntime  # noqa: PLC0415

    return EmulatedRuntime(models_table.copies(models_table.parse(models)), full=full)


def save_sample(kind: RuntimeKind, folder: Path) -> dict[str, Path]:
    """Write a small dense model with random weights; return its path by its name.

    Raises LaunchError in a process that has the other framework.
    """
    if kind is RuntimeKind.TORCH:
        frameworks.claim("torch")
        from roma.device.runtimes import torch  # noqa: PLC0415

        return {SAMPLE: torch.save_sample(folder / "sample.pt2")}
    from roma.device.runtimes import tensorflow  # noqa: PLC0415

    return {SAMPLE: tensorflow.save_sample(folder / "sample")}


def _in_folder(folder: Path, kind: RuntimeKind) -> dict[str, Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"models = {folder}: cannot be read: {error.strerror}") from error
    if kind is RuntimeKind.TORCH:
        found: dict[str, Path] = {}
        for path in entries:
            if path.suffix in _SUFFIXES and (other := found.setdefault(path.stem, path)) != path:
                bound = f"another name, without its suffix, than {other.name}"
                raise ConfigError(f"models = {folder}: {path.name}: must have {bound}")
        return found
    return {path.name: path for path in entries if path.is_dir()}
