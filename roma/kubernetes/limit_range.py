"""Bounds that the LimitRanges of a namespace set on CPU limits. No I/O.

A resize passes the same admission as a new pod. Field names are those of core/v1 LimitRange.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roma.kubernetes.quantity import millicores


@dataclass(frozen=True, slots=True)
class CpuBounds:
    """Lowest and highest CPU limit of a container in millicores; `ratio` bounds limit over request.

    `names` are the LimitRanges that they come from.
    """

    least: int = 0
    most: float = math.inf
    ratio: float = math.inf
    names: tuple[str, ...] = ()

    def highest(self, request: int | None) -> float:
        """Return the highest limit of a container with this CPU request, both in millicores."""
        return self.most if request is None else min(self.most, self.ratio * request)

    def __str__(self) -> str:
        parts = [f"≥ {self.least}m"] if self.least else []
        parts += [f"≤ {self.most}m"] if self.most < math.inf else []
        parts += [f"≤ {self.ratio:g} × the request"] if self.ratio < math.inf else []
        return f"{' and '.join(parts)} (LimitRange {', '.join(self.names)})"


NO_BOUNDS: Final = CpuBounds()


def cpu_bounds(listed: Mapping[str, Any]) -> CpuBounds:
    """Return the tightest bounds of a LimitRangeList; raise ValueError for what is none."""
    found = NO_BOUNDS
    try:
        for item in listed.get("items") or ():
            for limits in item["spec"]["limits"]:
                own = _bounds(limits)
                if own != NO_BOUNDS:
                    found = _tightest(found, own, str(item["metadata"]["name"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a list that is not of LimitRanges: {error!r}") from error
    return found


def _bounds(limits: Mapping[str, Any]) -> CpuBounds:
    """Return the bounds of one entry; one for pods bounds the sum of a pod's containers."""
    if limits["type"] not in ("Container", "Pod"):
        return NO_BOUNDS
    low, high, ratio = (limits.get(key) or {} for key in ("min", "max", "maxLimitRequestRatio"))
    most = millicores(str(high["cpu"])) if "cpu" in high else math.inf
    least = millicores(str(low["cpu"])) if "cpu" in low and limits["type"] == "Container" else 0
    factor = millicores(str(ratio["cpu"])) / 1000 if "cpu" in ratio else math.inf
    return CpuBounds(least, most, factor)


def _tightest(a: CpuBounds, b: CpuBounds, name: str) -> CpuBounds:
    return CpuBounds(
        max(a.least, b.least),
        min(a.most, b.most),
        min(a.ratio, b.ratio),
        tuple(dict.fromkeys((*a.names, name))),
    )
