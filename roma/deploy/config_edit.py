"""Edits of a roma.yaml that keep its comments; a result that would not load is never written."""

import io
import os
import shutil
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from roma.config import schema
from roma.config.diff import compare
from roma.config.schema import Config
from roma.deploy.model_paths import unservable
from roma.domain.errors import ConfigError

Document = MutableMapping[str, Any]
"""A roma.yaml as it is written, with its comments."""


def edit(file: Path, change: Callable[[Document], None]) -> Config:
    """Change a file and return its new content; models that `change` leaves alone stay in place.

    Where a default would move one, its present slot and workers are written down. Raises
    `ConfigError` for a result that is wrong or that a running deployment could not follow.
    """
    old = schema.load(file)
    try:
        document = _yaml().load(file.read_text())
    except YAMLError as error:
        raise ConfigError(f"{file}: cannot be edited: {error}") from error
    before = {name: dict(entry) for name, entry in document["models"].items()}
    _refuse_shared(file, document["models"])
    change(document)
    unchanged = [m for m, entry in document["models"].items() if before.get(m) == entry]
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _pin(document, old, file, unchanged)
        scratch.write_text(_text(document))
        new = schema.load(scratch)
        compare(old, new)
        for model, fault in unservable(new).items():
            if model not in old.models:
                raise ConfigError(f"{file}: {fault}")
        shutil.copymode(file, scratch)
        scratch.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(scratch), str(file))) from error
    finally:
        scratch.unlink(missing_ok=True)
    return new


def _refuse_shared(file: Path, models: Document) -> None:
    """Raise ConfigError for a model that shares its lines: an edit would change others, too."""
    seen: set[int] = set()
    for name, entry in models.items():
        if id(entry) in seen or getattr(entry, "merge", None):
            bound = "written out to be edited, without an alias or a merge key"
            raise ConfigError(f"{file}: models.{name}: must be {bound}")
        seen.add(id(entry))


def _pin(document: Document, old: Config, file: Path, models: list[str]) -> None:
    """Write down what the defaults of these models would change."""
    is_settled = False
    while not is_settled:  # each place that is written down may change the defaults of others
        is_settled, new = True, schema.parse(_text(document), source=str(file))
        for model in models:
            entry = document["models"][model]
            if new.slots[model] != old.slots[model]:
                entry["slot"], is_settled = old.slots[model], False
            if (workers := placed_on(old, model)) != placed_on(new, model):
                entry.pop("replicas", None)
                entry["workers"], is_settled = workers, False


def placed_on(config: Config, model: str) -> list[str]:
    """Return the workers where ROMA starts replicas of a model."""
    return [worker for worker, models in config.placed.items() if model in models]


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 100
    return yaml


def _text(document: Document) -> str:
    text = io.StringIO()
    _yaml().dump(document, text)
    return text.getvalue()
