"""Supervisors that a dispatcher listens to: of the workers it knows, and one for each."""

from collections.abc import Iterable

from roma.errors import RomaError
from roma.exchange import ExchangeRequest, SupervisorId, silence


class UnknownWorker(RomaError):
    """No worker of roma.yaml has this name."""


class WorkerTaken(RomaError):
    """Another supervisor of this worker is heard; it is `holder`."""

    def __init__(self, message: str, holder: SupervisorId) -> None:
        super().__init__(message)
        self.holder = holder


class Supervisors:
    """The supervisor of each worker; `period` is that of control, in seconds."""

    def __init__(self, workers: Iterable[str], period: float) -> None:
        self._workers = tuple(workers)
        self._silence = silence(period)
        self._heard: dict[str, tuple[SupervisorId, float]] = {}

    def admit(self, message: ExchangeRequest, now: float) -> None:
        """Raise UnknownWorker or WorkerTaken if a message is to be refused.

        One that ended without a word is replaced at once by who can tell that it ended, and by
        anybody when it has been silent for long.
        """
        worker, sender = message.worker, message.supervisor
        if worker not in self._workers:
            known = ", ".join(self._workers)
            raise UnknownWorker(f"worker = {worker[:64]}: must be one of {known}")
        if sender is None:
            return
        holder, heard = self._heard.get(worker, (sender, now))
        if holder not in (sender, message.replaces) and now - heard < self._silence:
            text = f"worker = {worker}: its supervisor is {holder}, heard {now - heard:.1f} s ago"
            raise WorkerTaken(text, holder)
        self._heard[worker] = sender, now
