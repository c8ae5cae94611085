"""Run the named benchmarks, or all of them.

`simulation N`: memory up to N million requests. `gateway DIRECTORY…`: other checkouts beside.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from bench import (
    actuation,
    board,
    bodies,
    decisions,
    gateway,
    idle,
    overload,
    simulation,
    ticks,
)

ALL: dict[str, Callable[[], None]] = {
    "decisions": decisions.run,
    "ticks": ticks.run,
    "actuation": actuation.run,
    "board": board.run,
    "simulation": simulation.run,
    "bodies": bodies.run,
    "gateway": gateway.run,
    "overload": overload.run,
    "idle": idle.run,
}


def main(names: list[str]) -> None:
    """Run benchmarks by name; exit 2 for an unknown one."""
    match names:
        case ["simulation", millions] if millions.isdigit():
            simulation.run(int(millions))
            return
        case ["gateway", *others] if others and all(Path(other).is_dir() for other in others):
            gateway.run(tuple(map(Path, others)))
            return
    for name in names or ALL:
        if name not in ALL:
            sys.exit(f"{name}: must be one of {', '.join(ALL)}")
        ALL[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
