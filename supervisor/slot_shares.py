"""Division of an executable's slots among the dispatchers that send to it.

Each gets whole slots, by its share of the model's last arrivals, and at least one, so that a
dispatcher without load can begin. Where there are at least as many slots as dispatchers, they never
use more than the total, not even while slots move: a slot that one gives up goes to another a
period later, and only once it is no longer in flight.
"""

import math
from collections.abc import Collection, Mapping

EVEN = 0.5
"""Part of the slots that is divided evenly, whatever the dispatchers' load: when one ends, its
clients reach another before the next exchange."""


def divide_slots(total: int, rates: Mapping[str, float]) -> dict[str, int]:
    """Return each dispatcher's slots: at least one, the rest by arrivals per second."""
    count, arrivals = len(rates), sum(rates.values())
    left = max(0, total - count)
    unrounded = {
        name: left * (EVEN / count + (1 - EVEN) * (rate / arrivals if arrivals else 1 / count))
        for name, rate in rates.items()
    }
    found = {name: 1 + math.floor(part) for name, part in unrounded.items()}
    # The largest remainders get the rest; ties go by name, whoever asks.
    by_rest = sorted(
        unrounded, key=lambda name: (math.floor(unrounded[name]) - unrounded[name], name)
    )
    for name in by_rest[: total - sum(found.values()) if left else 0]:
        found[name] += 1
    return found


class SlotShares:
    """The last answer to each dispatcher; `begin` a period before asking."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], int] = {}
        self._before: dict[tuple[str, str], int] = {}

    def keep(self, executables: Collection[str]) -> None:
        """Forget all other executables."""
        self._told = {key: slots for key, slots in self._told.items() if key[1] in executables}

    def begin(self) -> None:
        """Begin a control period."""
        self._before = dict(self._told)

    def of(
        self,
        dispatcher: str,
        executable: str,
        total: int,
        rates: Mapping[str, float],
        in_flight: Mapping[str, int],
    ) -> int:
        """Return the share of `total` slots that a dispatcher may take.

        `rates` and `in_flight` are by dispatcher, for all that may send; `rates` includes this one.
        """
        mine = divide_slots(total, rates)[dispatcher]
        others = (d for d in rates if d != dispatcher)
        held = sum(
            max(self._before.get((d, executable), 1), in_flight.get(d, 0), 1) for d in others
        )
        # Slots it had already take nothing from the others, who lose theirs in the same period.
        had = self._before.get((dispatcher, executable), 1)
        mine = max(1, min(mine, max(had, total - held)))
        self._told[dispatcher, executable] = mine
        return mine
