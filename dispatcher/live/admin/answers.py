"""Checks of what a supervisor answers: another program, or another version, may listen there.

One such answer must not keep the other workers from the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from roma.config.yaml_file import describe
from roma.ui.dashboard.feed import FROM_SUPERVISOR
from roma.ui.dashboard.rows import ExecutableRow, Worker

WORKER: Final = (
    "mode",
    "capacity",
    "demanded",
    "applied",
    "used",
    "eta",
    "contended",
    "ticks",
    "missed_ticks",
    "jitter_p99",
)
"""Fields of a `Worker` that a supervisor knows."""


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Decision(_Answer):
    """The fields that decisions are sorted by, and shown with."""

    at: float
    executable: str
    words: str


class _Decisions(_Answer):
    decisions: list[_Decision]


def _part_of(row: type, names: Sequence[str], **more: Any) -> type[_Answer]:
    """Return a model of these fields of a row, which all have defaults."""
    types, defaults = get_type_hints(row), {field.name: field.default for field in fields(row)}
    known: dict[str, Any] = {name: (types[name], defaults[name]) for name in names}
    return create_model(row.__name__, __base__=_Answer, **known, **more)


_EXECUTABLE: Final[Any] = _part_of(ExecutableRow, FROM_SUPERVISOR)
_ANSWERS: Final[Mapping[str, type[_Answer]]] = {
    "state": _part_of(Worker, WORKER, executables=(dict[str, _EXECUTABLE], {})),
    "decisions": _Decisions,
}


def fault(what: str, answer: Mapping[str, Any]) -> str:
    """Return why an answer to `what` is no supervisor's; "" if it is one."""
    try:
        _ANSWERS[what].model_validate(answer)
    except ValidationError as error:
        return describe(error, "its answer")[0]
    return ""
