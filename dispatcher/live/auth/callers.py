"""Callers, their grants and refusals: the data types of `access.py`."""

import math
from typing import Protocol

from dispatcher.live.auth.rate_limit import RateLimit
from roma.config.security import Limits
from roma.domain.units import retry_after_s

NO_DIGEST = bytes(32)
"""Digest that belongs to no token."""


class Denied(Exception):
    """Refusal of a request: 401 unknown caller, 403 model not allowed, 429 rate limit."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        if self.status == 401:  # RFC 6750, section 3
            return {"WWW-Authenticate": 'Bearer realm="roma"'}
        if self.retry_after is not None:
            return {"Retry-After": str(retry_after_s(self.retry_after))}
        return {}


class Grant:
    """Grant for one request; `release` it when the request has ended, for whatever reason.

    The request holds it, and so does each execution, which outlives a client that disconnects.
    """

    __slots__ = ("_caller", "_holders", "_rate_limit", "name", "priority")

    def __init__(self, caller: "Caller") -> None:
        self.name = caller.name
        self.priority = caller.priority
        """The highest priority that it allows."""
        self._caller = caller
        self._rate_limit: RateLimit | None = caller.rate_limit
        self._holders = 1

    def __repr__(self) -> str:
        return f"<Grant {self.name} {self.priority}>"

    def check(self, model: str) -> None:
        """Raise `Denied` if its caller may not call a model."""
        self._caller.check(model)

    def hold(self) -> None:
        """Count one more holder, who must release it too."""
        self._holders += 1

    def release(self) -> None:
        """Release it; the last holder's release frees the slot, and one more does nothing."""
        self._holders -= 1
        if self._holders <= 0 and self._rate_limit is not None:
            self._rate_limit.under_way -= 1
            self._rate_limit = None


class Caller:
    """A client's identity: its models, expiry and limits."""

    __slots__ = ("expires", "models", "name", "priority", "rate_limit", "secret")

    def __init__(
        self,
        name: str,
        limits: Limits,
        rate_limit: RateLimit,
        *,
        models: frozenset[str] | None = None,
        expires: float = math.inf,
        secret: bytes = NO_DIGEST,
    ) -> None:
        self.name = name
        self.priority = limits.priority
        self.rate_limit = rate_limit
        self.models = models
        """Allowed models; None: all."""
        self.expires = expires
        """Expiry on the wall clock."""
        self.secret = secret
        """SHA-256 of its token."""

    def __repr__(self) -> str:
        return f"<Caller {self.name}>"

    def check(self, model: str) -> None:
        """Raise `Denied` if it may not call a model."""
        if self.models is not None and model not in self.models:
            raise Denied(403, f"{self.name} may not call model {model}")


class Bearers(Protocol):
    """Tokens of an identity provider."""

    def caller(self, token: str) -> Caller:
        """Return the caller of a token, or raise `Denied`; the caller has the token's expiry."""
