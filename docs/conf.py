"""The documentation site: `make docs`. Warnings are errors: a stale link or page fails the build."""

from importlib import metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexer import RegexLexer
from pygments.token import Text
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "ROMA"
release = metadata.version("roma-control-plane")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["**/*.py"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"ROMA {release}"
html_static_path: list[str] = []
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Code fences of roma.yaml, metrics and shell sessions are for people, not for a highlighter.
highlight_language = "text"


def _repository_file(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """Show a link to a file of the repository outside docs/ as text, if the file exists."""
    target = str(node.get("reftarget", "")).partition("#")[0]
    here = Path(app.srcdir) / str(node.get("refdoc", ""))
    for base in (here.parent, ROOT, Path(app.srcdir)):
        if target and (base / target).exists():
            return content
    return None


class Diagram(RegexLexer):  # type: ignore[misc]  # Pygments has no types
    """Mermaid's diagrams, shown as text."""

    name, aliases, tokens = "Mermaid", ["mermaid"], {"root": [(r".+\n?|\n", Text)]}


def setup(app: Sphinx) -> None:
    """Register the resolver."""
    app.add_lexer("mermaid", Diagram)
    app.connect("missing-reference", _repository_file)
