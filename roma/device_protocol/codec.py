"""Encoding of messages: prefix, header in JSON, payload of tensors."""

import math
import struct
from collections.abc import Mapping
from typing import Any, assert_never

import orjson

from roma.device_protocol.fields import LARGEST, Fields
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
from roma.device_protocol.tensors import (
    Array,
    Chunk,
    Signature,
    pack,
    specs_from_json,
    specs_to_json,
    unpack,
)
from roma.domain.actions import (
    Action,
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Infer,
    Load,
    ModelCapabilities,
    Unload,
)
from roma.domain.errors import WireError

_MAGIC = b"ROM" + bytes([PROTOCOL])
_PREFIX = struct.Struct("<4sIQ")
"""Prefix of a frame: magic, bytes of the header, bytes of the payload."""

_STATUSES = frozenset(status.value for status in ActionStatus)

MAX_HEADER = 16 * 2**20
"""Largest header in bytes; a Hello of ten thousand models has about five million."""
MAX_PAYLOAD = 256 * 2**20
"""Default largest payload in bytes: sixteen images of 4096 × 4096 bytes."""


def encode(message: Message) -> list[Chunk]:
    """Return a message's bytes in pieces, for `writelines`; arrays are not copied.

    Raises WireError for values that cannot be sent: types not in DTYPES, times that are not finite.
    """
    header, tensors = _header(message)
    header["tensors"], chunks, size = pack(tensors)
    try:
        text = orjson.dumps(header)
    except TypeError as error:  # half a character, in a name or in what an exception says
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


def _header(message: Message) -> tuple[dict[str, Any], Mapping[str, Array]]:
    match message:
        case Submit(action, signature, inputs):
            return {"kind": "submit", **_action(action), "signature": signature}, inputs
        case ActionResult(outcome, outputs):
            return {"kind": "result", **_outcome(outcome)}, outputs
        case Hello():
            return _hello(message), {}
        case _:
            return _small(message), {}


def _small(message: Connect | Refused | Ping | Pong) -> dict[str, Any]:
    match message:
        case Connect(dispatcher, token):
            return {"kind": "connect", "dispatcher": dispatcher, "token": token}
        case Refused(reason):
            return {"kind": "refused", "reason": reason}
        case Ping(sent):
            return {"kind": "ping", "sent": _finite("sent", sent)}
        case Pong(sent, clock):
            return {"kind": "pong", "sent": sent, "clock": clock}
        case _:
            assert_never(message)


def _hello(hello: Hello) -> dict[str, Any]:
    offer = hello.offer
    return {
        "kind": "hello",
        "worker": hello.worker,
        "protocol": hello.protocol,
        "pages": offer.pages,
        "models": {n: _model(m, hello.signatures.get(n, {})) for n, m in offer.models.items()},
        "loaded": list(offer.loaded),
    }


def _model(offer: ModelCapabilities, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    return {
        "pages": offer.pages,
        "load": _finite("load", offer.load),
        "any_batch": offer.any_batch,
        "executions": {str(b): _finite("execution", t) for b, t in offer.executions.items()},
        "signatures": {
            name: {"inputs": specs_to_json(s.inputs), "outputs": specs_to_json(s.outputs)}
            for name, s in signatures.items()
        },
    }


def _action(action: Action) -> dict[str, Any]:
    told: dict[str, Any] = {"action": type(action).__name__.lower(), "id": action.id}
    told["model"] = action.model
    if isinstance(action, Unload):
        return told
    # JSON has no infinity: null means that an action may begin at any time.
    latest = None if action.latest == math.inf else _finite("latest", action.latest)
    told |= {"earliest": _finite("earliest", action.earliest), "latest": latest}
    return told | {"batch": action.batch} if isinstance(action, Infer) else told


def _outcome(outcome: ActionOutcome) -> dict[str, Any]:
    told = {"id": outcome.id, "status": outcome.status.value, "detail": outcome.detail}
    return told | {"began": outcome.began, "ended": outcome.ended}


def _finite(name: str, value: float) -> float:
    if not abs(value) <= LARGEST:
        raise WireError(f"{name} = {value}: must be a number within ± {LARGEST:g}")
    return value


def _message(header: bytearray, payload: bytearray) -> Message:
    try:
        fields = Fields(orjson.loads(header))
    except orjson.JSONDecodeError as error:
        raise WireError(f"header: is no JSON: {error}") from None
    tensors = unpack(fields.value("tensors"), payload)
    kind = fields.text("kind")
    if tensors and kind not in ("submit", "result"):
        raise WireError(f"kind = {kind}: must have no tensors")
    match kind:
        case "submit":
            return Submit(_read_action(fields), fields.text("signature"), tensors)
        case "result":
            return ActionResult(_read_outcome(fields), tensors)
        case "hello":
            return _read_hello(fields)
    return _read_small(kind, fields)


def _read_small(kind: str, fields: Fields) -> Message:
    match kind:
        case "connect":
            return Connect(fields.text("dispatcher"), fields.text("token"))
        case "refused":
            return Refused(fields.text("reason"))
        case "ping":
            return Ping(fields.number("sent"))
        case "pong":
            return Pong(fields.number("sent"), fields.number("clock"))
    raise WireError(f"kind = {kind}: is not known")


def _read_action(fields: Fields) -> Action:
    kind, number, model = fields.text("action"), fields.whole("id"), fields.text("model")
    if kind == "unload":
        return Unload(number, model)
    if kind not in ("infer", "load"):
        raise WireError(f"action = {kind}: is not known")
    earliest = fields.number("earliest")
    latest = math.inf if fields.value("latest") is None else fields.number("latest")
    if kind == "load":
        return Load(number, model, earliest, latest)
    return Infer(number, model, fields.whole("batch", 1), earliest, latest)


def _read_outcome(fields: Fields) -> ActionOutcome:
    text = fields.text("status")
    if text not in _STATUSES:
        raise WireError(f"status = {text}: is not known")
    times = fields.number("began"), fields.number("ended")
    return ActionOutcome(fields.whole("id"), ActionStatus(text), *times, fields.text("detail"))


def _read_hello(fields: Fields) -> Hello:
    models, signatures = {}, {}
    for name, told in fields.table("models").items():
        models[name] = ModelCapabilities(
            told.whole("pages", 1),
            told.number("load"),
            told.by_batch("executions"),
            told.flag("any_batch"),
        )
        signatures[name] = {
            signature: Signature(
                specs_from_json(specs.value("inputs")), specs_from_json(specs.value("outputs"))
            )
            for signature, specs in told.table("signatures").items()
        }
    offer = Capabilities(fields.whole("pages"), models, fields.texts("loaded"))
    return Hello(fields.text("worker"), offer, signatures, fields.whole("protocol"))
