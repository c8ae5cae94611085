"""The callers' side of a broker: a supervisor's and a launcher's calls over its sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from roma.domain.errors import ActuationError, BrokerRefused, EngineError
from roma.telemetry.reachability import reason
from supervisor.broker.containers import Container
from supervisor.executables import Reading

LAUNCH_TIMEOUT = 1900.0
"""Seconds for creating or removing a container: its image may have to be pulled first."""

READ_TIMEOUT = 5.0
"""Seconds for reading through the engine; 20.10 may need two."""


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
        found = await self._call("POST", "/v1/cores", {"cores": dict(cores)})
        return {
            name: r["cores"] if "cores" in r else ActuationError(r["error"])
            for name, r in found.items()
        }

    async def containers(self) -> Mapping[str, Container]:
        """Return the worker's containers by executable."""
        found = await self._call("GET", "/v1/executables")
        return {name: Container(**fields) for name, fields in found.items()}

    async def readings(self) -> Mapping[str, Reading | ActuationError]:
        """Return the engine's reading of each controlled executable, or why there is none."""
        found = await self._call("GET", "/v1/readings", timeout=READ_TIMEOUT)
        return {
            name: ActuationError(r["error"]) if "error" in r else Reading(**r)
            for name, r in found.items()
        }

    async def known(self) -> Mapping[str, Sequence[str]]:
        """Return the executables that the broker's roma.yaml has, and their models."""
        found: dict[str, list[str]] = await self._call("GET", "/v1/known")
        return found

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
    ) -> Any:
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
        return orjson.loads(answer) if answer else None


@contextlib.asynccontextmanager
async def calling(path: Path, timeout: float) -> AsyncIterator[BrokerClient]:
    """Yield a client of the socket at `path`; `timeout` (seconds) bounds calls that set or read."""
    connector = aiohttp.UnixConnector(str(path), limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers={"Content-Type": "application/json"}
    ) as session:
        yield BrokerClient(session, path, timeout)


def _message(answer: bytes) -> str:
    try:
        return str(orjson.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace") or "no message"
