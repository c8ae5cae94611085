"""Edits of a roma.yaml that keep the comments of what stays; only what would load is written."""

import io
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from roma.config import file_edit, schema
from roma.config.diff import compare
from roma.config.schema import Config
from roma.config.watched_file import home
from roma.deploy.model_paths import unservable
from roma.domain.errors import ConfigError, in_words

Document = MutableMapping[str, Any]
"""A roma.yaml as it is written, with its comments."""


def edit(file: Path, change: Callable[[Document], None]) -> Config:
    """Change a file and return its new content; models that `change` does not touch stay in place.

    Where a default would move one, its present slot and workers are written down. Raises
    `ConfigError` for a result that is wrong or that a running deployment could not follow.
    """
    with file_edit.alone(file):
        return _edited(file, change)


def _edited(file: Path, change: Callable[[Document], None]) -> Config:
    old = schema.load(file)
    try:
        document = round_trip().load(file.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ConfigError(f"{file}: cannot be edited: {in_words(error)}") from error
    before = {name: dict(entry) for name, entry in document["models"].items()}
    _refuse_shared(file, document["models"])
    change(document)
    unchanged = [m for m, entry in document["models"].items() if before.get(m) == entry]
    # Relative paths count from where a link leads.
    scratch = home(file) / f".{file.name}.{os.getpid()}"
    try:
        _pin(document, old, file, unchanged)
        scratch.write_text(written(document), encoding="utf-8")
        new = schema.load(scratch)
        compare(old, new)
        for model, fault in unservable(new).items():
            if model not in old.models:
                raise ConfigError(f"{file}: {fault}")
        file_edit.write(file, written(document))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {in_words(error)}") from error
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(scratch), str(file))) from error
    finally:
        scratch.unlink(missing_ok=True)
    return new


def _refuse_shared(file: Path, models: Document) -> None:
    """Raise ConfigError for a model that shares its lines: an edit would change others, too."""
    seen: set[int] = set()
    entries = {"models": models} | {f"models.{name}": entry for name, entry in models.items()}
    for key, entry in entries.items():
        if id(entry) in seen or getattr(entry, "merge", None):
            bound = "written out to be edited, without an alias or a merge key"
            raise ConfigError(f"{file}: {key}: must be {bound}")
        seen.add(id(entry))


def _pin(document: Document, old: Config, file: Path, models: list[str]) -> None:
    """Write down what the defaults of these models would change."""
    is_settled = False
    while not is_settled:  # each place that is written down may change the defaults of others
        is_settled, new = True, schema.parse(written(document), source=str(file))
        for model in models:
            entry = document["models"][model]
            if new.slots[model] != old.slots[model]:
                entry["slot"], is_settled = old.slots[model], False
            if (workers := placed_on(old, model)) != placed_on(new, model):
                set_workers(entry, workers)
                is_settled = False


def set_workers(entry: Document, workers: list[str]) -> None:
    """Name the workers of a model in place of `replicas`, whose comment stays."""
    named = CommentedSeq(workers)
    named.fa.set_flow_style()
    old = next((key for key in ("workers", "replicas") if key in entry), None)
    if not isinstance(entry, CommentedMap) or old is None:
        entry["workers"] = named
        return
    at, comment = list(entry).index(old), entry.ca.items.pop(old, None)
    if comment is None and old == "workers" and entry["workers"]:
        # In block style what follows the list hangs on its last item.
        last = entry["workers"].ca.items.get(len(entry["workers"]) - 1)
        comment = None if last is None else [None, None, last[0], None]
    del entry[old]
    entry.insert(at, "workers", named)
    if comment is not None:
        entry.ca.items["workers"] = comment


def placed_on(config: Config, model: str) -> list[str]:
    """Return the workers where ROMA starts replicas of a model."""
    return [worker for worker, models in config.placed.items() if model in models]


def round_trip() -> YAML:
    """Return a reader and writer of YAML that keeps comments and quotes."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 100
    return yaml


def written(document: Document) -> str:
    """Return a document as text."""
    text = io.StringIO()
    round_trip().dump(document, text)
    return text.getvalue()
