"""Write the tables, claims and pictures of docs/lab.md and docs/experiments/*.md anew.

`python docs/experiments.py [NAME …]` runs the experiments and puts what they find between the
marks `<!-- NAME -->` and `<!-- /NAME -->`; the words around them are people's. Those of RECORDED
need the recorded traces: ROMA_TRACES names their directory. Without names it takes about two hours
and leaves out `parity`, which serves real models.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from roma.lab.experiments import output
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.registry import EXPERIMENTS
from roma.workload import recorded

DOCS = Path(__file__).parent
PAGES = ("clockwork", "promise", "qos")
"""Pages of docs/experiments, with whose names the experiments' begin; the others are in lab.md."""
RECORDED = ("clairvoyant-bound", "clockwork-trace", "pareto", "qos-")
"""They run on the recorded traces."""
LEFT_OUT = ("pareto-curves", "roma-figure2", "roma-sensitivity-0.7", "roma-sensitivity-1.4")
"""Tables that no page shows."""
FIRST_SEED = 11
"""As `roma experiment run` without `--seeds`."""


def main(names: list[str]) -> None:
    """Run the named experiments, or all but `parity`."""
    for name in names or [name for name in EXPERIMENTS if name != "parity"]:
        experiment = EXPERIMENTS[name]
        seeds = range(FIRST_SEED, FIRST_SEED + experiment.seeds)
        traces = recorded.directory(None, os.environ) if name.startswith(RECORDED) else None
        found = experiment.run(Lab(tuple(seeds), traces=traces))
        shown = tuple(table for table in found.tables if table.name not in LEFT_OUT)
        page, figures = _place(name)
        for picture in output.fill(page, name, replace(found, tables=shown), figures):
            print(picture)


def _place(name: str) -> tuple[Path, Path]:
    """Return the page of an experiment, and the directory of its pictures."""
    page = name.partition("-")[0]
    if page in PAGES:
        return DOCS / "experiments" / f"{page}.md", DOCS / "experiments"
    return DOCS / "lab.md", DOCS / "lab"


if __name__ == "__main__":
    main(sys.argv[1:])
