"""A client that tries again, as one behind a load balancer does: each attempt has a number."""

import asyncio

from roma.tools.load.errors import NoAnswerError
from roma.tools.load.outcomes import HttpAnswer

PAUSE = 0.05
"""Seconds between two attempts."""

AGAIN = frozenset({429, 502, 503})


class Retrying:
    """Wraps a client of `roma.tools.load`; request "17" goes out as "17.0", "17.1", …

    It repeats what had no answer or one of AGAIN: predictions have no side effects. The caller's
    time limit ends it.
    """

    def __init__(self, client) -> None:
        self._client = client
        self.repeated = 0

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        attempt = 0
        while True:
            numbered = body.replace(b'"]', b'.%d"]' % attempt)
            try:
                answer = await self._client.predict(model, numbered)
            except NoAnswerError:
                pass
            else:
                if answer.status not in AGAIN:
                    return answer
            attempt += 1
            self.repeated += 1
            await asyncio.sleep(PAUSE)
