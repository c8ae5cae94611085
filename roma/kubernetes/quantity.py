"""CPU quantities of the Kubernetes API, in whole millicores: the finest that it stores."""

import math
import re
from decimal import Decimal
from typing import Final

_FORM: Final = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(?:([numkMG]?)|[eE]([+-]?\d{1,3}))", re.ASCII)
_SCALE: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9}


def millicores(text: str) -> int:
    """Return a CPU quantity such as `250m`, `0.5` or `2`, rounded up as the API server does.

    Raises ValueError for a text that is none.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no CPU quantity")
    number, suffix, exponent = found.groups()
    scale = int(exponent) if exponent else _SCALE[suffix or ""]
    return math.ceil(Decimal(number).scaleb(scale + 3))


def quantity(millis: int) -> str:
    """Return millicores as a CPU quantity, in the API server's canonical form."""
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
