"""Write the tables, claims and pictures of docs/experiments/*.md anew (about forty minutes).

`python docs/experiments.py [NAME …]` runs the experiments and puts what they find between the
marks `<!-- NAME -->` and `<!-- /NAME -->`; the words around them are people's. Those of `qos-`
need the recorded traces: ROMA_TRACES names their directory.
"""

import os
import re
import sys
from pathlib import Path

from roma.experiments import output
from roma.experiments.base import Output
from roma.experiments.lab import Lab
from roma.experiments.registry import EXPERIMENTS
from roma.workload import recorded

PAGES = Path(__file__).parent / "experiments"
PREFIXES = ("clockwork", "qos")
"""An experiment's name begins with that of its page."""
FIRST_SEED = 11
"""As `roma experiment run` without `--seeds`."""


def main(names: list[str]) -> None:
    """Run the named experiments, or all that have a page."""
    for name in names or [name for name in EXPERIMENTS if name.startswith(PREFIXES)]:
        experiment = EXPERIMENTS[name]
        path = PAGES / f"{name.partition('-')[0]}.md"
        seeds = range(FIRST_SEED, FIRST_SEED + experiment.seeds)
        traces = recorded.directory(None, os.environ) if name.startswith("qos-") else None
        found = experiment.run(Lab(tuple(seeds), traces=traces))
        page = path.read_text(encoding="utf-8")
        for block, text in _blocks(name, found).items():
            page, count = re.subn(
                rf"(<!-- {block} -->\n).*?(<!-- /{block} -->)",
                lambda m, text=text: m[1] + text.strip() + "\n" + m[2],
                page,
                flags=re.DOTALL,
            )
            assert count == 1, f"{path.name} has {count} places for {block}"
        path.write_text(page, encoding="utf-8")
        pictures = Output((), found.pictures)
        for picture in output.save(pictures, PAGES, vector=False):
            print(picture)


def _blocks(name: str, found: Output) -> dict[str, str]:
    """Return Markdown by the name of its place: each table, and all claims."""
    # A table's title is its section's heading here.
    blocks = {t.name: output.markdown(t).partition("\n\n")[2] for t in found.tables}
    claims = [f"| {c.claim} | {'yes' if c.holds else '**no**'} |" for c in found.checks]
    return blocks | {f"{name} claims": "\n".join(["| claim | holds |", "|---|---|", *claims])}


if __name__ == "__main__":
    main(sys.argv[1:])
