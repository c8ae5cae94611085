"""Run the named benchmarks, or all of them."""

import sys

from bench import bodies, decisions, gateway, ticks

ALL = {
    "decisions": decisions.run,
    "ticks": ticks.run,
    "bodies": bodies.run,
    "gateway": gateway.run,
}


def main(names: list[str]) -> None:
    """Run benchmarks by name; exit 2 for an unknown one."""
    for name in names or ALL:
        if name not in ALL:
            sys.exit(f"{name}: must be one of {', '.join(ALL)}")
        ALL[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
