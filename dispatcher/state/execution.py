"""Requests that run together on one executor."""

from roma.domain.actions import ExecutionPart
from roma.domain.model import Request


class Execution:
    """A batch: requests of one model that run together on one executor since `started`.

    `variant` is what it runs, `size` the size of a planned device's batch. `part` is None if it
    runs the whole model, alone. `granted` is the time that a slot of the executor had been granted
    until then, in core-seconds.
    """

    __slots__ = (
        "executor",
        "granted",
        "id",
        "model",
        "part",
        "requests",
        "size",
        "started",
        "variant",
    )

    def __init__(
        self,
        id: int,  # noqa: A002 - the field's name
        executor: str,
        model: str,
        requests: tuple[Request, ...],
        *,
        started: float,
        variant: str,
        size: int,
        part: ExecutionPart | None = None,
    ) -> None:
        self.id = id
        self.executor = executor
        self.model = model
        self.requests = requests
        self.started = started
        self.variant = variant
        self.size = size
        self.part = part
        self.granted = 0.0
