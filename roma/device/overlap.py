"""Duration of executions at once on a device that is emulated or simulated."""

from collections.abc import Sequence


def seconds_together(alone: Sequence[float], overlap: float) -> float:
    """Return the seconds of executions at once, of which each takes so many seconds alone.

    `overlap` is the share of their sum that is saved, at most down to the longest of them.
    """
    return max(*alone, (1.0 - overlap) * sum(alone))
