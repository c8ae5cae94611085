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


class WaiterReplaced(RomaError):
    """A later call waits for the same worker, or too many wait already."""


MOST_WAITERS = 64
"""Supervisors that wait at once: the admin port has connections for others, too."""


class Supervisors:
    """The supervisor of each worker."""

    def __init__(self, config: Config) -> None:
        self._heard: dict[str, tuple[SupervisorId, float]] = {}
        self._hints: set[str] = set()
        """Workers whose cores are needed, of which nobody has heard yet."""
        self._waiters: dict[str, asyncio.Future[bool]] = {}
        self._is_closed = False
        self.set_workers(config)

    def set_workers(self, config: Config) -> None:
        """Accept supervisors of the workers of `config` and of no others from now on."""
        workers = [worker for worker in config.workers if not worker.is_pool]
        self._silence = {worker.name: silence(config.period(worker)) for worker in workers}
        self._hints &= self._silence.keys()
        self._heard = {name: self._heard[name] for name in self._heard if name in self._silence}

    def need(self, worker: str) -> None:
        """Report that a queue has outgrown its cores on a worker."""
        waiter = self._waiters.pop(worker, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(True)
        elif worker in self._silence:
            self._hints.add(worker)

    def heed(self, worker: str) -> None:
        """Forget what a worker needed: its supervisor gets a report, and decides by that."""
        self._hints.discard(worker)

    async def needed(self, worker: str, limit: float) -> bool:
        """Wait until cores of a worker are needed; return False after `limit` seconds.

        Raises UnknownWorker, and WaiterReplaced once another call waits for the same worker: the
        older one may be that of a supervisor that has ended.
        """
        self._check(worker)
        if worker in self._hints:
            self._hints.remove(worker)
            return True
        if self._is_closed:
            return False
        older = self._waiters.pop(worker, None)
        if older is not None and not older.done():
            older.set_exception(WaiterReplaced(f"worker = {worker}: a later call waits"))
        if len(self._waiters) >= MOST_WAITERS:
            raise WaiterReplaced(f"worker = {worker}: {MOST_WAITERS} others wait")
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[worker] = waiter
        try:
            async with asyncio.timeout(limit):
                return await waiter
        except TimeoutError:
            return False
        finally:
            if self._waiters.get(worker) is waiter:
                del self._waiters[worker]

    def close(self) -> None:
        """Release every waiter."""
        self._is_closed = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_result(False)

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
