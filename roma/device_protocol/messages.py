"""Messages between a dispatcher and a device; the set is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roma.device_protocol.tensors import Array, Signature
from roma.domain.actions import Action, ActionOutcome, Capabilities

PROTOCOL = 1
"""Version of the protocol, raised by one at every incompatible change."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The first message, from the dispatcher; `token` is empty if none is required."""

    dispatcher: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The device's answer: its capabilities, and the signatures of its models."""

    worker: str
    offer: Capabilities
    signatures: Mapping[str, Mapping[str, Signature]]
    """Signatures by model and signature name."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The device's last message, with the reason for the refusal."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for the device's time; `sent` is on the dispatcher's clock."""

    sent: float


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping: the device's clock when the Ping was read."""

    sent: float
    clock: float


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """An action to execute; an Infer carries the signature's name and its inputs."""

    action: Action
    signature: str = ""
    inputs: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ActionResult:
    """Outcome of an action; an Infer with status OK carries its outputs."""

    outcome: ActionOutcome
    outputs: Mapping[str, Array] = field(default_factory=dict)


Message = Connect | Hello | Refused | Ping | Pong | Submit | ActionResult
