"""What passes between clients and model servers: opaque bodies, and what their heads came to.

Heads repeat themselves, so what is made of one is kept: a `RequestTemplate` for messages to model
servers, a `ResponseTemplate` for their answers.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dispatcher.live.http.header_cache import CachedHeader

USUAL: Final = 256
"""Length of a path or type that is remembered: strangers name what they like."""

_JSON: Final = "application/json"


class RequestTemplate:
    """What messages of one head have in common; `more` are whole header lines.

    `is_usual` if it is the same object the next time.
    """

    __slots__ = ("content_encoding", "content_type", "is_usual", "more", "path")

    def __init__(
        self,
        path: str,
        content_type: str,
        content_encoding: str | None,
        more: str,
        *,
        is_usual: bool = True,
    ) -> None:
        self.path = path
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.more = more
        self.is_usual = is_usual


_remembered: Final = lru_cache(maxsize=1024)(RequestTemplate)


def request_template(
    path: str, content_type: str = _JSON, content_encoding: str | None = None, more: str = ""
) -> RequestTemplate:
    """Return a form, most often the one that it was the last time."""
    if len(path) + len(content_type) + len(content_encoding or "") + len(more) > USUAL:
        return RequestTemplate(path, content_type, content_encoding, more, is_usual=False)
    return _remembered(path, content_type, content_encoding, more)


class Message:
    """What a model server gets of a request."""

    __slots__ = ("body", "template")

    def __init__(self, template: RequestTemplate, body: bytes) -> None:
        self.template = template
        self.body = body


@dataclass(slots=True, init=False)
class Response:
    """An answer: a model server's, untouched, or the gateway's own.

    `more` are whole header lines; `close` ends the client's connection. `template` is None if its
    head was not remembered.
    """

    status: int
    content_type: str
    content_encoding: str | None
    body: bytes
    more: str
    close: bool
    template: "ResponseTemplate | None" = field(compare=False, repr=False)

    def __init__(
        self,
        status: int,
        content_type: str,
        content_encoding: str | None,
        body: bytes,
        more: str = "",
        *,
        close: bool = False,
        template: "ResponseTemplate | None" = None,
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.body = body
        self.more = more
        self.close = close
        self.template = template


class ResponseTemplate(CachedHeader):
    """What model servers' answers of one head have in common.

    `lines` are the head that clients get; empty until one did.
    """

    __slots__ = ("content_encoding", "content_type", "lines", "more", "status")

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.status = response.status
        self.content_type = response.content_type
        self.content_encoding = response.content_encoding
        self.more = response.more
        self.lines = b""

    def response(self, body: bytes) -> Response:
        """Return one of them."""
        return Response(
            self.status, self.content_type, self.content_encoding, body, self.more, template=self
        )


def _content_length(size: int) -> bytes:
    """Return the last lines of a head; a model's messages have few sizes."""
    return b"Content-Length: %d\r\n\r\n" % size


content_length: Final = lru_cache(maxsize=4096)(_content_length)
