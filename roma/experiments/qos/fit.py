"""Fits the load of each three hours: `fixed` scores there what it scored in the paper.

    python -m roma.experiments.qos.fit --traces DIR

prints the loads that `setting.TESTS` holds. `fixed` has no parameter to tune, so it says how hard
a load is for a device; everything else is then compared under it.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from dispatcher.schedulers.base import QualityOptions
from dispatcher.schedulers.qos import Fixed
from roma.experiments.lab import Lab
from roma.experiments.qos.paper import QUALITY
from roma.experiments.qos.runs import Trial, run
from roma.experiments.qos.setting import CLUSTER, SINGLE, SPEEDS, TESTS, Part

STEPS: Final = 12
"""Halvings of the interval in which a load is looked for."""

BOUNDS: Final = {SINGLE: (5.0, 45.0), CLUSTER: (50.0, 350.0)}
SEED: Final = 1001
"""Not one of those that are scored."""


def fit(job: tuple[tuple[str, ...], Part, float, Path | None]) -> float:
    """Return the mean load under which `fixed` scores a quality."""
    kinds, part, wanted, traces = job
    low, high = BOUNDS[kinds]
    for _ in range(STEPS):
        rate = (low + high) / 2
        trial = Trial(
            Fixed, QualityOptions(), kinds, part, SEED, traces, rate=rate, speed=SPEEDS[kinds]
        )
        if run(trial).mean > wanted:
            low = rate
        else:
            high = rate
    return (low + high) / 2


def main() -> None:
    """Fit every part, on every core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    jobs = [
        (kinds, part, QUALITY[kinds]["fixed"][i], options.traces)
        for kinds in (SINGLE, CLUSTER)
        for i, part in enumerate(TESTS)
    ]
    for (kinds, part, wanted, _), rate in zip(jobs, Lab((SEED,)).map(fit, jobs), strict=True):
        sys.stdout.write(f"{len(kinds):2} devices, {part.name}: {rate:.2f}/s ({wanted:.3f})\n")


if __name__ == "__main__":
    main()
