"""Means with their intervals, and interpolation between two measurements."""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, stdev

_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for an interval of 95 %, by the number of values up to 10."""

_LEAST = 1e-4
"""The late share that replaces 0 in logarithms."""


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and half of its 95 % interval if there is more than one value."""
    n = len(values)
    if n < 2:
        return values[0], None
    # Beyond the table, Cornish and Fisher's expansion of t about the normal's 1.96: within 0.2 %.
    t = _T.get(n) or 1.96 + 2.372 / (n - 1) + 2.822 / (n - 1) ** 2
    return fmean(values), t * stdev(values) / math.sqrt(n)


def interval_note(seeds: int) -> str:
    """Return the sentence of a table's note that explains its intervals."""
    return f"± is an interval of 95 % over {seeds} seeds." if seeds > 1 else "One seed."


def cores_at(late: float, points: Sequence[tuple[float, float]]) -> float:
    """Return the cores at which a share of `late` is late, from measured (late share, cores).

    It interpolates between two points, linearly in the logarithm of the late share. NaN if `late`
    is beyond the points.
    """
    ordered = sorted(points, key=lambda point: point[1])
    for (more, low), (less, high) in itertools.pairwise(ordered):
        if more >= late >= less:
            if more == less:
                return low
            a, b, aim = (math.log(max(share, _LEAST)) for share in (more, less, late))
            return low + (high - low) * (a - aim) / (a - b)
    return math.nan
