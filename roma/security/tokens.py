"""Token files: one secret, shared by two programs or by a person and a program.

One line of at least 32 characters (`roma keys token FILE` writes one of 256 random bits). A second
line is accepted from callers but never sent: to replace a token, put the new one first and the old
one second until every program has read both. No message and no repr shows the content of the file.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError

_FORM = re.compile(r"[!-~]{32,8192}")


class Token:
    """A secret that can be sent, and compared with a received one."""

    __slots__ = ("_digests", "_sent")

    def __init__(self, *accepted: str) -> None:
        self._sent = accepted[0]
        self._digests = [hashlib.sha256(text.encode()).digest() for text in accepted]

    def __repr__(self) -> str:
        return "<Token>"

    @property
    def authorization(self) -> str:
        """The `Authorization` header that a caller sends."""
        return f"Bearer {self._sent}"

    @property
    def text(self) -> str:
        """The secret as text, for protocols without headers."""
        return self._sent

    def matches(self, text: str) -> bool:
        """Compare in constant time, revealing neither the length nor a common prefix."""
        found = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        return any(hmac.compare_digest(found, digest) for digest in self._digests)


def sent(token: Watched[Token] | None) -> dict[str, str]:
    """Return the headers that authenticate a caller."""
    return {} if token is None else {"Authorization": token.value.authorization}


def watched(path: Path | None, key: str = "") -> Watched[Token] | None:
    """Return a token that follows its file; None without a file. `key` names it in errors."""
    return None if path is None else Watched([path], lambda: read(path), key)


def read(path: Path) -> Token:
    """Read a token file; raise ConfigError, which does not reveal its content."""
    try:
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(lines) not in (1, 2) or not all(_FORM.fullmatch(line) for line in lines):
        raise ConfigError(
            f"{path}: must be one line of 32 to 8192 characters without spaces, or two while a "
            "token is replaced: `roma keys token FILE` writes one"
        )
    return Token(*lines)


def new() -> str:
    """Return a new random secret."""
    return secrets.token_urlsafe(32)
