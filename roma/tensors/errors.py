"""Errors in a request's body, with TensorFlow's status codes.

These errors know nothing of HTTP: a server maps a code to a status.
"""

from enum import IntEnum

from roma.domain.errors import RomaError


class Code(IntEnum):
    """The canonical status codes that TensorFlow and TensorFlow Serving answer with.

    Source: google/rpc/code.proto; the numbers are those of `tf.errors.OpError.error_code`.
    """

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BodyTooLarge(RomaError):
    """A request body exceeds the server's limit; TensorFlow has no code for this."""


class RequestError(RomaError):
    """A request that cannot be answered; the text is meant for the client."""

    def __init__(self, message: str, code: Code = Code.INVALID_ARGUMENT) -> None:
        super().__init__(message)
        self.code = code
