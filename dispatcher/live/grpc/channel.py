"""gRPC towards one model server: bytes in, bytes out, one HTTP/2 connection.

A call is started only on an established connection. So a call that fails before is certainly
unsent, and may run elsewhere; one that fails after is not retried, since gRPC's UNAVAILABLE alone
does not tell the two apart. gRPC's own retries are off for the same reason.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from dispatcher.live.backends.backend_address import GrpcDone, GrpcMessage, GrpcResponse, Metadata
from dispatcher.live.backends.http_client import CONNECT_TIMEOUT, MOST_ANSWER
from dispatcher.live.backends.http_connection import Attempt
from dispatcher.live.backends.verdicts import RESOURCE_EXHAUSTED, TOO_LARGE
from roma.domain.addresses import authority
from roma.domain.errors import (
    BackendError,
    BackendLost,
    BackendSilent,
    BackendTimeout,
    BackendTooLarge,
    BackendUnreachable,
)
from roma.telemetry.tasks import cancel

log = logging.getLogger(__name__)

MOST_METADATA = 256 * 2**10
"""Limit in bytes of the headers and trailers of an answer, as over HTTP."""

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    # Channels to one address would share a connection, and closing one would break another's.
    ("grpc.use_local_subchannel_pool", 1),
    # A model server that is restarted must not wait for gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # An error's text is metadata: one that quotes a long input must not hide its own status.
    ("grpc.max_metadata_size", MOST_METADATA),
    ("grpc.absolute_max_metadata_size", MOST_METADATA),
)

_OWN_TRAILERS = frozenset({"x-request-id", "content-type"})

SAID = 0.9
"""Share of a call's timeout: an end before it is no timeout of ours."""

NOTICE, NOTICES = 0.1, 10
"""Seconds between checks whether a connection is broken, and the number of checks."""

_DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_CANCELLED = grpc.StatusCode.CANCELLED.value[0]
_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]

_Ready = grpc.ChannelConnectivity.READY
_Failing = grpc.ChannelConnectivity.TRANSIENT_FAILURE
_Closed = grpc.ChannelConnectivity.SHUTDOWN


class GrpcChannel:
    """The calls to one model server."""

    def __init__(self, host: str, port: int, *, most: int = MOST_ANSWER) -> None:
        self.address = host, port
        self._target = authority(host, port)
        self._most = most
        options = *_OPTIONS, ("grpc.max_receive_message_length", most)
        self._channel = grpc.aio.insecure_channel(self._target, options=options)
        self._methods: dict[str, Any] = {}
        self._attempts: set[_GrpcAttempt] = set()
        self._watch: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<GrpcChannel {self._target}: {len(self._attempts)} in flight>"

    def send(self, message: GrpcMessage, done: GrpcDone, *, timeout: float, more: str) -> Attempt:
        """Send a message; `done` is called exactly once, unless it is aborted before.

        `more` are header lines, passed on as metadata. X-Request-Timeout-Ms among them, the
        client's remaining time, does not become the call's own deadline: gRPC would end the call at
        it on this side, and the time when the model server is done would never be known.
        """
        attempt = _GrpcAttempt(done)
        self._attempts.add(attempt)
        attempt.task = asyncio.get_running_loop().create_task(
            self._run(message, attempt, timeout, more)
        )
        return attempt

    async def fetch(self, message: GrpcMessage, *, timeout: float) -> GrpcResponse:
        """Make a call that is no inference; raise a `BackendError`."""
        await self._connected(CONNECT_TIMEOUT)
        return await self._call(message, timeout, "")

    async def stream(self, method: str, questions: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Forward a bidirectional stream; raise gRPC's own error if it breaks."""
        call = self._channel.stream_stream(method)(questions)
        async for answer in call:
            yield answer

    async def check(self, timeout: float) -> None:
        """Return when it is connected; raise a `BackendError`."""
        await self._connected(timeout, patient=True)

    async def close(self) -> None:
        """Close the connection; calls in flight end with an error."""
        for attempt in list(self._attempts):
            attempt.finish(BackendLost("given up: the connection was closed here"))
            attempt.task.cancel()
        tasks = [attempt.task for attempt in self._attempts]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()
        if self._watch is not None:
            await cancel([self._watch])

    async def _run(
        self, message: GrpcMessage, attempt: "_GrpcAttempt", timeout: float, more: str
    ) -> None:
        result: GrpcResponse | BackendError
        try:
            await self._connected(CONNECT_TIMEOUT)
            result = await self._call(message, timeout, more)
        except BackendError as error:
            result = error
        except Exception as error:  # whatever the error is, `done` must be called
            log.exception("call of %s", self._target)
            result = BackendError(f"call of {self._target}: {error}")
        finally:
            self._attempts.discard(attempt)
        attempt.finish(result)

    async def _connected(self, timeout: float, *, patient: bool = False) -> None:
        """Wait for a connection; raise BackendUnreachable, at once if it fails and not patient.

        gRPC retries, and reports a failure until it has succeeded (its proposal A62). Raises
        BackendSilent if there was neither.
        """
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(timeout):
                while state is not _Ready:
                    if state is _Closed or (state is _Failing and not patient):
                        raise BackendUnreachable(f"cannot connect to {self._target}")
                    await self._changed(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            kind = BackendUnreachable if state is _Failing else BackendSilent
            raise kind(f"cannot connect to {self._target} within {timeout:g} s") from None
        except grpc.aio.UsageError:
            raise BackendUnreachable("given up: the channel was closed here") from None

    async def _changed(self, state: grpc.ChannelConnectivity) -> None:
        """Wait for another state. All waiters share one watch: gRPC cannot end one."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._channel.wait_for_state_change(state))
        await asyncio.shield(self._watch)

    async def _has_broken(self) -> bool:
        """Return True if the connection is lost; gRPC may notice this after its calls do."""
        for _ in range(NOTICES):
            if self._channel.get_state() is not _Ready:
                return True
            await asyncio.sleep(NOTICE / NOTICES)
        return False

    async def _call(self, message: GrpcMessage, timeout: float, more: str) -> GrpcResponse:
        """Make the call on the established connection."""
        metadata = _metadata(more)
        method = self._methods.get(message.path)
        if method is None:
            method = self._methods[message.path] = self._channel.unary_unary(message.path)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            call = method(message.body, timeout=timeout, metadata=metadata)
            body: bytes = await call
            trailing = await call.trailing_metadata()
        except grpc.aio.AioRpcError as error:
            code: int = error.code().value[0]
            response = GrpcResponse(
                code, b"", error.details() or "", _passed(error.trailing_metadata())
            )
            # A model server can return these two itself. Otherwise gRPC uses them here for a call
            # that timed out and for a connection that broke. At worst one is taken for the other:
            # the client gets an error in any case, and a health check finds the cause.
            said = bool(response.trailing)
            is_out_of_time = clock() - began > SAID * timeout
            if code == _DEADLINE_EXCEEDED and is_out_of_time and not said:
                raise BackendTimeout(f"no answer within {timeout:g} s") from None
            # A model server that stops cancels calls that were not cancelled here.
            is_lost = not said and (
                code == _CANCELLED or (code == _UNAVAILABLE and await self._has_broken())
            )
            if code == RESOURCE_EXHAUSTED and not said and self._is_bound(response.message):
                raise BackendTooLarge(f"its answer is larger than {self._most} bytes") from None
            if is_lost:
                text = f"connection closed before the answer: {response.message}"
                raise BackendLost(text) from None
            return response
        except grpc.aio.UsageError:
            raise BackendLost("given up: the channel was closed here") from None
        return GrpcResponse(0, body, "", _passed(trailing))

    def _is_bound(self, message: str) -> bool:
        """Return True if this end says that an answer is beyond the bound."""
        return TOO_LARGE in message and f"vs. {self._most})" in message


class _GrpcAttempt:
    """A message in flight; `finish` reports its result once."""

    __slots__ = ("_done", "task")

    def __init__(self, done: GrpcDone) -> None:
        self._done: GrpcDone | None = done
        self.task: asyncio.Task[None]

    def finish(self, result: GrpcResponse | BackendError) -> None:
        """Report the result, unless it was reported or the message was aborted."""
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def abort(self) -> None:
        """Cancel the call: no client waits for the answer, and the model server is notified."""
        self._done = None
        self.task.cancel()


def _metadata(lines: str) -> list[tuple[str, str]]:
    """Return header lines as metadata.

    gRPC fails a call for a tab, which a list such as `tracestate` may have between its members; a
    space there means the same (RFC 9110 §5.6.3).
    """
    pairs = (line.partition(": ") for line in lines.replace("\t", " ").splitlines())
    return [(name.lower(), value) for name, _, value in pairs]


def _passed(trailing: Sequence[tuple[str, str | bytes]] | None) -> Metadata:
    """Return the part of a model server's trailing metadata that a client may see."""
    return tuple((key, value) for key, value in trailing or () if _may_pass(key))


def _may_pass(key: str) -> bool:
    if key.startswith("grpc-"):  # the protocol's own, except for the details of an error
        return key == "grpc-status-details-bin"
    return key not in _OWN_TRAILERS
