"""Protobuf messages: an untyped alias and a parser."""

from typing import Any

from roma.serving.errors import RequestError

Message = Any
"""A protobuf message; the generated classes carry no types."""


def parse(message: Message, request: bytes) -> Message:
    """Fill an empty message and return it; raises RequestError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        message.ParseFromString(request)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise RequestError(f"The request is no {name} message") from None
    return message
