"""Look-ups: model status, metadata and readiness, which wait in no queue.

Identical look-ups share one answer, kept for a second, and an executable gets only a few of them at
once: however many clients ask, a model server sees a handful of requests and connections. A shared
answer must suit every client, so a look-up forwards no header of a client. Callers check scopes
first: a look-up that a key does not allow is never answered from here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from dispatcher.live.backends.backend_address import (
    Answer,
    BackendAddress,
    GrpcMessage,
    GrpcResponse,
)
from dispatcher.live.driver import Driver
from dispatcher.live.http.messages import Response
from dispatcher.live.http.routes import GrpcRoute, Route
from roma.domain.errors import BackendError, BackendTimeout
from roma.telemetry.tasks import cancel

MAX_AGE: Final = 1.0
"""Seconds that an answer is kept, including errors of the model server."""

LOADING_TIMEOUT: Final = 1.0
"""Seconds that executables which are not ready have to report their progress: they may hang."""

_AVAILABLE: Final = (b'"AVAILABLE"', b"\x10\x1e")
"""The state of a version that is available, in JSON and in TensorFlow Serving's
ModelVersionStatus."""

MAX_BYTES: Final = 2**24
"""Bytes kept, of requests and answers together: status and metadata are a few KiB each."""

_Key = tuple[str, str, bytes]
"""Model, path or method, and message."""

A = TypeVar("A", bound=Answer)


class Lookups:
    """The look-ups of one dispatcher."""

    def __init__(
        self, driver: Driver, endpoints: Mapping[str, BackendAddress], *, timeout: float
    ) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._timeout = timeout
        """Seconds to wait for a slot, and again for the answer."""
        self._flights: dict[_Key, _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._kept: dict[_Key, tuple[float, Any]] = {}
        """Answers with the times when they expire, the oldest first."""
        self._bytes = 0
        self.waiting = 0
        """Clients that wait for an answer."""
        self.counts = {"executable": 0, "shared": 0}
        """Look-ups sent to model servers, including retries, and those that shared an answer."""

    async def http(self, route: Route) -> Response | None:
        """Return a model server's answer; None if no executable is ready.

        Raises the last executable's `BackendError`, with its name. Every caller gets a copy.
        """

        async def fetch(endpoint: BackendAddress, timeout: float) -> Response:
            return await endpoint.pool.fetch(route.path, timeout=timeout)

        found = await self._answer((route.model, route.path, b""), fetch, route.is_status)
        if found is None:
            return None
        # A request's own header lines are added to it.
        return Response(
            found.status, found.content_type, found.content_encoding, found.body, found.more
        )

    async def grpc(self, route: GrpcRoute, body: bytes) -> GrpcResponse | None:
        """Return the same for a gRPC message."""
        message = GrpcMessage(route.path, body)

        async def fetch(endpoint: BackendAddress, timeout: float) -> GrpcResponse:
            if endpoint.channel is None:
                raise BackendError("it has no gRPC address")
            return await endpoint.channel.fetch(message, timeout=timeout)

        return await self._answer((route.model, route.path, body), fetch, route.is_status)

    async def close(self) -> None:
        """Cancel what is in flight."""
        await cancel(self._tasks)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # all its clients may have gone: then nobody else asks for it

    async def _answer(
        self, key: _Key, fetch: Callable[[BackendAddress, float], Awaitable[A]], is_status: bool
    ) -> A | None:
        expires, kept = self._kept.get(key, (0.0, None))
        if self._driver.clock() < expires and self._driver.core.executors.serve(key[0]):
            self.counts["shared"] += 1
            found: A = kept
            return found
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            task = asyncio.get_running_loop().create_task(self._run(key, flight, fetch, is_status))
            flight.task = task
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        else:
            self.counts["shared"] += 1
        flight.clients += 1
        self.waiting += 1
        try:
            answer: A | None = await asyncio.shield(flight.task)
            return answer
        finally:
            self.waiting -= 1
            flight.clients -= 1
            # A sent request is read to its end: a model server goes on computing for disconnected
            # clients.
            if not flight.clients and not flight.is_sent:
                self._forget(key, flight)
                flight.task.cancel()

    async def _run(
        self,
        key: _Key,
        flight: "_Flight",
        fetch: Callable[[BackendAddress, float], Awaitable[A]],
        is_status: bool,
    ) -> A | None:
        try:
            answer = await self._ask(key[0], flight, fetch)
            if answer is None and is_status:
                return await self._ask_loading(key[0], flight, fetch)
        finally:
            self._forget(key, flight)
        if answer is not None:
            self._keep(key, answer)
        return answer

    def _forget(self, key: _Key, flight: "_Flight") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _ask(
        self, model: str, flight: "_Flight", fetch: Callable[[BackendAddress, float], Awaitable[A]]
    ) -> A | None:
        """Ask the live executables of a model until one answers."""
        failed: BackendError | None = None
        for executor in list(self._driver.core.executors.of(model)):
            name = executor.spec.name
            endpoint = self._endpoints.get(name)
            if endpoint is None:  # it was removed while another one was asked
                continue
            try:
                return await self._ask_one(endpoint, flight, fetch, self._timeout)
            except BackendTimeout as fault:
                failed = BackendTimeout(f"executable {name}: {fault}")
            except BackendError as fault:
                failed = BackendError(f"executable {name}: {fault}")
        if failed is not None:
            raise failed
        return None

    async def _ask_loading(
        self, model: str, flight: "_Flight", fetch: Callable[[BackendAddress, float], Awaitable[A]]
    ) -> A | None:
        """Ask the executables of a model that are not ready; None if none of them answers.

        Also None if one reports that it is available: until a health check confirms it, it gets no
        requests. Each has its part of the time: the first may hang while the second loads.
        """
        loading = self._driver.core.executors.loading(model)
        timeout = min(self._timeout, LOADING_TIMEOUT) / max(1, len(loading))
        for executor in loading:
            endpoint = self._endpoints.get(executor.spec.name)
            if endpoint is not None:
                with contextlib.suppress(BackendError, TimeoutError):
                    async with asyncio.timeout(timeout):
                        answer = await self._ask_one(endpoint, flight, fetch, timeout)
                        return None if any(s in answer.body for s in _AVAILABLE) else answer
        return None

    async def _ask_one(
        self,
        endpoint: BackendAddress,
        flight: "_Flight",
        fetch: Callable[[BackendAddress, float], Awaitable[A]],
        timeout: float,
    ) -> A:
        turns = endpoint.lookups
        try:
            async with asyncio.timeout(timeout):
                await turns.acquire()
        except TimeoutError:
            text = f"other look-ups have no answer yet: no turn within {timeout:g} s"
            raise BackendTimeout(text) from None
        try:
            flight.is_sent = True
            self.counts["executable"] += 1
            return await fetch(endpoint, timeout)
        finally:
            turns.release()

    def _keep(self, key: _Key, answer: A) -> None:
        """Keep an answer; drop expired ones, or the oldest if there is no room."""
        now, size = self._driver.clock(), _size(key, answer)
        self._drop(key)
        for old, (expires, _) in list(self._kept.items()):
            if expires > now and self._bytes + size <= MAX_BYTES:
                break
            self._drop(old)
        if size <= MAX_BYTES:
            self._kept[key] = now + MAX_AGE, answer
            self._bytes += size

    def _drop(self, key: _Key) -> None:
        _, answer = self._kept.pop(key, (0.0, None))
        if answer is not None:
            self._bytes -= _size(key, answer)


class _Flight:
    """A look-up in flight, and the number of clients that wait for it."""

    __slots__ = ("clients", "is_sent", "task")

    def __init__(self) -> None:
        self.clients = 0
        self.is_sent = False
        self.task: asyncio.Task[Any]


def _size(key: _Key, answer: Answer) -> int:
    """Return the approximate number of bytes that keeping an answer takes."""
    return 1024 + len(key[1]) + len(key[2]) + len(answer.body)
