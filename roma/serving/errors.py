"""What can go wrong in the model server, split by who can react.

    ServingError
    ├── ModelDirectoryError   the operator: a folder holds no version that can be served
    ├── ModelLoadError        the operator: not one model could be loaded
    ├── ListenError           the operator: the address cannot be bound
    ├── BodyTooLarge          the client: the body is longer than the server's limit
    └── RequestError          the client: the request cannot be answered, and `code` says why

The first and the third are a `LaunchError` too: starting again cannot help. These errors know no
HTTP: `roma.serving.api` maps a code to a status.
"""

from enum import IntEnum

from roma.errors import LaunchError, RomaError


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


class ServingError(RomaError):
    """Root of every error that the model server raises on purpose."""


class ModelDirectoryError(ServingError, LaunchError):
    """A model's folder is missing, or lacks a version that it must have."""


class ModelLoadError(ServingError):
    """No model could be loaded, so there is nothing to serve."""


class ListenError(ServingError, LaunchError):
    """The address cannot be bound."""


class BodyTooLarge(ServingError):
    """A request body is longer than the server's limit, which TensorFlow has no code for."""


class RequestError(ServingError):
    """A request that cannot be answered; the text is meant for the client."""

    def __init__(self, message: str, code: Code = Code.INVALID_ARGUMENT) -> None:
        super().__init__(message)
        self.code = code
