"""Supervisors that a dispatcher accepts: one for each worker that it knows."""

from roma.config.schema import Config
from roma.domain.errors import RomaError
from roma.domain.exchange import ExchangeRequest, SupervisorId, silence


class UnknownWorker(RomaError):
    """No worker of roma.yaml has this name."""


class WorkerTaken(RomaError):
    """Another supervisor of this worker is active; it is `holder`."""

    def __init__(self, message: str, holder: SupervisorId) -> None:
        super().__init__(message)
        self.holder = holder


class Supervisors:
    """The supervisor of each worker."""

    def __init__(self, config: Config) -> None:
        self._heard: dict[str, tuple[SupervisorId, float]] = {}
        self.set_workers(config)

    def set_workers(self, config: Config) -> None:
        """Accept supervisors of the workers of `config` and of no others from now on."""
        workers = [worker for worker in config.workers if not worker.is_pool]
        self._silence = {worker.name: silence(config.period(worker)) for worker in workers}

    def admit(self, message: ExchangeRequest, now: float) -> None:
        """Raise UnknownWorker or WorkerTaken if a message must be refused.

        A supervisor that ended without notice is replaced at once by one that can confirm its end,
        and by any other after a long silence.
        """
        worker, sender = message.worker, message.supervisor
        if worker not in self._silence:
            known = ", ".join(self._silence)
            raise UnknownWorker(f"worker = {worker[:64]}: must be one of {known}")
        if sender is None:
            return
        holder, heard = self._heard.get(worker, (sender, now))
        if holder not in (sender, message.replaces) and now - heard < self._silence[worker]:
            text = f"worker = {worker}: its supervisor is {holder}, heard {now - heard:.1f} s ago"
            raise WorkerTaken(text, holder)
        self._heard[worker] = sender, now
