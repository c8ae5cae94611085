"""Messages between clients and model servers: opaque bodies, and templates of their headers.

Headers repeat, so what is derived from them is kept: a `RequestTemplate` for messages to model
servers, a `ResponseTemplate` for their answers.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dispatcher.live.http.header_cache import CachedHeader

USUAL: Final = 256
"""Longest path or type that is cached: unauthenticated clients may send any text."""

_JSON: Final = "application/json"


class RequestTemplate:
    """Common part of messages with the same headers; `more` are whole header lines.

    `is_usual`: the same object is used the next time.
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
    """Return a template, usually the cached one."""
    if len(path) + len(content_type) + len(content_encoding or "") + len(more) > USUAL:
        return RequestTemplate(path, content_type, content_encoding, more, is_usual=False)
    return _remembered(path, content_type, content_encoding, more)


class Message:
    """A request as the model server gets it."""

    __slots__ = ("body", "template")

    def __init__(self, template: RequestTemplate, body: bytes) -> None:
        self.template = template
        self.body = body

    def for_variant(self, model: str, variant: str) -> "Message":
        """Return the message that asks a model server for a variant of the model."""
        of = self.template
        path = of.path.replace(f"/models/{model}", f"/models/{variant}", 1)
        template = request_template(path, of.content_type, of.content_encoding, of.more)
        return Message(template, self.body)


@dataclass(slots=True, init=False)
class Response:
    """An answer: a model server's, unchanged, or the gateway's own.

    `more` are whole header lines; `close` ends the client's connection. `template` is None if its
    headers are not cached.
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
    """Common part of model servers' answers with the same headers.

    `lines` are the headers that clients get, without `Response.more` and the date; empty until
    one did.
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
        """Return an answer with these headers."""
        return Response(
            self.status, self.content_type, self.content_encoding, body, self.more, template=self
        )


def _content_length(size: int) -> bytes:
    """Return the last header lines; a model's messages have few sizes."""
    return b"Content-Length: %d\r\n\r\n" % size


content_length: Final = lru_cache(maxsize=4096)(_content_length)
