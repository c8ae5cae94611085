"""Write the life-cycle diagrams of docs/architecture.md from the tables that the code runs on.

`python docs/diagrams.py` rewrites the file; `--check` fails if it is out of date.
"""

import re
import sys
from pathlib import Path

from dispatcher.live.http.input_states import INPUT
from dispatcher.live.program import PROGRAM
from dispatcher.state.lifecycle import EXECUTOR, REQUEST, ROTATION

FILE = Path(__file__).with_name("architecture.md")


def render(text: str) -> str:
    """Return the document with fresh diagrams between its markers."""
    for cycle in (REQUEST, EXECUTOR, ROTATION, INPUT, PROGRAM):
        block = f"<!-- {cycle.name} -->\n```mermaid\n{cycle.mermaid()}\n```\n<!-- end -->"
        text = re.sub(rf"<!-- {cycle.name} -->.*?<!-- end -->", block, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Rewrite or check."""
    text = FILE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if render(text) == text else f"{FILE} is out of date: run {sys.argv[0]}")
    FILE.write_text(render(text))


if __name__ == "__main__":
    main()
