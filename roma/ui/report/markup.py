"""HTML without a template language: text is escaped where it becomes markup."""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """A piece of finished markup."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str) -> Html:
    """Return an element; content is escaped unless it is `Html`; `class_` means `class`."""
    given = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Return the concatenation of pieces of markup."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Html:
    """Return a table that scrolls on its own; all but the first `words` columns are numbers."""

    def row(name: str, cells: Sequence[str]) -> Html:
        return tag(
            "tr",
            *(
                tag(name, cell, **({} if i < words else {"class_": "number"}))
                for i, cell in enumerate(cells)
            ),
        )

    body = joined(row("td", cells) for cells in rows)
    whole = tag("table", tag("thead", row("th", columns)), tag("tbody", body))
    return tag("div", whole, class_="wide", tabindex="0")


def items(parts: Iterable[str]) -> Html:
    """Return a list."""
    return tag("ul", *(tag("li", part) for part in parts))
