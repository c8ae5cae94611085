"""Protobuf messages as the generated classes have them: without types."""

from typing import Any

from roma.serving.errors import RequestError

Message = Any
"""A protobuf message. The generated classes carry no types, so that this is what they all are."""


def parse(message: Message, request: bytes) -> Message:
    """Fill an empty message and return it; raises RequestError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        message.ParseFromString(request)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise RequestError(f"The request is no {name} message") from None
    return message
