"""Checks of what a supervisor answers: another program, or another version, may listen there.

One such answer must not keep the other workers from the page.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from roma.config.yaml_file import describe


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _ExecutableState(_Answer):
    """Fields of `rows.ExecutableRow` that a supervisor knows."""

    demand: float | None = None
    allocation: float | None = None
    applied: float | None = None
    observed: float | None = None
    used: float | None = None
    throttled: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    limit: str = "none"
    failure: str | None = None
    contention: str = ""
    why: str = ""


class _State(_Answer):
    """Fields of `rows.Worker` that a supervisor knows, and its executables."""

    mode: str = ""
    capacity: float | None = None
    demanded: float | None = None
    applied: float | None = None
    used: float | None = None
    eta: float | None = None
    contended: bool = False
    ticks: int | None = None
    missed_ticks: int | None = None
    jitter_p99: float | None = None
    executables: dict[str, _ExecutableState] = {}


class _Decision(_Answer):
    """The fields that decisions are sorted by, and shown with."""

    at: float
    executable: str
    words: str


class _Decisions(_Answer):
    decisions: list[_Decision]


_ANSWERS: Final[Mapping[str, type[_Answer]]] = {"state": _State, "decisions": _Decisions}


def fault(what: str, answer: Mapping[str, Any]) -> str:
    """Return why an answer to `what` is no supervisor's; "" if it is one."""
    try:
        _ANSWERS[what].model_validate(answer)
    except ValidationError as error:
        return describe(error, "its answer")[0]
    return ""
