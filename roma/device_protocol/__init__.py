"""What a dispatcher and the worker of a planned device say to each other, as bytes.

    dispatcher                        worker
      Connect(name, token)      ─►
                                ◄─    Hello(offer, signatures), or Refused(reason) and the end
      Ping(sent)                ─►
                                ◄─    Pong(sent, clock)
      Submit(action, inputs)    ─►
                                ◄─    Result(outcome, outputs)      one per action, in any order

A frame is a prefix (magic with the protocol's version; lengths of header and payload), a header in
JSON and a payload: the tensors' bytes. Nothing here reads a clock or knows a socket: `encode`
gives the bytes, a `Decoder` takes them as they come.

Times in messages are on the worker's clock, seconds; `ClockOffset` tells how that differs.
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
from roma.device_protocol.tensors import BYTES, DTYPES, Array, Chunk, Signature, TensorSpec, check

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
    "check",
    "encode",
]
