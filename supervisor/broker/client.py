"""The callers' side of a broker: a supervisor's and a launcher's calls over its sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import TypeAdapter, ValidationError

from roma.domain.errors import ActuationError, BrokerRefused, EngineError
from roma.telemetry.reachability import reason
from supervisor.broker.containers import Container
from supervisor.executables import Reading

LAUNCH_TIMEOUT = 2200.0
"""Seconds for creating or removing a container: its image may have to be pulled first."""

READ_TIMEOUT = 5.0
"""Seconds for reading through the engine; 20.10 may need two."""


@dataclass(frozen=True, slots=True)
class _Granted:
    cores: float


@dataclass(frozen=True, slots=True)
class _Failed:
    error: str


# A broker of another version may say more, or less.
_GRANTS: Final = TypeAdapter(dict[str, _Granted | _Failed])
_READINGS: Final = TypeAdapter(dict[str, _Failed | Reading])
_CONTAINERS: Final = TypeAdapter(dict[str, Container])
_KNOWN: Final = TypeAdapter(dict[str, list[str]])
T = TypeVar("T")


class BrokerClient:
    """A socket of a broker; make it with `calling`. Raises EngineError and BrokerRefused."""

    def __init__(self, session: aiohttp.ClientSession, path: Path, timeout: float) -> None:
        self._session = session
        self._path = path
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<BrokerClient {self._path}>"

    async def grant(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set quotas, all at once; return the cores of each, or why it failed. Renews the lease."""
        said = await self._call("POST", "/v1/cores", {"cores": dict(cores)})
        return {
            name: r.cores if isinstance(r, _Granted) else ActuationError(r.error)
            for name, r in self._read(_GRANTS, said).items()
        }

    async def containers(self) -> Mapping[str, Container]:
        """Return the worker's containers by executable."""
        return self._read(_CONTAINERS, await self._call("GET", "/v1/executables"))

    async def readings(self) -> Mapping[str, Reading | ActuationError]:
        """Return the engine's reading of each controlled executable, or why there is none."""
        said = await self._call("GET", "/v1/readings", timeout=READ_TIMEOUT)
        return {
            name: r if isinstance(r, Reading) else ActuationError(r.error)
            for name, r in self._read(_READINGS, said).items()
        }

    async def known(self) -> Mapping[str, Sequence[str]]:
        """Return the executables that the broker's roma.yaml has, and their models."""
        return self._read(_KNOWN, await self._call("GET", "/v1/known"))

    async def create(self, name: str) -> None:
        """Create an executable's container and start it."""
        await self._call("PUT", f"/v1/executables/{quote(name, safe='')}", timeout=LAUNCH_TIMEOUT)

    async def remove(self, name: str) -> None:
        """Stop and remove an executable's container."""
        await self._call(
            "DELETE", f"/v1/executables/{quote(name, safe='')}", timeout=LAUNCH_TIMEOUT
        )

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout or self._timeout):
                async with self._session.request(
                    method,
                    f"http://broker{path}",
                    data=None if body is None else orjson.dumps(body),
                ) as response:
                    answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"broker {self._path}: {reason(error)}") from error
        if response.status >= 400:
            kind = EngineError if response.status >= 500 else BrokerRefused
            raise kind(f"broker {self._path}: {_message(answer)}")
        return answer

    def _read(self, adapter: TypeAdapter[T], answer: bytes) -> T:
        try:
            return adapter.validate_json(answer)
        except ValidationError as error:
            raise EngineError(f"broker {self._path}: answered, but not as a broker does") from error


@contextlib.asynccontextmanager
async def calling(path: Path, timeout: float) -> AsyncIterator[BrokerClient]:
    """Yield a client of the socket at `path`; `timeout` (seconds) bounds calls that set or read."""
    async with aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(str(path), limit=0),
        headers={"Content-Type": "application/json"},
        # aiohttp's own limit, five minutes, is too short for a large image; each call has its own.
        timeout=aiohttp.ClientTimeout(),
    ) as session:
        yield BrokerClient(session, path, timeout)


def _message(answer: bytes) -> str:
    try:
        return str(orjson.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace") or "no message"
