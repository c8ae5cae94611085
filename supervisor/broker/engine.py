"""The part of the Docker Engine API that ROMA needs: asynchronous, over a socket, nothing cached.

Paths have no version: the engine then answers in its own, and every call here has kept its shape
since API 1.25, one-shot statistics since 1.41 (https://docs.docker.com/engine/api/).
"""

import contextlib
import errno
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from roma.config.workers import DockerConfig
from roma.domain.errors import ConfigError, EngineError
from roma.telemetry.reachability import reason
from supervisor.broker.tunnel import tunnel

CALL_TIMEOUT = 10.0
"""Seconds for one call; 8 ms is usual, a loaded engine is slower."""

PULL_TIMEOUT = 1800.0
"""Seconds for an image to arrive."""


class Engine:
    """An engine; create it with `connected`. Every call raises EngineError.

    `explain` returns the reason why a call failed.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        address: str,
        explain: Callable[[Exception], str],
    ) -> None:
        self._session = session
        self._base = base
        self._address = address
        self._explain = explain

    def __repr__(self) -> str:
        return f"<Engine {self._address}>"

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the summaries of all containers, running or not, that have these labels."""
        filters = json.dumps({"label": [f"{key}={value}" for key, value in labels.items()]})
        found: list[dict[str, Any]] = await self._call(
            "GET", "/containers/json", params={"all": "1", "filters": filters}
        )
        return found

    async def inspect(self, container: str) -> dict[str, Any]:
        """Return everything about a container, by name or id."""
        found: dict[str, Any] = await self._call("GET", f"/containers/{_path(container)}/json")
        return found

    async def stats(self, container: str) -> dict[str, Any]:
        """Return a container's counters; without `one-shot` it would take a second more.

        Engine 20.10 collects them once a second, so that an answer takes up to that long.
        """
        found: dict[str, Any] = await self._call(
            "GET",
            f"/containers/{_path(container)}/stats",
            params={"stream": "0", "one-shot": "1"},
        )
        return found

    async def create(self, name: str, specification: Mapping[str, Any]) -> str:
        """Create a container; return its id."""
        made = await self._call(
            "POST", "/containers/create", params={"name": name}, body=specification
        )
        return str(made["Id"])

    async def pull(self, image: str) -> None:
        """Fetch an image; minutes for a large one."""
        stream = await self._text(
            "POST", "/images/create", params={"fromImage": _tagged(image)}, timeout=PULL_TIMEOUT
        )
        # The engine answers 200 at once and reports failures in the stream that follows.
        for line in stream.splitlines():
            report = json.loads(line)
            if "error" in report:
                raise EngineError(f"engine {self._address}: image {image}: {report['error']}")

    async def start(self, container: str) -> None:
        """Start a container; a running one is unchanged."""
        await self._call("POST", f"/containers/{_path(container)}/start")

    async def remove(self, container: str, *, grace: int = 10) -> None:
        """Stop a container, killing it after `grace` seconds, and remove it."""
        with contextlib.suppress(NotFound):
            await self._call(
                "POST",
                f"/containers/{_path(container)}/stop",
                params={"t": str(grace)},
                timeout=grace + CALL_TIMEOUT,
            )
            await self._call(
                "DELETE", f"/containers/{_path(container)}", params={"force": "1", "v": "1"}
            )

    async def update_quota(self, container: str, *, quota_us: int, period_us: int) -> None:
        """Set a running container's CPU quota, live.

        The engine refuses it for containers made with `--cpus` (NanoCpus).
        """
        body = {"CpuPeriod": period_us, "CpuQuota": quota_us}
        await self._call("POST", f"/containers/{_path(container)}/update", body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float = CALL_TIMEOUT,
    ) -> Any:
        text = await self._text(method, path, params=params, body=body, timeout=timeout)
        return json.loads(text) if text.strip() else None

    async def _text(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float,
    ) -> str:
        try:
            async with self._session.request(
                method,
                self._base + path,
                params=params,
                json=body,
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = self._explain(error) or reason(error)
            raise EngineError(f"engine {self._address}: {method} {path}: {said}") from error
        if response.status >= 400:
            kind = NotFound if response.status == 404 else EngineError
            raise kind(f"engine {self._address}: {method} {path}: {_message(text)}")
        return text


class NotFound(EngineError):
    """The engine knows no such container, or no such image."""


@contextlib.asynccontextmanager
async def connected(docker: DockerConfig) -> AsyncIterator[Engine]:
    """Yield the engine of a worker; the connections close when the block ends."""
    scheme, _, rest = docker.host.partition("://")
    async with contextlib.AsyncExitStack() as stack:
        base = "http://docker"
        explain: Callable[[Exception], str] = str
        connector: aiohttp.BaseConnector
        match scheme:
            case "unix":
                connector = aiohttp.UnixConnector(rest, limit=0)
            case "tcp":
                assert docker.tls is not None  # guaranteed by config
                base, explain = f"https://{rest}", _about(docker.tls)
                connector = aiohttp.TCPConnector(ssl=_tls(docker.tls), limit=0)
            case _:
                way = await stack.enter_async_context(tunnel(rest))
                explain = way.explain
                connector = aiohttp.UnixConnector(str(way.socket), limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Engine(session, base, docker.host, explain)


def _tls(directory: Path) -> ssl.SSLContext:
    """Return a context that presents and demands certificates (docker's own file names)."""
    ca, cert, key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for file in (ca, cert, key):
        if not file.is_file():  # ssl's own message names no file
            raise ConfigError(f"docker.tls = {directory}: must have a file {file.name}")
    try:
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"docker.tls = {directory}: {error}") from error
    return context


def _about(tls: Path) -> Callable[[Exception], str]:
    """Return a function that explains failed calls of an engine with certificates."""

    def explain(error: Exception) -> str:
        # The cause says which side refused the certificate; aiohttp only saw the connection lost.
        if isinstance(error.__cause__, ssl.SSLError):
            return f"docker.tls = {tls}: {error.__cause__}"
        # In TLS 1.3 a client is refused after its handshake, and the reset may overtake the alert.
        if isinstance(error, OSError) and error.errno == errno.ECONNRESET:
            return f"docker.tls = {tls}: {error} (the engine may refuse this certificate)"
        return str(error)

    return explain


def _path(container: str) -> str:
    return quote(container, safe="")


def _tagged(image: str) -> str:
    """Return an image with its tag; without one the engine would fetch every tag."""
    _, _, last = image.rpartition("/")
    return image if ":" in last or "@" in last else f"{image}:latest"


def _message(text: str) -> str:
    """Return the message in an error answer of the engine."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or "no message"
