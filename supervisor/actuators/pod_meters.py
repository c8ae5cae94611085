"""Granted and used CPU time of pods, as their own model servers read it from their cgroups.

They are asked in the background, half a period before a tick, which takes the answers that have
arrived and waits for none: a server that is out of quota answers late.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from pydantic import TypeAdapter

from roma.kubernetes.pods import CPU_PATH, Pod
from roma.telemetry.reachability import reason
from supervisor.executables import Reading

ASK_AT: Final = 0.5
"""Share of a control period after which the model servers are asked."""

MOST_BYTES: Final = 4096
"""Most bytes of an answer."""

HIGHEST: Final = 1e15
"""More than any number of a reading."""

log = logging.getLogger(__name__)

_READING: Final = TypeAdapter(Reading)


class ServerMeters:
    """Asks the model servers at `port` of their pods, once per `period` in seconds.

    An answer counts for one tick: used twice, it would show no usage in the second.
    """

    def __init__(self, *, port: int, period: float) -> None:
        self._port = port
        self._period = period
        self._session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=10 * period),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=period),
        )
        self._newest: dict[str, tuple[float, Reading]] = {}
        self._pods: Mapping[str, Pod] = {}
        self._asking: asyncio.Task[None] | None = None
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._unread: dict[str, str] = {}

    def read(self, pods: Mapping[str, Pod]) -> Mapping[str, Reading | None]:
        """Return the readings that have arrived since the last call; ask these pods from now on."""
        clock = asyncio.get_running_loop().time
        self._pods = pods
        self._unread = {name: why for name, why in self._unread.items() if name in pods}
        if self._asking is None:
            self._asking = asyncio.create_task(self._keep_asking(clock()))
        elif self._asking.done():
            self._asking.result()  # raise the bug that ended it
        newest, self._newest, now = self._newest, {}, clock()
        return {
            name: replace(newest[name][1], age=now - newest[name][0]) if name in newest else None
            for name in pods
        }

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*self._calls.values(), *([] if self._asking is None else [self._asking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def _keep_asking(self, ticked: float) -> None:
        clock, due = asyncio.get_running_loop().time, ticked
        while True:
            for name, pod in self._pods.items():
                if name not in self._calls:  # an answer of the last period may still be due
                    self._calls[name] = asyncio.create_task(self._ask(name, pod))
            # The first question is asked at once, the others between two ticks.
            following = due + ASK_AT * self._period
            while following <= clock():
                following += self._period
            await asyncio.sleep(following - clock())

    async def _ask(self, name: str, pod: Pod) -> None:
        try:
            await self._read(name, pod)
        finally:
            del self._calls[name]

    async def _read(self, name: str, pod: Pod) -> None:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            async with self._session.get(f"http://{host}:{self._port}{CPU_PATH}") as response:
                body = await response.content.read(MOST_BYTES)
                if response.status != 200:
                    self._complain(name, f"status {response.status} for GET {CPU_PATH}")
                    return
                reading = _READING.validate_json(body)
                if not _is_possible(reading):
                    raise ValueError
        except ValueError:  # pydantic's is one
            self._complain(name, f"an answer to GET {CPU_PATH} that is no reading")
            return
        except (ClientError, TimeoutError, OSError) as error:
            self._complain(name, reason(error))
            return
        self._unread.pop(name, None)
        self._newest[name] = asyncio.get_running_loop().time(), reading

    def _complain(self, name: str, why: str) -> None:
        if self._unread.get(name) != why:  # once, not once per second
            log.warning("executable %s: its CPU use is unknown: %s", name, why)
        self._unread[name] = why


def _is_possible(reading: Reading) -> bool:
    """Return whether a cgroup can have these numbers: a pod may answer anything, as NaN."""
    return all(number is None or 0 <= number <= HIGHEST for number in astuple(reading))
