"""A HTTP/1.1 keep-alive client for TensorFlow Serving's predict call.

It sends each request once: it never retries, never waits for a free connection and never follows
a redirect, because each of those would hide what the service did.
"""

import resource
import ssl
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from roma.config.sockets import reached
from roma.config.workers import UNIX
from roma.tools.load.errors import LoadInputError, NoAnswerError
from roma.tools.load.outcomes import HttpAnswer

HEADERS = {"Content-Type": "application/json"}


class PredictClient(Protocol):
    """The interface that the generator needs from a client."""

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        """Send one request and return its answer; raise NoAnswerError if there is none."""


class RestClient:
    """A predict client on aiohttp; enter it with `async with`.

    `url` is the service's root, such as `http://127.0.0.1:8501`; `authorization` is sent with each
    request, and `tls` says which certificates are trusted. The client sets no time limit, since the
    generator has one for the whole request. Raises LoadInputError if `url` is not http or https.
    """

    def __init__(
        self, url: str, authorization: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        try:
            root = URL("http://localhost" if url.startswith(f"{UNIX}/") else url)
            root.host_subcomponent  # noqa: B018 - reading it checks the host's name
            (root.raw_host or "").encode("idna")  # as a resolver does
        except ValueError as error:
            raise LoadInputError(f"url {url!r}: {error}") from error
        if root.scheme not in ("http", "https") or not root.host:
            raise LoadInputError(
                f"url {url!r}: must be http://host[:port], https://host[:port] or unix:///path"
            )
        self._url = url
        self._root = ""
        self._headers = HEADERS | ({"Authorization": authorization} if authorization else {})
        self._tls = tls
        self._targets: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # limit=0 is unbounded: a connection limit would make requests wait in the client.
        self._root, connector = reached(self._url.rstrip("/"), limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        """POST the body to the model's predict call and read the whole answer.

        Raises NoAnswerError with reason `connect` (nothing was sent), `disconnected` (the
        connection closed before the answer was complete) or `protocol` (what came back was not
        HTTP).
        """
        assert self._session is not None, "use the client inside `async with`"
        try:
            async with self._session.post(
                self._target(model), data=body, allow_redirects=False, ssl=self._tls or True
            ) as response:
                return HttpAnswer(response.status, await response.read())
        except aiohttp.ClientConnectorError as error:
            raise NoAnswerError("connect") from error
        except aiohttp.ClientResponseError as error:
            raise NoAnswerError("protocol") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError("disconnected") from error

    def _target(self, model: str) -> URL:
        target = self._targets.get(model)
        if target is None:
            name = quote(model, safe="")
            target = URL(f"{self._root}/v1/models/{name}:predict", encoded=True)
            self._targets[model] = target
        return target


def allow_connections(number: int) -> int:
    """Raise this process's limit of open files towards `number` connections; return the limit.

    Many systems start programs with 1,024, which an overload with a few seconds of outstanding
    requests exceeds. The requests above it would be failures of the generator, not of the service.
    The hard limit does not change.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 256  # listening sockets, libraries, log files
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
