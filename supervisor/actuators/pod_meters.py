"""Granted and used CPU time of pods, as their own model servers read it from their cgroups.

They are asked in the background, half a period before a tick, which takes the answers that have
arrived and waits for none: a server that is out of quota answers late.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from pydantic import TypeAdapter

from roma.kubernetes.pods import CPU_PATH, Pod
from supervisor.actuators.asking import Asking
from supervisor.actuators.pod_connection import PodConnection
from supervisor.executables import Reading

ASK_AT: Final = 0.5
"""Share of a control period after which the model servers are asked."""

PATIENCE: Final = 0.9
"""Share of a control period for which an answer is awaited."""

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
        self._newest: dict[str, tuple[float, Reading]] = {}
        self._pods: Mapping[str, Pod] = {}
        self._asking = Asking(self._ask, period=period, at=ASK_AT, at_once=True)
        self._connections: dict[str, PodConnection] = {}
        self._unread: dict[str, str] = {}

    def read(self, pods: Mapping[str, Pod]) -> Mapping[str, Reading | None]:
        """Return the readings that have arrived since the last call; ask these pods from now on."""
        self._pods = pods
        now = asyncio.get_running_loop().time()
        self._unread = {name: why for name, why in self._unread.items() if name in pods}
        self._asking.on_tick(now)
        newest, self._newest = self._newest, {}
        return {
            name: replace(newest[name][1], age=now - newest[name][0]) if name in newest else None
            for name in pods
        }

    async def close(self) -> None:
        """Stop asking."""
        await self._asking.close()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        self._connections.clear()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    async def _ask(self) -> None:
        for name in [name for name in self._connections if name not in self._pods]:
            self._connections.pop(name).close()
        for name, pod in self._pods.items():
            connection = self._connection(name, (pod.ip, self._port))
            if not connection.is_waiting:
                connection.ask()

    def _connection(self, name: str, address: tuple[str, int]) -> PodConnection:
        """Return the open connection to a model server, or a new one."""
        known = self._connections.get(name)
        if known is not None:
            now = asyncio.get_running_loop().time()
            if known.is_waiting and now - known.asked_at >= PATIENCE * self._period:
                known.close()
                self._complain(name, "no answer in time")
            if not known.is_closed and known.address == address:
                return known
            known.close()

        answered, failed = partial(self._take, name), partial(self._complain, name)
        found = self._connections[name] = PodConnection(address, CPU_PATH, answered, failed)
        return found

    def _take(self, name: str, status: int, body: bytes) -> None:
        if status != 200:
            self._complain(name, f"status {status} for GET {CPU_PATH}")
            return
        try:
            reading = _READING.validate_json(body)
            if not _is_possible(reading):
                raise ValueError
        except ValueError:  # pydantic's is one
            self._complain(name, f"an answer to GET {CPU_PATH} that is no reading")
            return
        self._unread.pop(name, None)
        self._newest[name] = asyncio.get_running_loop().time(), reading

    def _complain(self, name: str, why: str) -> None:
        if name not in self._pods:
            return  # it went while it was asked
        if self._unread.get(name) != why:  # once, not once per second
            log.warning("executable %s: its CPU use is unknown: %s", name, why)
        self._unread[name] = why


def _is_possible(reading: Reading) -> bool:
    """Return whether a cgroup can have these numbers: a pod may answer anything, as NaN."""
    r = reading
    numbers = (r.cores, r.usage, r.periods, r.throttled, r.age, r.burst, r.waited)
    return all(number is None or 0 <= number <= HIGHEST for number in numbers)
