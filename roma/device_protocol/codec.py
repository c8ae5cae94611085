"""Encoding of messages: prefix, header in JSON, payload of tensors."""

import math
import struct
from collections.abc import Mapping
from typing import assert_never

import msgspec
from msgspec import UNSET

from roma.device_protocol.headers import (
    LARGEST,
    ActionKind,
    AnyHeader,
    ConnectHeader,
    HelloHeader,
    ModelHeader,
    PartHeader,
    PingHeader,
    PongHeader,
    RefusedHeader,
    ResultHeader,
    SubmitHeader,
)
from roma.device_protocol.messages import (
    PROTOCOL,
    ActionResult,
    Connect,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Submit,
)
from roma.device_protocol.tensors import Array, Chunk, TensorHeader, pack, unpack
from roma.domain.actions import (
    Action,
    ActionOutcome,
    Capabilities,
    Discard,
    ExecutionPart,
    Infer,
    Load,
    ModelCapabilities,
    Segment,
    Unload,
)
from roma.domain.errors import WireError

_MAGIC = b"ROM" + bytes([PROTOCOL])
_PREFIX = struct.Struct("<4sIQ")
"""Prefix of a frame: magic, bytes of the header, bytes of the payload."""

_READER = msgspec.json.Decoder(AnyHeader)

_KINDS: Mapping[type[Action], ActionKind] = {
    Infer: "infer",
    Load: "load",
    Unload: "unload",
    Discard: "discard",
}

MAX_HEADER = 16 * 2**20
"""Largest header in bytes; a Hello of ten thousand models has about five million."""
MAX_PAYLOAD = 256 * 2**20
"""Largest payload in bytes: sixteen images of 4096 × 4096 bytes."""


def encode(message: Message) -> list[Chunk]:
    """Return a message's bytes in pieces, for `writelines`; arrays are not copied.

    Raises WireError for what cannot be sent: types not in DTYPES, times that are not finite,
    tensors beyond MAX_PAYLOAD.
    """
    described, chunks, size = pack(_tensors(message))
    if size > MAX_PAYLOAD:  # the other side would close the connection
        raise WireError(f"payload = {size} bytes: must be ≤ {MAX_PAYLOAD}")
    try:
        text = msgspec.json.encode(_header(message, described))
    except UnicodeEncodeError as error:  # half a character, in a name or an exception's text
        raise WireError(f"header: cannot be written: {error}") from None
    if len(text) > MAX_HEADER:
        raise WireError(f"header = {len(text)} bytes: must be ≤ {MAX_HEADER}")
    return [_PREFIX.pack(_MAGIC, len(text), size), text, *chunks]


class Decoder:
    """Decoder: bytes in any pieces in, messages out. It cannot be used after a WireError.

    The limits, in bytes, apply from the next frame on: an unauthenticated peer gets smaller ones.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD, max_header: int = MAX_HEADER) -> None:
        self.max_payload = max_payload
        self.max_header = max_header
        self._parts: list[bytearray] = []
        """Parts of the frame read so far: its prefix, its header, its payload."""
        self._filled = 0
        """Bytes read of the last part."""
        self._open(_PREFIX.size)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Take received bytes; return the messages that they complete. Raises WireError."""
        messages: list[Message] = []
        view = memoryview(data)
        while view:
            part = self._parts[-1]
            taken = view[: len(part) - self._filled]
            part[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            view = view[len(taken) :]
            while self._filled == len(self._parts[-1]):
                messages += self._next()
        return messages

    def _open(self, size: int) -> None:
        self._parts.append(bytearray(size))
        self._filled = 0

    def _next(self) -> list[Message]:
        """Start the next part; return the message if the frame is complete."""
        match self._parts:
            case [prefix]:
                self._open(self._lengths(prefix)[0])
            case [prefix, _]:
                self._open(self._lengths(prefix)[1])
            case [_, header, payload]:
                self._parts = []
                self._open(_PREFIX.size)
                return [_message(header, payload)]
        return []

    def _lengths(self, prefix: bytearray) -> tuple[int, int]:
        magic, header, payload = _PREFIX.unpack(prefix)
        if magic[:3] != _MAGIC[:3]:
            raise WireError(f"magic = {magic!r}: must be {_MAGIC!r}: this is another protocol")
        if magic != _MAGIC:
            raise WireError(f"protocol = {magic[3]}: must be {PROTOCOL}")
        for name, size, most in (
            ("header", header, self.max_header),
            ("payload", payload, self.max_payload),
        ):
            if size > most:
                raise WireError(f"{name} = {size} bytes: must be ≤ {most}")
        return header, payload


def _tensors(message: Message) -> Mapping[str, Array]:
    match message:
        case Submit(inputs=tensors) | ActionResult(outputs=tensors):
            return tensors
    return {}


def _header(message: Message, tensors: list[TensorHeader]) -> AnyHeader:  # noqa: PLR0911
    match message:
        case Submit(action, signature):
            return _submit(action, signature, tensors)
        case ActionResult(o):
            return ResultHeader(
                tensors=tensors,
                id=o.id,
                status=o.status,
                detail=o.detail,
                began=_finite("began", o.began),
                ended=_finite("ended", o.ended),
            )
        case Hello():
            return _hello(message, tensors)
        case Connect(dispatcher, token):
            return ConnectHeader(tensors=tensors, dispatcher=dispatcher, token=token)
        case Refused(reason):
            return RefusedHeader(tensors=tensors, reason=reason)
        case Ping(sent):
            return PingHeader(tensors=tensors, sent=_finite("sent", sent))
        case Pong(sent, clock):
            return PongHeader(tensors=tensors, sent=sent, clock=_finite("clock", clock))
        case _:
            assert_never(message)


def _submit(action: Action, signature: str, tensors: list[TensorHeader]) -> SubmitHeader:
    header = SubmitHeader(
        tensors=tensors,
        action=_KINDS[type(action)],
        id=action.id,
        model=action.model,
        signature=signature,
    )
    if isinstance(action, Discard):
        header.infer = action.infer
    if isinstance(action, Infer | Load):
        header.earliest = _finite("earliest", action.earliest)
        header.latest = None if action.latest == math.inf else _finite("latest", action.latest)
    if isinstance(action, Infer):
        header.batch = action.batch
        if (part := action.part) is not None:
            s = part.segment
            segment = None if s is None else (s.begin, s.end, s.total)
            header.part = PartHeader(segment, part.continues, part.with_next)
    return header


def _hello(hello: Hello, tensors: list[TensorHeader]) -> HelloHeader:
    offer = hello.offer
    models = {
        name: ModelHeader(
            pages=m.pages,
            load=_finite("load", m.load),
            executions={b: _finite("execution", t) for b, t in m.executions.items()},
            signatures=dict(hello.signatures.get(name, {})),
            any_batch=m.any_batch,
            segments=m.segments,
        )
        for name, m in offer.models.items()
    }
    return HelloHeader(
        tensors=tensors,
        worker=hello.worker,
        protocol=PROTOCOL,
        pages=offer.pages,
        models=models,
        loaded=offer.loaded,
        together=offer.together,
    )


def _finite(name: str, value: float) -> float:
    if not abs(value) <= LARGEST:
        raise WireError(f"{name} = {value}: must be a number within ± {LARGEST:g}")
    return value


def _message(header: bytearray, payload: bytearray) -> Message:  # noqa: PLR0911
    try:
        found = _READER.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"header: {error}") from None
    tensors = unpack(found.tensors, payload)
    if tensors and not isinstance(found, SubmitHeader | ResultHeader):
        raise WireError(f"{type(found).__name__}: must have no tensors")
    match found:
        case SubmitHeader():
            return Submit(_action(found), found.signature, tensors)
        case ResultHeader():
            f = found
            outcome = ActionOutcome(f.id, f.status, f.began, f.ended, f.detail)
            return ActionResult(outcome, tensors)
        case HelloHeader():
            return _offer(found)
        case ConnectHeader():
            return Connect(found.dispatcher, found.token)
        case RefusedHeader():
            return Refused(found.reason)
        case PingHeader():
            return Ping(found.sent)
        case PongHeader():
            return Pong(found.sent, found.clock)
        case _:
            assert_never(found)


def _action(header: SubmitHeader) -> Action:
    if header.action == "unload":
        return Unload(header.id, header.model)
    if header.action == "discard":
        return Discard(header.id, header.model, header.infer)
    if header.earliest is UNSET or header.latest is UNSET:
        raise WireError(f"action = {header.action}: must have earliest and latest")
    times = header.earliest, math.inf if header.latest is None else header.latest
    if header.action == "load":
        return Load(header.id, header.model, *times)
    if header.batch is UNSET:
        raise WireError("action = infer: must have a batch")
    return Infer(header.id, header.model, header.batch, *times, part=_part(header.part))


def _part(header: PartHeader | None) -> ExecutionPart | None:
    if header is None:
        return None
    segment = None if header.segment is None else Segment(*header.segment)
    if segment is not None and not segment.begin < segment.end <= segment.total:
        raise WireError(f"segment = {header.segment}: must be a part of its total")
    return ExecutionPart(segment, header.continues, header.with_next)


def _offer(header: HelloHeader) -> Hello:
    models = {
        name: ModelCapabilities(m.pages, m.load, m.executions, m.any_batch, m.segments)
        for name, m in header.models.items()
    }
    offer = Capabilities(header.pages, models, header.loaded, header.together)
    signatures = {name: m.signatures for name, m in header.models.items()}
    return Hello(header.worker, offer, signatures)
