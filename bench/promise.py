"""Promises that defaults keep with real processes: `roma experiment run promise`, live.

    python -m bench promise [--seconds 5] [--page DOCUMENT] [PART …]

Every request counts: a refused, failed or abandoned one is late. Needs two cores and wrk, and about
ten minutes of a machine that does nothing else. Exits 1 if an aim is missed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench import promise_overload, promise_shared
from bench.proxies import needs
from roma.lab.experiments import output
from roma.lab.experiments.base import Check, Table
from roma.lab.experiments.promise import together

SECONDS = 5.0
"""Seconds of each load; the cheap model beside neighbours, where a late request in 200 counts, gets
twice as long."""

Found = tuple[Table, list[Check]]

PARTS: dict[str, Callable[[float], Found]] = {
    "stand-in": promise_overload.on_standin,
    "tensorflow": promise_overload.on_tensorflow,
    "neighbours": lambda seconds: promise_shared.beside(2 * seconds),
    "rare": lambda _: promise_shared.rare(),
}


def run(argv: Sequence[str] = ()) -> None:
    """Print the tables of all parts, or of those that are named, and put them into a document."""
    parser = argparse.ArgumentParser("python -m bench promise")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load")
    parser.add_argument("--page", type=Path, help="document with places for tables and claims")
    options = parser.parse_args(argv)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(PARTS)}")
    needs("promise", "wrk")
    found = [PARTS[part](options.seconds) for part in options.parts or PARTS]
    shown = together(found)
    output.show(shown, Console())
    for table, checks in found if options.page else ():
        output.fill(options.page, table.name, together([(table, checks)]))
    if not all(check.holds for check in shown.checks):
        sys.exit(1)
