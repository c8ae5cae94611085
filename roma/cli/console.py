"""A console for wide tables."""

import sys

from rich.console import Console

WIDTH = 140
"""Columns where the output is no terminal: rich would squeeze everything into 80."""


def wide_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)
