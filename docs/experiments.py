"""Write the tables, claims and pictures of docs/experiments/clockwork.md anew (about ten minutes).

`python docs/experiments.py [NAME …]` runs the experiments and puts what they find between the
marks `<!-- NAME -->` and `<!-- /NAME -->`; the words around them are people's.
"""

import re
import sys
from pathlib import Path

from roma.experiments import output
from roma.experiments.base import Output
from roma.experiments.lab import Lab
from roma.experiments.registry import EXPERIMENTS

PAGE = Path(__file__).parent / "experiments" / "clockwork.md"
FIRST_SEED = 11
"""As `roma experiment run` without `--seeds`."""


def main(names: list[str]) -> None:
    """Run the named experiments, or all of Clockwork's."""
    for name in names or [name for name in EXPERIMENTS if name.startswith("clockwork-")]:
        experiment = EXPERIMENTS[name]
        seeds = range(FIRST_SEED, FIRST_SEED + experiment.seeds)
        found = experiment.run(Lab(tuple(seeds)))
        page = PAGE.read_text(encoding="utf-8")
        for block, text in _blocks(name, found).items():
            page, count = re.subn(
                rf"(<!-- {block} -->\n).*?(<!-- /{block} -->)",
                lambda m, text=text: m[1] + text.strip() + "\n" + m[2],
                page,
                flags=re.DOTALL,
            )
            assert count == 1, f"{PAGE.name} has {count} places for {block}"
        PAGE.write_text(page, encoding="utf-8")
        pictures = Output((), found.pictures)
        for path in output.save(pictures, PAGE.parent, vector=False):
            print(path)


def _blocks(name: str, found: Output) -> dict[str, str]:
    """Return Markdown by the name of its place: each table, and all claims."""
    # A table's title is its section's heading here.
    blocks = {t.name: output.markdown(t).partition("\n\n")[2] for t in found.tables}
    claims = [f"| {c.claim} | {'yes' if c.holds else '**no**'} |" for c in found.checks]
    return blocks | {f"{name} claims": "\n".join(["| claim | holds |", "|---|---|", *claims])}


if __name__ == "__main__":
    main(sys.argv[1:])
