"""Errors that ROMA raises, split by who can react.

    RomaError
    ├── ConfigError              the author of roma.yaml: a key, its value and its bound
    ├── InvalidTransition        a bug in ROMA: an illegal life-cycle step
    ├── ActuationError           the operator: cores could not be applied
    │   ├── ActuationNotPermitted
    │   ├── EngineError          a container engine refused, failed or did not answer
    │   └── BrokerRefused        the broker refuses this caller, container or core count
    ├── LaunchError              the operator: a program could not be started
    ├── TakenError               the operator: another supervisor controls the same cores
    ├── ModelUnavailable         the operator: a running model server cannot serve the model
    ├── ExchangeError            the next control period: a peer did not answer
    ├── DecisionLogError         the reader: a decision log is missing or malformed
    ├── WireError                the operator: a peer violates the action protocol
    ├── TensorError              the client: its tensors do not fit the model
    └── BackendError             the gateway: an executable failed a request
        ├── BackendUnreachable   the request never reached it; another may run it
        │   └── BackendSilent    the connection attempt got no answer
        │       └── BackendAway  … from anybody at the address
        ├── BackendLost          the connection broke after the request was sent
        ├── BackendTimeout       no answer within the limit
        └── BackendTooLarge      an answer beyond its limit

Domain errors know nothing of HTTP: the gateway maps them to status codes.
"""

import contextlib
from collections.abc import Iterator


class RomaError(Exception):
    """Root of every error that ROMA raises on purpose."""


class ConfigError(RomaError):
    """The configuration is wrong; the message has one line per fault."""


def in_words(error: BaseException) -> str:
    """Return an error without the system's number and path: what names it names its path."""
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Prefix each fault of a file with the configuration key that names it; "" adds no prefix."""
    try:
        yield
    except ConfigError as error:
        if not key:
            raise
        lines = "\n".join(f"{key}: {line}" for line in str(error).splitlines())
        # The cause may quote a secret: keep it suppressed where it was suppressed before.
        raise ConfigError(lines) from error.__cause__


class InvalidTransition(RomaError):
    """A life-cycle step that its table does not allow; nothing was changed."""


class ActuationError(RomaError):
    """An allocation could not be applied."""


class ActuationNotPermitted(ActuationError):
    """This process may not change CPU quotas here."""


class EngineError(ActuationError):
    """A container engine refused, failed or did not answer."""


class BrokerRefused(ActuationError):
    """The broker refused: this caller, this container or these cores are not allowed."""


class LaunchError(RomaError):
    """A program could not be started."""


class TakenError(RomaError):
    """Another supervisor controls this worker or this cgroup."""


class ModelUnavailable(RomaError):
    """Nothing can serve a model that was asked for; the message has the reason."""


class ExchangeError(RomaError):
    """A dispatcher did not answer the control exchange."""


class DecisionLogError(RomaError):
    """A decision log cannot be read."""


class WireError(RomaError):
    """Bytes that are not a message of the action protocol, or a value that it cannot carry."""


class TensorError(RomaError):
    """Tensors do not fit a model; the message names the tensor, its value and its bound."""


class BackendError(RomaError):
    """An executable did not give an answer."""


class BackendUnreachable(BackendError):
    """The request was never sent, so running it elsewhere cannot run it twice."""


class BackendSilent(BackendUnreachable):
    """The connection was neither accepted nor refused: its server, or a name's, may be busy."""


class BackendAway(BackendSilent):
    """Nobody answered at the address in time: host down, no way to it, or packets lost."""


class BackendLost(BackendError):
    """The connection closed after the request was sent: it may or may not have run."""


class BackendTimeout(BackendError):
    """The executable did not answer within the limit."""


class BackendTooLarge(BackendError):
    """The answer exceeds its limit; the rest was not read."""
