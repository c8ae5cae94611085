"""Errors of the model server, split by who can react.

    ServingError
    ├── ModelDirectoryError   the operator: a folder holds no version that can be served
    ├── ModelLoadError        the operator: no model could be loaded
    └── ListenError           the operator: the address cannot be bound

The first and the third are also `LaunchError`s: a restart cannot help. Clients' faults are in
`roma.tensors.errors`; `roma.serving.api` maps their codes to statuses.
"""

from roma.domain.errors import LaunchError, RomaError
from roma.tensors.errors import BodyTooLarge, Code, RequestError

__all__ = [
    "BodyTooLarge",
    "Code",
    "ListenError",
    "ModelDirectoryError",
    "ModelLoadError",
    "RequestError",
    "ServingError",
]


class ServingError(RomaError):
    """Root of every error that the model server raises on purpose."""


class ModelDirectoryError(ServingError, LaunchError):
    """A model's folder is missing, or lacks a version that it must have."""


class ModelLoadError(ServingError):
    """No model could be loaded, so there is nothing to serve."""


class ListenError(ServingError, LaunchError):
    """The address cannot be bound."""
