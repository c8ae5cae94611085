"""The part of the Docker Engine API that ROMA needs.

The docker package does what is done once per container, in threads. What is done at every tick is
ours: asynchronous, half the CPU or less (`python -m bench actuation`). Those paths have no version:
the engine then answers in its own, and the calls here have kept their shape since API 1.25,
one-shot statistics since 1.41 (https://docs.docker.com/engine/api/).
"""

import asyncio
import contextlib
import errno
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import aiohttp

from roma.config.watched_file import looking
from roma.config.workers import DockerConfig
from roma.domain.errors import ConfigError, EngineError
from roma.security.tls import RenewedContext
from roma.telemetry.reachability import reason
from roma.telemetry.tasks import to_end
from roma.telemetry.threads import in_thread
from supervisor.broker.containers import UNKNOWN
from supervisor.broker.tunnel import tunnel

if TYPE_CHECKING:
    from docker import APIClient

CALL_TIMEOUT = 10
"""Seconds for one call; 8 ms is usual, a loaded engine is slower."""

MAKE_TIMEOUT = 60
"""Seconds for making, starting or removing a container: a GPU that sleeps may take 30 to wake."""

PULL_TIMEOUT = 1800.0
"""Seconds for an image to arrive."""

MOST_MESSAGE = 300
"""Most characters of an error answer that are kept: a proxy's is a page."""

Result = TypeVar("Result")


class Engine:
    """An engine; create it with `connected`. Every call raises EngineError.

    `connect` returns a new client of the docker package for a version of the API; `explain`
    returns the reason why a call failed, from the error that began it.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        address: str,
        connect: Callable[[str], "APIClient"],
        explain: Callable[[BaseException], str],
    ) -> None:
        self._session = session
        self._base = base
        self._address = address
        self._connect = connect
        self._explain = explain
        self._client: APIClient | None = None

    def __repr__(self) -> str:
        return f"<Engine {self._address}>"

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the summaries of all containers, running or not, that have these labels."""
        filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
        found = await self._in_thread(
            "list of containers",
            lambda client: client.containers(all=True, filters=filters),
            CALL_TIMEOUT,
        )
        if not isinstance(found, list):
            raise EngineError(f"engine {self._address}: list of containers: {UNKNOWN}")
        return found

    async def create(self, name: str, specification: Mapping[str, Any]) -> None:
        """Create a container.

        A caller that is cancelled waits for the answer, since the engine goes on.
        """
        made = await to_end(
            self._in_thread(
                f"create {name}",
                lambda client: client.create_container_from_config(dict(specification), name),
            )
        )
        if not isinstance(made, dict) or "Id" not in made:
            raise EngineError(f"engine {self._address}: create {name}: {UNKNOWN}")

    async def pull(self, image: str) -> None:
        """Fetch an image; minutes for a large one. The login is the one `docker login` keeps."""

        def pull(client: "APIClient") -> None:
            # The engine answers 200 at once and reports failures in the stream that follows.
            for report in client.pull(image, stream=True, decode=True):
                if "error" in report:
                    raise EngineError(f"engine {self._address}: image {image}: {report['error']}")

        try:
            async with asyncio.timeout(PULL_TIMEOUT):
                await self._in_thread(f"pull {image}", pull)
        except TimeoutError:
            limit = f"not there after {PULL_TIMEOUT:g} s"
            raise EngineError(f"engine {self._address}: pull {image}: {limit}") from None

    async def start(self, container: str) -> None:
        """Start a container; a running one is unchanged."""
        await self._in_thread(f"start {container}", lambda client: client.start(container))

    async def remove(self, container: str) -> None:
        """Stop a container, killing it after ten seconds, and remove it.

        A caller that is cancelled waits for that: the engine refuses a second removal meanwhile.
        """

        def remove(client: "APIClient") -> None:
            client.stop(container, timeout=10)
            client.remove_container(container, v=True, force=True)

        with contextlib.suppress(NotFound):
            await to_end(self._in_thread(f"remove {container}", remove))

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

    async def update_quota(self, container: str, *, quota_us: int, period_us: int) -> None:
        """Set a running container's CPU quota, live.

        The engine refuses it for containers made with `--cpus` (NanoCpus).
        """
        body = {"CpuPeriod": period_us, "CpuQuota": quota_us}
        await self._call("POST", f"/containers/{_path(container)}/update", body=body)

    def close(self) -> None:
        """Close the docker package's connections; a later call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _in_thread(
        self, what: str, call: Callable[["APIClient"], Result], limit: float | None = None
    ) -> Result:
        """Return what the docker package returns, called in a thread, within `limit` seconds."""
        from docker import errors  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        said: Any = None if self._client else await self._call("GET", "/version")
        try:
            client = self._client = self._client or self._connect(said["ApiVersion"])
            async with asyncio.timeout(limit):
                return await in_thread(lambda: call(client))
        except errors.NotFound as error:
            why = _short(str(error.explanation))
            raise NotFound(f"engine {self._address}: {what}: {why}") from error
        except errors.APIError as error:
            why = _short(str(error.explanation))
        except (ValueError, KeyError, TypeError, AttributeError, errors.StreamParseError) as error:
            why = _short(f"{UNKNOWN} ({error})")
        except (errors.DockerException, HTTPError, OSError) as error:
            why = self._explain(_first(error))
        # The engine that comes back may be of another version.
        self.close()
        raise EngineError(f"engine {self._address}: {what}: {why}")

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the answer to one request, decoded."""
        try:
            async with self._session.request(
                method,
                self._base + path,
                params=params,
                json=body,
                timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT),
            ) as response:
                text = (await response.read()).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = self._explain(_first(error))
            raise EngineError(f"engine {self._address}: {method} {path}: {said}") from error
        if response.status >= 400:
            kind = NotFound if response.status == 404 else EngineError
            raise kind(f"engine {self._address}: {method} {path}: {_message(text)}")
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise EngineError(f"engine {self._address}: {method} {path}: {UNKNOWN}") from None


class NotFound(EngineError):
    """The engine knows no such container, or no such image."""


@contextlib.asynccontextmanager
async def connected(docker: DockerConfig) -> AsyncIterator[Engine]:
    """Yield the engine of a worker; the connections close when the block ends."""
    scheme, _, rest = docker.host.partition("://")
    async with contextlib.AsyncExitStack() as stack:
        base, url = "http://docker", docker.host
        explain: Callable[[BaseException], str] = reason
        connector: aiohttp.BaseConnector
        match scheme:
            case "unix":
                connector = aiohttp.UnixConnector(rest, limit=0)
            case "tcp":
                assert docker.tls is not None  # guaranteed by config
                base, explain = f"https://{rest}", _about(docker.tls)
                context = tls_context(docker.tls)
                await stack.enter_async_context(looking(context))
                connector = aiohttp.TCPConnector(ssl=context, limit=0)
            case _:
                way = await stack.enter_async_context(tunnel(rest))
                explain, url = way.explain, f"unix://{way.socket}"
                connector = aiohttp.UnixConnector(str(way.socket), limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        engine = Engine(session, base, docker.host, lambda v: _client(url, docker.tls, v), explain)
        stack.callback(engine.close)
        yield engine


def _client(url: str, tls: Path | None, version: str) -> "APIClient":
    """Return a new client of the docker package for a version of the API."""
    import docker  # noqa: PLC0415
    from docker.tls import TLSConfig  # noqa: PLC0415

    config: TLSConfig | bool = False
    if tls is not None:
        ca, cert, key = map(str, _files(tls))
        config = TLSConfig(client_cert=(cert, key), ca_cert=ca, verify=True)
    client = docker.APIClient(url, version=version, timeout=MAKE_TIMEOUT, tls=config)
    # Else a REQUESTS_CA_BUNDLE replaces our authority, and a proxy comes between.
    client.trust_env = False
    return client


def _files(directory: Path) -> list[Path]:
    """Return the files of a certificate, by docker's own names."""
    return [directory / name for name in ("ca.pem", "cert.pem", "key.pem")]


def tls_context(directory: Path) -> RenewedContext:
    """Return a context that presents and demands certificates; raise ConfigError without them."""
    return RenewedContext.of(_files(directory), lambda: _context(directory))


def _context(directory: Path) -> ssl.SSLContext:
    ca, cert, key = _files(directory)
    for file in (ca, cert, key):
        if not file.is_file():  # ssl's own message names no file
            raise ConfigError(f"docker.tls = {directory}: must have a file {file.name}")
    try:
        context = ssl.create_default_context(cafile=ca)
        # A key with a password is refused: OpenSSL would ask for it at the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(f"docker.tls = {directory}: {error}") from error
    return context


def _about(tls: Path) -> Callable[[BaseException], str]:
    """Return a function that explains failed calls of an engine with certificates."""

    def explain(error: BaseException) -> str:
        if isinstance(error, ssl.SSLError):  # says which side refused the certificate
            return f"docker.tls = {tls}: {error}"
        # In TLS 1.3 a client is refused after its handshake, and the reset may overtake the alert.
        if isinstance(error, OSError) and error.errno == errno.ECONNRESET:
            return f"docker.tls = {tls}: {error} (the engine may refuse this certificate)"
        return reason(error)

    return explain


def _first(error: BaseException) -> BaseException:
    """Return the system error that an error wraps, however deep, or else the error itself."""
    found, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        if isinstance(inner, OSError):
            found = inner
        inner = inner.__cause__ or inner.__context__
    return found


def _path(container: str) -> str:
    return quote(container, safe="")


def _message(text: str) -> str:
    """Return the message in an error answer of the engine."""
    try:
        found = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        found = text
    return _short(found)


def _short(text: str) -> str:
    """Return a text in one line of bounded length."""
    return " ".join(text.split())[:MOST_MESSAGE] or "no message"
