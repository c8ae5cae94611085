"""Number of examples that Hypothesis tries: all in CI, a quarter elsewhere (HYPOTHESIS_PROFILE)."""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def examples(count: int) -> int:
    """Return the number of examples of a test that wants `count` of them in CI."""
    return count if PROFILE == "ci" else max(5, count // 4)
