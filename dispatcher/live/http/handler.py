"""The interface between the HTTP server and the handler of its requests."""

import asyncio
import math
from typing import Protocol

from mypy_extensions import mypyc_attr

from dispatcher.live.http.messages import Response
from dispatcher.live.http.request import HttpRequest
from roma.security.handshake import Handshake


class Pending(Protocol):
    """A request that is being answered."""

    def cancel(self) -> object:
        """Cancel it: the client is gone."""


class ClientConnection:
    """A client's connection, as handlers and the server's limits see it.

    This is a base class: compiled code calls its methods without looking them up by name.
    """

    __slots__ = ("certificate", "due", "handshake", "is_tls", "peer")

    def __init__(self) -> None:
        self.due = math.inf
        """Deadline of the connection's current activity, on the server's clock."""
        self.peer = ""
        self.handshake: Handshake | None = None
        """The connection's TLS handshake."""
        self.is_tls = False
        self.certificate: str | None = None

    @property
    def is_answering(self) -> bool:
        """True if a body is read or an answer pending, or not taken by the client yet."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """True between two requests."""
        raise NotImplementedError

    def respond(self, response: Response) -> None:
        """Answer the current request, and continue with the next one."""
        raise NotImplementedError

    def on_due(self) -> None:
        """Close the connection of a client that takes too long."""
        raise NotImplementedError

    def is_stuck(self) -> bool:
        """Return True if the client has taken nothing of its answer for a while."""
        raise NotImplementedError

    def close(self) -> None:
        """Close once all written data has been sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError


class AwaitedAnswer(ClientConnection):
    """Request on a connection of another server, which awaits `answer`."""

    __slots__ = ("answer",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.answer: asyncio.Future[Response] = loop.create_future()

    def respond(self, response: Response) -> None:
        """Give the answer."""
        if not self.answer.done():  # its client may have gone
            self.answer.set_result(response)

    def abort(self) -> None:
        """Give up: no answer comes."""
        if not self.answer.done():
            self.answer.set_exception(ConnectionAbortedError("the request was given up"))


@mypyc_attr(allow_interpreted_subclasses=True)
class Handler:
    """Answers the server's requests. A base class: a protocol's methods are looked up by name."""

    def check_before_body(self, request: HttpRequest) -> Response | None:
        """Return an answer to a request whose body must not be read, or None."""
        raise NotImplementedError

    def handle(self, request: HttpRequest, connection: ClientConnection) -> Pending | None:
        """Take a complete request; `connection.respond` answers it, now or later."""
        raise NotImplementedError

    def error(self, request: HttpRequest, status: int, message: str) -> Response:
        """Return an error in the format that clients know, for a request that may be half read."""
        raise NotImplementedError
