"""Errors in a load description."""

from roma.domain.errors import ConfigError


class WorkloadError(ConfigError):
    """A profile, a trace or an option of a load is wrong; the message names value and bound."""
