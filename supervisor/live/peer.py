"""The supervisor loop's client of a dispatcher."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from aiohttp import ClientError, ClientSession, ClientTimeout
from pydantic import TypeAdapter

from roma.config.watched_file import Watched
from roma.domain import exchange
from roma.domain.errors import ExchangeError
from roma.domain.exchange import SupervisorId
from roma.security.tokens import Token, sent
from roma.telemetry.reachability import reason
from supervisor.live.identity import is_gone

T = TypeVar("T")


class WorkerHeld(ExchangeError):
    """The dispatcher has accepted another supervisor of this worker."""


def _parsed(url: str, adapter: TypeAdapter[T], body: bytes) -> T:
    """Return what an answer says; raise ExchangeError with the address of what is no dispatcher."""
    try:
        return exchange.parse(adapter, body)
    except ExchangeError as error:
        raise ExchangeError(f"{url}: no answer of a dispatcher of this version: {error}") from error


class Peer:
    """A dispatcher's admin address; every failure is an `ExchangeError`.

    `may_replace` says if another supervisor of the worker has ended, as far as we can know.
    `waiting` makes the calls that wait until cores are needed, by default `session`.
    """

    def __init__(
        self,
        session: ClientSession,
        url: str,
        timeout: float,
        token: Watched[Token] | None = None,
        may_replace: Callable[[SupervisorId], bool] = is_gone,
        *,
        waiting: ClientSession | None = None,
    ) -> None:
        self.url = url
        self._token = token
        self._session = session
        self._waiting = waiting or session
        self._timeout = ClientTimeout(total=timeout)
        self._has_answered = False
        self._may_replace = may_replace

    async def report(self, worker: str) -> exchange.ExchangeReply:
        """Fetch the dispatcher's report, by which a tick of a worker decides."""
        url, params = f"{self.url}/control/v1/report", {"worker": worker}
        status, body = await self._call("GET", url, self._timeout, params=params)
        if status != 200:
            raise ExchangeError(f"{url}: status {status}")
        reply = _parsed(url, exchange.REPLY, body)
        self._has_answered = True
        return reply

    async def needs(self, worker: str) -> bool | None:
        """Wait until a model needs cores of a worker; False if none did for 20 s.

        None if the dispatcher does not say: it is older, or serves another call.
        """
        url, timeout = f"{self.url}/control/v1/needs", ClientTimeout(total=2 * exchange.QUIET)
        params = {"worker": worker}
        status, _ = await self._call("GET", url, timeout, session=self._waiting, params=params)
        return {200: True, 204: False}.get(status)

    async def confirm(self, message: exchange.ExchangeRequest) -> None:
        """Report what was applied; raise WorkerHeld while it accepts another supervisor."""
        refusal = await self._confirm(message)
        if refusal is not None and self._may_replace(refusal.supervisor):
            refusal = await self._confirm(replace(message, replaces=refusal.supervisor))
        if refusal is not None:
            raise WorkerHeld(f"{self.url}: {refusal.error}")

    async def _confirm(self, message: exchange.ExchangeRequest) -> exchange.ExchangeRefusal | None:
        url, body = f"{self.url}/control/v1/applied", exchange.REQUEST.dump_json(message)
        status, said = await self._call("POST", url, self._timeout, data=body)
        if status == 409:
            return _parsed(url, exchange.REFUSAL, said)
        if status != 204:
            raise ExchangeError(f"{url}: status {status}: {said[:200].decode('utf-8', 'replace')}")
        return None

    async def _call(
        self,
        method: str,
        url: str,
        timeout: ClientTimeout,
        session: ClientSession | None = None,
        **more: Any,
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        headers = sent(self._token)
        try:
            async with (session or self._session).request(
                method, url, headers=headers, timeout=timeout, **more
            ) as response:
                return response.status, await response.read()
        except (ClientError, TimeoutError, OSError) as error:
            yet = "" if self._has_answered else " yet"
            raise ExchangeError(f"{url}: not reachable{yet}: {reason(error)}") from error
