"""A client that sends again what got no answer, as HTTP clients do with a connection that closed."""

import asyncio

from roma.tools.load.client import RestClient
from roma.tools.load.errors import NoAnswerError
from roma.tools.load.outcomes import HttpAnswer

PAUSE = 0.05
"""Seconds between two attempts: a process that dies closes its connections one after another, so
the next one of the pool may belong to it too."""


class RetryingClient:
    """Wraps a client of `roma.tools.load`; `again` counts what it repeats until its caller's time is up."""

    def __init__(self, client: RestClient) -> None:
        self._client = client
        self.again = 0

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        while True:
            try:
                return await self._client.predict(model, body)
            except NoAnswerError:
                self.again += 1
                await asyncio.sleep(PAUSE)
