"""Action protocol between a dispatcher and a planned device: messages and their encoding.

    dispatcher                        device
      Connect(name, token)      ─►
                                ◄─    Hello(offer, signatures), or Refused(reason) and the end
      Ping(sent)                ─►
                                ◄─    Pong(sent, clock)
      Submit(action, inputs)    ─►
                                ◄─    Result(outcome, outputs)      one per action, in any order

A frame is a prefix (magic with the protocol's version; lengths of header and payload), a header in
JSON and a payload: the tensors' bytes. Nothing here reads a clock or uses a socket: `encode`
returns the bytes, and a `Decoder` takes them in any pieces.

Times in messages are on the device's clock, in seconds; `ClockOffset` estimates its offset.
"""

from roma.device_protocol.clock import ClockOffset
from roma.device_protocol.codec import MAX_HEADER, MAX_PAYLOAD, Decoder, encode
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
    BYTES,
    DTYPES,
    Array,
    Chunk,
    Signature,
    TensorSpec,
    bytes_of,
    check,
)

__all__ = [
    "BYTES",
    "DTYPES",
    "MAX_HEADER",
    "MAX_PAYLOAD",
    "PROTOCOL",
    "ActionResult",
    "Array",
    "Chunk",
    "ClockOffset",
    "Connect",
    "Decoder",
    "Hello",
    "Message",
    "Ping",
    "Pong",
    "Refused",
    "Signature",
    "Submit",
    "TensorSpec",
    "bytes_of",
    "check",
    "encode",
]
