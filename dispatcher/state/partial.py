"""Executions of which a planned device has run some segments, and keeps what they left.

Their requests wait for the next segment, on that device. Once none of them is waited for, the
device may forget it.
"""

from dispatcher.state.device_state import DeviceState
from dispatcher.state.execution import Execution
from roma.domain.events import Command, DiscardResults


class PartialExecution:
    """An execution that ended at piece `end` of its model; `waited_for` are its live requests.

    `execution.requests` are all that its batch has, those included whose clients have gone.
    """

    __slots__ = ("device", "end", "execution", "is_running", "waited_for")

    def __init__(
        self, execution: Execution, device: DeviceState, end: int, waited_for: set[int]
    ) -> None:
        self.execution = execution
        self.device = device
        self.end = end
        self.waited_for = waited_for
        self.is_running = False
        """True while the next segment runs: it cannot be continued a second time."""


class PartialExecutions:
    """The partial executions by number, and by each request that waits for one."""

    def __init__(self) -> None:
        self.by_number: dict[int, PartialExecution] = {}
        self.by_request: dict[int, PartialExecution] = {}

    def keep(
        self,
        execution: Execution,
        device: DeviceState,
        waited_for: set[int],
        commands: list[Command],
    ) -> None:
        """Record that a segment ended that is not the last."""
        assert execution.part is not None
        assert execution.part.segment is not None
        device.hold(execution.variant)
        kept = PartialExecution(execution, device, execution.part.segment.end, waited_for)
        self.by_number[execution.id] = kept
        for request in waited_for:
            self.by_request[request] = kept
        self._discard_unless_needed(kept, commands)

    def begin(self, number: int) -> PartialExecution:
        """Return the execution that is continued."""
        kept = self.by_number[number]
        assert not kept.is_running, f"execution {number} is continued already"
        kept.is_running = True
        return kept

    def take_back(self, number: int, commands: list[Command]) -> None:
        """Record that the next segment never ran."""
        kept = self.by_number.get(number)
        if kept is not None:
            kept.is_running = False
            self._discard_unless_needed(kept, commands)

    def end(self, number: int) -> None:
        """Record that the next segment ran: nothing is left of the ones before."""
        kept = self.by_number.get(number)
        if kept is not None:
            self._forget(kept)

    def leave(self, request: int, commands: list[Command]) -> None:
        """Record that nobody waits for a request any more."""
        kept = self.by_request.pop(request, None)
        if kept is not None:
            kept.waited_for.discard(request)
            self._discard_unless_needed(kept, commands)

    def lose(self, executor: str) -> None:
        """Forget what a lost device kept: its requests begin anew."""
        for kept in list(self.by_number.values()):
            if kept.execution.executor == executor:
                self._forget(kept)

    def _forget(self, kept: PartialExecution) -> None:
        del self.by_number[kept.execution.id]
        kept.device.release(kept.execution.variant)
        for request in kept.waited_for:
            self.by_request.pop(request, None)

    def _discard_unless_needed(self, kept: PartialExecution, commands: list[Command]) -> None:
        if not kept.waited_for and not kept.is_running:
            execution = kept.execution
            self._forget(kept)
            commands.append(DiscardResults(execution.executor, execution.variant, execution.id))
