"""A law's state, numbers in dataclasses, as the vector of python-control."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np


def encode(state: Any) -> list[float]:
    """Return a law's state as numbers; NaN stands for None."""
    numbers: list[float] = []
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            numbers += encode(value)
        else:
            numbers.append(float("nan") if value is None else value)
    return numbers


def decode(like: Any, numbers: Any) -> Any:
    """Return the state, of the kind of `like`, that `numbers` encode."""
    rest = [None if np.isnan(x) else float(x) for x in numbers]
    return _take(like, rest)


def _take(like: Any, rest: list[float | None]) -> Any:
    values: dict[str, Any] = {}
    for field in fields(like):
        part = getattr(like, field.name)
        if is_dataclass(part):
            values[field.name] = _take(part, rest)
        else:
            values[field.name] = rest.pop(0)
    return replace(like, **values)
