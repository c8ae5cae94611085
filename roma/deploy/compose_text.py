"""Parts of a Compose file that hold the user's own paths: any path must stay what it is."""

from typing import Any


def escaped(text: str) -> str:
    """Escape dollar signs: Compose substitutes variables at `$`, and `$$` stands for one."""
    return text.replace("$", "$$")


def bind(source: str, target: str, *, read_only: bool = True) -> dict[str, Any]:
    """Return a mount in the long syntax: the short one splits a path at its colons."""
    return {
        "type": "bind",
        "source": escaped(source),
        "target": target,
        **({"read_only": True} if read_only else {}),
    }
