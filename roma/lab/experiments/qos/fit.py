"""Fits the constants of `setting` to the paper: the load of each three hours, then α, β of `qos`.

    python -m roma.lab.experiments.qos.fit loads --traces DIR
    python -m roma.lab.experiments.qos.fit tuning --traces DIR

Loads are such that `fixed` scores what it scored in the paper. It has no parameter to tune, so its
score measures how hard a load is for a device; everything else is then compared under it. α and β
are the best of a grid on the training hours, as in the paper.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from roma.config.scheduling import QualityConfig
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.qos.paper import QUALITY
from roma.lab.experiments.qos.runs import Trial, run
from roma.lab.experiments.qos.setting import CLUSTER, SINGLE, SPEEDS, TESTS, TRAINING, Part

STEPS: Final = 12
"""Bisection steps in the search for a load."""

BOUNDS: Final = {SINGLE: (5.0, 45.0), CLUSTER: (50.0, 350.0)}
ALPHAS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
BETAS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
TUNING: Final = {SINGLE: 2, CLUSTER: 24}
"""Speed-up of the training hours relative to the day."""

SEED: Final = 1001
"""A seed that is not among the scored ones."""


def fit(job: tuple[tuple[str, ...], Part, float, Path | None]) -> float:
    """Return the mean load under which `fixed` scores a quality."""
    kinds, part, wanted, traces = job
    low, high = BOUNDS[kinds]
    for _ in range(STEPS):
        rate = (low + high) / 2
        trial = Trial(
            Fixed, QualityConfig(), kinds, part, SEED, traces, rate=rate, speed=SPEEDS[kinds]
        )
        if run(trial).mean > wanted:
            low = rate
        else:
            high = rate
    return (low + high) / 2


def score(job: Trial) -> float:
    """Return a trial's mean quality."""
    return run(job).mean


def tune(traces: Path | None) -> None:
    """Print the best α and β on the training hours."""
    for kinds in (SINGLE, CLUSTER):
        grid = [(alpha, beta) for alpha in ALPHAS for beta in BETAS]
        trials = [
            Trial(
                Qos,
                QualityConfig(alpha=alpha, beta=beta),
                kinds,
                TRAINING,
                SEED,
                traces,
                speed=TUNING[kinds],
            )
            for alpha, beta in grid
        ]
        found = sorted(zip(Lab((SEED,)).map(score, trials), grid, strict=True), reverse=True)
        for mean, (alpha, beta) in found[:3]:
            sys.stdout.write(f"{len(kinds):2} devices: α {alpha:g}, β {beta:g}: {mean:.4f}\n")


def main() -> None:
    """Fit, on every core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("loads", "tuning"))
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    if options.what == "tuning":
        tune(options.traces)
    else:
        fit_loads(options.traces)


def fit_loads(traces: Path | None) -> None:
    """Print the load of every part."""
    jobs = [
        (kinds, part, QUALITY[kinds]["fixed"][i], traces)
        for kinds in (SINGLE, CLUSTER)
        for i, part in enumerate(TESTS)
    ]
    for (kinds, part, wanted, _), rate in zip(jobs, Lab((SEED,)).map(fit, jobs), strict=True):
        sys.stdout.write(f"{len(kinds):2} devices, {part.name}: {rate:.2f}/s ({wanted:.3f})\n")


if __name__ == "__main__":
    main()
