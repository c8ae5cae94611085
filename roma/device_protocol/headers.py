"""The header of each kind of message as it is sent: JSON, checked by msgspec as it is read.

Fields that are not known are skipped, so that later versions may add some.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from roma.device_protocol.tensors import Signature, TensorHeader
from roma.domain.actions import ActionStatus

LARGEST: Final = 1e12
"""Largest magnitude of a number: thirty thousand years in seconds."""

Seconds = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
MOST: Final = 2**63 - 1
Whole = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]


ActionKind = Literal["infer", "load", "unload", "discard"]


class FrameHeader(Struct, kw_only=True, tag_field="kind"):
    """Base of headers; `tensors` describes the payload."""

    tensors: list[TensorHeader]


class ConnectHeader(FrameHeader, tag="connect"):
    """Header of Connect."""

    dispatcher: str
    token: str


class RefusedHeader(FrameHeader, tag="refused"):
    """Header of Refused."""

    reason: str


class PingHeader(FrameHeader, tag="ping"):
    """Header of Ping."""

    sent: Seconds


class PongHeader(FrameHeader, tag="pong"):
    """Header of Pong."""

    sent: Seconds
    clock: Seconds


class ModelHeader(Struct):
    """Header of one model of a Hello; `executions` is by batch size."""

    pages: Positive
    load: Seconds
    executions: dict[Whole, Seconds]
    signatures: dict[str, Signature]
    any_batch: bool = False
    segments: Positive = 1


class HelloHeader(FrameHeader, tag="hello"):
    """Header of Hello."""

    worker: str
    protocol: Whole
    pages: Whole
    models: dict[str, ModelHeader]
    loaded: tuple[str, ...]
    together: Positive = 1


class PartHeader(Struct):
    """Header of an ExecutionPart; `segment` is its begin, end and total."""

    segment: tuple[Whole, Positive, Positive] | None = None
    continues: Whole = 0
    with_next: bool = False


class SubmitHeader(FrameHeader, tag="submit", omit_defaults=True):
    """Header of Submit; an Unload and a Discard have neither times nor batch, and a Load no batch.

    `infer` is the action whose results a Discard means.
    """

    action: ActionKind
    id: Whole
    model: str
    signature: str
    batch: Positive | UnsetType = UNSET
    earliest: Seconds | UnsetType = UNSET
    latest: Seconds | UnsetType | None = UNSET
    """JSON has no infinity: null means that the action may begin at any time."""
    part: PartHeader | None = None
    infer: Whole = 0


class ResultHeader(FrameHeader, tag="result"):
    """Header of ActionResult."""

    id: Whole
    status: ActionStatus
    detail: str
    began: Seconds
    ended: Seconds


AnyHeader = (
    ConnectHeader
    | RefusedHeader
    | PingHeader
    | PongHeader
    | HelloHeader
    | SubmitHeader
    | ResultHeader
)
