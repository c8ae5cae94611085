"""The closed vocabulary between a dispatcher and a worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roma.device_protocol.tensors import Array, Signature
from roma.domain.actions import Action, ActionOutcome, Capabilities

PROTOCOL = 1
"""Raised by one whenever a peer of the version before could not understand."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The first message, from the dispatcher; `token` is empty where none is asked for."""

    dispatcher: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker's answer: its device, its models, and what each takes and gives."""

    worker: str
    offer: Capabilities
    signatures: Mapping[str, Mapping[str, Signature]]
    """By model, by signature name."""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker's last message, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """A question for the time; `sent` is on the dispatcher's clock."""

    sent: float


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer: the worker's clock when the Ping was read."""

    sent: float
    clock: float


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """An action; an Infer has the signature's name and its inputs."""

    action: Action
    signature: str = ""
    inputs: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ActionResult:
    """What became of an action; an Infer that is OK has its outputs."""

    outcome: ActionOutcome
    outputs: Mapping[str, Array] = field(default_factory=dict)


Message = Connect | Hello | Refused | Ping | Pong | Submit | ActionResult
