"""Supervisors that a dispatcher accepts: one for each worker that it knows."""

import asyncio

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
        self._needed: dict[str, asyncio.Event] = {}
        self._is_closed = False
        self.set_workers(config)

    def set_workers(self, config: Config) -> None:
        """Accept supervisors of the workers of `config` and of no others from now on."""
        workers = [worker for worker in config.workers if not worker.is_pool]
        self._silence = {worker.name: silence(config.period(worker)) for worker in workers}
        known = self._needed
        self._needed = {name: known.get(name) or asyncio.Event() for name in self._silence}

    def need(self, worker: str) -> None:
        """Report that a queue has outgrown its cores on a worker."""
        if worker in self._needed:
            self._needed[worker].set()

    async def needed(self, worker: str, limit: float) -> bool:
        """Wait until cores of a worker are needed; return False after `limit` seconds.

        Raises UnknownWorker.
        """
        self._check(worker)
        needed = self._needed[worker]
        try:
            async with asyncio.timeout(0 if self._is_closed else limit):
                await needed.wait()
        except TimeoutError:
            return False
        needed.clear()
        return not self._is_closed

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._is_closed = True
        for needed in self._needed.values():
            needed.set()

    def admit(self, message: ExchangeRequest, now: float) -> None:
        """Raise UnknownWorker or WorkerTaken if a message must be refused.

        A supervisor that ended without notice is replaced at once by one that can confirm its end,
        and by any other after a long silence.
        """
        worker, sender = message.worker, message.supervisor
        self._check(worker)
        if sender is None:
            return
        holder, heard = self._heard.get(worker, (sender, now))
        if holder not in (sender, message.replaces) and now - heard < self._silence[worker]:
            text = f"worker = {worker}: its supervisor is {holder}, heard {now - heard:.1f} s ago"
            raise WorkerTaken(text, holder)
        self._heard[worker] = sender, now

    def _check(self, worker: str) -> None:
        if worker not in self._silence:
            known = ", ".join(self._silence)
            raise UnknownWorker(f"worker = {worker[:64]}: must be one of {known}")
