"""Life cycle of the dispatcher's program."""

from enum import StrEnum
from typing import Final

from roma.domain.lifecycle import LifeCycle


class ProgramState(StrEnum):
    """States of a dispatcher's program."""

    STARTING = "starting"
    """Clients are not admitted yet."""
    SERVING = "serving"
    LINGERING = "lingering"
    """Not ready any more, for load balancers; what arrives on open connections is still served."""
    DRAINING = "draining"
    """New requests are refused; those admitted are answered."""
    CLOSED = "closed"
    """Whatever is left is given up."""


class ProgramStep(StrEnum):
    """Steps of a program's life cycle."""

    OPEN = "open"
    STOP = "stop"
    DRAIN = "drain"
    CLOSE = "close"


_P, _PS = ProgramState, ProgramStep
PROGRAM: Final = LifeCycle(
    "program",
    {
        (_P.STARTING, _PS.OPEN): _P.SERVING,
        (_P.SERVING, _PS.STOP): _P.LINGERING,
        (_P.LINGERING, _PS.STOP): _P.LINGERING,  # a program around the dispatcher said so first
        (_P.LINGERING, _PS.DRAIN): _P.DRAINING,
        (_P.STARTING, _PS.CLOSE): _P.CLOSED,
        (_P.SERVING, _PS.CLOSE): _P.CLOSED,
        (_P.LINGERING, _PS.CLOSE): _P.CLOSED,
        (_P.DRAINING, _PS.CLOSE): _P.CLOSED,
    },
)

_STARTING: Final = ProgramState.STARTING
_SERVING: Final = ProgramState.SERVING
_DRAINING: Final = ProgramState.DRAINING
_CLOSED: Final = ProgramState.CLOSED


class Program:
    """The state of a dispatcher's program, for all of its front ends."""

    __slots__ = ("state", "was_opened")

    def __init__(self) -> None:
        self.state = _STARTING
        self.was_opened = False
        """True once clients were admitted."""

    def step(self, step: ProgramStep) -> None:
        """Make a step; raise InvalidTransition if it is illegal."""
        self.state = PROGRAM[self.state, step]
        self.was_opened = self.was_opened or step is ProgramStep.OPEN

    @property
    def is_ending(self) -> bool:
        """True if the program ends soon: readiness probes are answered with not ready."""
        return self.state is not _STARTING and self.state is not _SERVING

    @property
    def refuses(self) -> bool:
        """True if new requests are refused."""
        return self.state is _DRAINING or self.state is _CLOSED
