"""Colours of the page and its pictures, by role; light and dark, safe without red and green.

Pictures are drawn in the light colours. In the page each colour is replaced by the variable of its
role, so that a reader's dark mode applies to pictures too.
"""

import re

LIGHT = {
    "ink": "#1b2430",
    "muted": "#5b6776",
    "rule": "#d5dbe3",
    "paper": "#fefefe",
    "panel": "#f3f5f8",
    "response": "#1f6fb2",
    "sla": "#c2283a",
    "aim": "#8a6d00",
    "arrivals": "#7d8a99",
    "late": "#e39b21",
    "refused": "#c9463d",
    "failed": "#6b2a7a",
    "demanded": "#a0520f",
    "allocated": "#b5d69b",
    "applied": "#1d7a72",
    "used": "#9cc9c4",
    "queue": "#6a58b8",
    "gap": "#b4bcc7",
    "bad": "#f6c9c4",
}
DARK = {
    "ink": "#e6eaf0",
    "muted": "#9aa7b6",
    "rule": "#3a4452",
    "paper": "#141a21",
    "panel": "#1d252f",
    "response": "#6cb2ee",
    "sla": "#ff7482",
    "aim": "#dcb948",
    "arrivals": "#8c99a8",
    "late": "#eeb04a",
    "refused": "#ee7a70",
    "failed": "#c58ad6",
    "demanded": "#eb9a5c",
    "allocated": "#45672b",
    "applied": "#55c8bd",
    "used": "#2c6b66",
    "queue": "#a99bf0",
    "gap": "#566171",
    "bad": "#5c2a2a",
}

_ROLE = {colour: role for role, colour in LIGHT.items()}


def by_role(svg: str) -> str:
    """Return a picture with its colours replaced by the page's variables."""
    return re.sub(
        r"#[0-9a-f]{6}\b",
        lambda found: f"var(--{_ROLE[found[0]]})" if found[0] in _ROLE else found[0],
        svg,
    )


def css() -> str:
    """Return both sets of colours as CSS variables."""
    light, dark = (
        "".join(f"--{role}:{colour};" for role, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
