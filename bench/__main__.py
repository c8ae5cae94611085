"""Run the named benchmarks, or all but those of BY_NAME.

`peers` needs `make peers`. `kubernetes` needs `make kubernetes` (three minutes; exits 1 if an aim
is missed).
`simulation N`: memory up to N million requests. `overload S`: seconds of each load. `quota S`:
seconds of each of five rounds (38 minutes; exits 1 if kernel and simulator differ).
`loading MODEL [CORES]`: which of the demo's models is served, cpu.initial of the other.
`--beside CLONE [gateway] [decisions] [ticks]`: CPU time compared with that of another checkout, in
which `make wheel` was run; exit 1 if a median ratio is above 1.03. `promise` (ten minutes; exits 1
if an aim is missed) and `variants` (six): `--seconds S --page DOCUMENT`, which a busy machine
spoils.
"""

import signal
import sys
from collections.abc import Callable

from bench import (
    actuation,
    beside,
    board,
    bodies,
    decisions,
    fleet,
    gateway,
    idle,
    kubernetes,
    loading,
    overload,
    peers,
    periods,
    planned,
    promise,
    quality,
    quota,
    simulation,
    ticks,
    variants,
)

ALL: dict[str, Callable[[], None]] = {
    "decisions": decisions.run,
    "fleet": fleet.run,
    "quality": quality.run_all,
    "ticks": ticks.run,
    "actuation": actuation.run,
    "board": board.run,
    "simulation": simulation.run,
    "bodies": bodies.run,
    "gateway": gateway.run,
    "overload": overload.run,
    "idle": idle.run,
    "loading": loading.run,
    "periods": periods.run,
    "planned": planned.run,
    "quota": quota.run,
    "peers": peers.run,
    "promise": promise.run,
    "variants": variants.run,
    "kubernetes": kubernetes.run,
}
BY_NAME = ("kubernetes", "peers", "promise", "quota", "variants")
"""Not among those that are run where none is named."""

WITH_NUMBER: dict[str, Callable[[int], None]] = {
    "simulation": simulation.run,
    "overload": overload.run,
    "quota": quota.run,
}
"""These take a number."""

WITH_OPTIONS = {"--beside": beside.run, "promise": promise.run, "variants": variants.run}
"""These take what follows them."""


def main(names: list[str]) -> None:
    """Run benchmarks by name; exit 2 for an unknown one."""
    match names:
        case [name, number] if name in WITH_NUMBER and number.isdigit():
            WITH_NUMBER[name](int(number))
            return
        case ["loading", served, *initial] if len(initial) < 2:
            loading.run(served, *map(float, initial))
            return
        case [name, *options] if name in WITH_OPTIONS:
            WITH_OPTIONS[name](options)
            return
    for name in names or [name for name in ALL if name not in BY_NAME]:
        if name not in ALL:
            sys.exit(f"{name}: must be one of {', '.join(ALL)}")
        ALL[name]()


if __name__ == "__main__":
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))
    main(sys.argv[1:])
