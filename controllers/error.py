"""Three definitions of the control error; all are positive when the response is too slow.

`rt`       e = RT/R° - 1         plain, but its gain falls as throughput rises
`inverse`  e = c·(1/R° - 1/RT)   cores: for processor sharing 1/τ = μ·u - λ, so it is linear in u
                                 and independent of load; bounded to ±c/R°, else one slow or one
                                 very fast response would dominate
`log`      e = ln(RT/R°)         scale-free: twice and half the set point weigh the same
"""

import math
from enum import StrEnum

from controllers.base import clip


class ErrorForm(StrEnum):
    """Definition of the control error that a PI controller uses."""

    RT = "rt"
    INVERSE = "inverse"
    LOG = "log"


def error(form: ErrorForm, y: float, set_point: float, cost: float) -> float:
    """Return e for a response time `y` > 0 s, a set point in s and `cost` core-s per request."""
    match form:
        case ErrorForm.RT:
            return y / set_point - 1
        case ErrorForm.INVERSE:
            return cost * clip(1 / set_point - 1 / y, -1 / set_point, 1 / set_point)
        case ErrorForm.LOG:
            return math.log(y / set_point)
