"""A dispatcher, as the supervisor's loop talks to it."""

from aiohttp import ClientError, ClientSession, ClientTimeout

from roma import exchange
from roma.errors import ExchangeError
from roma.tokens import Token, sent
from roma.watched import Watched


class Peer:
    """One dispatcher's admin address; every failure is an `ExchangeError`."""

    def __init__(
        self,
        session: ClientSession,
        url: str,
        timeout: float,
        token: Watched[Token] | None = None,
    ) -> None:
        self.url = url
        self._token = token
        self._session = session
        self._timeout = ClientTimeout(total=timeout)

    async def report(self) -> exchange.ExchangeReply:
        """Fetch what happened."""
        url = f"{self.url}/control/v1/report"
        try:
            async with self._session.get(
                url, headers=sent(self._token), timeout=self._timeout
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise ExchangeError(f"{url}: status {response.status}")
        except (ClientError, TimeoutError, OSError) as error:
            raise ExchangeError(f"{url}: {error!r}") from error
        return exchange.parse_reply(body)

    async def confirm(self, message: exchange.ExchangeRequest) -> None:
        """Tell what was applied."""
        url = f"{self.url}/control/v1/applied"
        body = exchange.REQUEST.dump_json(message)
        try:
            async with self._session.post(
                url, data=body, headers=sent(self._token), timeout=self._timeout
            ) as response:
                if response.status != 204:
                    raise ExchangeError(f"{url}: status {response.status}")
        except (ClientError, TimeoutError, OSError) as error:
            raise ExchangeError(f"{url}: {error!r}") from error
