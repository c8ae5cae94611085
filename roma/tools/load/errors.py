"""Errors of the load generator, split by who can react.

    RomaError
    └── LoadError
        ├── LoadInputError    the author of a body file or an option
        └── NoAnswerError     the generator itself: a request ended without an HTTP answer

Only LoadInputError leaves this package: a missing answer becomes an outcome.
"""

from roma.domain.errors import ConfigError, RomaError


class LoadError(RomaError):
    """Root of the load generator's errors."""


class LoadInputError(LoadError, ConfigError):
    """An input is wrong; the message names the value and its bound."""


class NoAnswerError(LoadError):
    """A request ended without an HTTP answer; `reason` is a short phrase for grouping."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
