"""Everything ROMA raises, split by who can react.

    RomaError
    ├── ConfigError              the author of roma.yaml: a key, its value and its bound
    ├── InvalidTransition        a bug in ROMA: an illegal life-cycle step, with its story
    ├── ActuationError           the operator: cores could not be applied
    │   ├── ActuationNotPermitted
    │   ├── EngineError          a container engine did not do what it was asked
    │   └── BrokerRefused        the broker does not do this for this caller
    ├── LaunchError              the operator: a program could not be started
    ├── TakenError               the operator: another supervisor controls the same cores
    ├── ModelUnavailable         the operator: a model server runs, or is tried, and cannot serve it
    ├── ExchangeError            the next control period: a peer did not answer
    ├── StoryError               whoever reads it: a record of decisions is not one
    ├── WireError                the operator: a peer of the action protocol says something else
    ├── TensorError              the client: its tensors are not what the model takes
    └── BackendError             the gateway: an executable failed a request
        ├── BackendUnreached     the request never reached it; another may run it
        │   └── BackendSilent    nobody answered when a connection was asked for
        ├── BackendLost          the connection broke after the request was sent
        ├── BackendTimeout       no answer within the limit
        └── BackendTooLarge      an answer beyond its limit

Domain errors know no HTTP: the gateway maps them to status codes.
"""

import contextlib
from collections.abc import Iterator


class RomaError(Exception):
    """Root of every error that ROMA raises on purpose."""


class ConfigError(RomaError):
    """The configuration is wrong; the message has one line per fault."""


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Put the configuration key that names a file before each fault of that file; "" puts none."""
    try:
        yield
    except ConfigError as error:
        if not key:
            raise
        lines = "\n".join(f"{key}: {line}" for line in str(error).splitlines())
        # The cause may quote a secret: it stays away where it was kept away before.
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
    """The broker does not do this: not for this caller, this container or these cores."""


class LaunchError(RomaError):
    """A program could not be started."""


class TakenError(RomaError):
    """Another supervisor controls this worker or this cgroup."""


class ModelUnavailable(RomaError):
    """Nothing can serve a model that was asked for; the message has the reason."""


class ExchangeError(RomaError):
    """A dispatcher did not answer the control exchange."""


class StoryError(RomaError):
    """A record of what was decided cannot be read."""


class WireError(RomaError):
    """Bytes that are no message of the action protocol, or what cannot be sent by it."""


class TensorError(RomaError):
    """Tensors do not fit a model; the message names the tensor, its value and its bound."""


class BackendError(RomaError):
    """An executable did not give an answer."""


class BackendUnreachable(BackendError):
    """The request was never sent, so running it elsewhere cannot run it twice."""


class BackendSilent(BackendUnreachable):
    """Nobody took or refused the connection in time: it is gone, or packets were lost."""


class BackendLost(BackendError):
    """The connection closed after the request was sent: it may or may not have run."""


class BackendTimeout(BackendError):
    """The executable did not answer within the limit."""


class BackendTooLarge(BackendError):
    """The answer exceeds its limit; the rest was not read."""
