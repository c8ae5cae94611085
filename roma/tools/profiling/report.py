"""A profile as a file and as a table."""

import os
from pathlib import Path
from typing import Any

from rich.table import Table

from roma.config import file_edit, yaml_file
from roma.config.profile import Profiles
from roma.domain.errors import ConfigError
from roma.domain.units import milliseconds


def check_writable(file: Path, source: Path) -> None:
    """Raise ConfigError, before measuring, if `file` cannot take the profile of `source`."""
    if os.path.realpath(file) == os.path.realpath(source):
        raise ConfigError(f"--out = {file}: must be another file than the one that is read")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--out = {file}: must be a file in a directory that can be written")


def write(profiles: Profiles, file: Path, command: str) -> None:
    """Write a profile for `roma.config.profile.load`, atomically. Raises ConfigError."""
    header = f"# Written by: {' '.join(command.split())}\n"
    body = yaml_file.dump(plain(profiles), compact=True)
    with file_edit.writing(f"--out = {file}"):
        file_edit.output(file, header + body)


def plain(profiles: Profiles) -> dict[str, Any]:
    """Return a profile as plain data; a model without a GPU has no GPU keys."""
    data = profiles.model_dump(mode="json", exclude_none=True)
    for model in data["models"].values():
        if "gpu_time" not in model:
            del model["gpu_noise"]
    return data


def tables(profiles: Profiles) -> tuple[Table, Table]:
    """Return the points, and each model's numbers: milliseconds and core-milliseconds."""
    machine = profiles.machine
    points = Table(
        "model", title=f"one request at a time on {machine.cpu}, {machine.cores:g} cores"
    )
    for name in ("cores", "batch", "core-ms", "response ms", "requests"):
        points.add_column(name, justify="right")
    models = Table("model", title="what a request of one input costs")
    for name in ("core-ms", "noise", "parallelism", "overhead ms", "GPU ms"):
        models.add_column(name, justify="right")
    for name, model in profiles.models.items():
        points.add_section()
        for point in model.points:
            points.add_row(
                name,
                f"{point.cores:g}",
                str(point.batch),
                _ms(point.cost),
                _ms(point.response_time),
                str(point.requests),
            )
        models.add_row(
            name,
            _ms(model.cost),
            f"{model.noise:.2f}",
            f"{model.parallelism:.2f}",
            _ms(model.overhead),
            "-" if model.gpu_time is None else _ms(model.gpu_time),
        )
    return points, models


def _ms(seconds: float) -> str:
    return f"{milliseconds(seconds):.2f}"
