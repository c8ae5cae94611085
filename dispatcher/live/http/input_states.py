"""Life cycle of the input of a client's connection."""

from enum import StrEnum
from typing import Final

from roma.domain.lifecycle import LifeCycle


class Input(StrEnum):
    """Meaning of the next bytes of a client."""

    IDLE = "idle"
    """The first bytes of a request."""
    HEAD = "head"
    """More of a request's head."""
    QUEUED = "queued"
    """The body of a request; the handler sees its head once those before it are answered."""
    BODY = "body"
    """The body of a request whose head the handler has accepted."""
    REFUSED = "refused"
    """Discarded: a final response is sent, after the answers to earlier requests."""
    CLOSED = "closed"
    """Discarded: the connection closes once what was written is sent."""


class InputStep(StrEnum):
    """Steps of a connection's input."""

    BEGIN = "begin"
    QUEUE = "queue"
    ACCEPT = "accept"
    COMPLETE = "complete"
    REPEAT = "repeat"
    REFUSE = "refuse"
    CLOSE = "close"


INPUT: Final = LifeCycle(
    "connection",
    {
        (Input.IDLE, InputStep.BEGIN): Input.HEAD,
        (Input.HEAD, InputStep.ACCEPT): Input.BODY,
        (Input.HEAD, InputStep.QUEUE): Input.QUEUED,
        (Input.QUEUED, InputStep.ACCEPT): Input.BODY,
        (Input.QUEUED, InputStep.COMPLETE): Input.IDLE,
        (Input.BODY, InputStep.COMPLETE): Input.IDLE,
        (Input.HEAD, InputStep.REPEAT): Input.IDLE,  # its offer to upgrade was taken out
        (Input.IDLE, InputStep.REFUSE): Input.REFUSED,
        (Input.HEAD, InputStep.REFUSE): Input.REFUSED,
        (Input.QUEUED, InputStep.REFUSE): Input.REFUSED,
        (Input.BODY, InputStep.REFUSE): Input.REFUSED,
        **{(state, InputStep.CLOSE): Input.CLOSED for state in Input},
    },
)

# Reading a member of an Enum costs 70 ns in Python 3.11, and every request makes several steps.
IDLE: Final = Input.IDLE
HEAD: Final = Input.HEAD
QUEUED: Final = Input.QUEUED
BODY: Final = Input.BODY
REFUSED: Final = Input.REFUSED
CLOSED: Final = Input.CLOSED
BEGIN: Final = INPUT.step(InputStep.BEGIN)
QUEUE: Final = INPUT.step(InputStep.QUEUE)
ACCEPT: Final = INPUT.step(InputStep.ACCEPT)
COMPLETE: Final = INPUT.step(InputStep.COMPLETE)
REPEAT: Final = INPUT.step(InputStep.REPEAT)
REFUSE: Final = INPUT.step(InputStep.REFUSE)
CLOSE: Final = INPUT.step(InputStep.CLOSE)
