"""Write the tables, claims and pictures of docs/experiments/*.md anew (about forty minutes).

`python docs/experiments.py [NAME …]` runs the experiments and puts what they find between the
marks `<!-- NAME -->` and `<!-- /NAME -->`; the words around them are people's. Those of `qos-`
and `clockwork-trace` need the recorded traces: ROMA_TRACES names their directory.
"""

import os
import sys
from pathlib import Path

from roma.lab.experiments import output
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.registry import EXPERIMENTS
from roma.workload import recorded

PAGES = Path(__file__).parent / "experiments"
PREFIXES = ("clockwork", "promise", "qos")
"""An experiment's name begins with that of its page."""
RECORDED = ("clockwork-trace", "qos-")
"""They run on the recorded traces."""
FIRST_SEED = 11
"""As `roma experiment run` without `--seeds`."""


def main(names: list[str]) -> None:
    """Run the named experiments, or all that have a page."""
    for name in names or [name for name in EXPERIMENTS if name.startswith(PREFIXES)]:
        experiment = EXPERIMENTS[name]
        path = PAGES / f"{name.partition('-')[0]}.md"
        seeds = range(FIRST_SEED, FIRST_SEED + experiment.seeds)
        traces = recorded.directory(None, os.environ) if name.startswith(RECORDED) else None
        found = experiment.run(Lab(tuple(seeds), traces=traces))
        for picture in output.fill(path, name, found):
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
