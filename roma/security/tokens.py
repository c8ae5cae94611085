"""Token files: one secret, which two programs or a person and a program share.

A line of at least 32 characters (`roma keys token FILE` writes one of 256 random bits). A second
line is accepted too and never sent: while a token is replaced, the new one stands first and the old
one second, until every program has read both. No message and no repr shows what is in the file.
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
    """A secret that can be sent, and compared with what was sent."""

    __slots__ = ("_digests", "_sent")

    def __init__(self, *accepted: str) -> None:
        self._sent = accepted[0]
        self._digests = [hashlib.sha256(text.encode()).digest() for text in accepted]

    def __repr__(self) -> str:
        return "<Token>"

    @property
    def authorization(self) -> str:
        """What a caller sends as `Authorization`."""
        return f"Bearer {self._sent}"

    @property
    def text(self) -> str:
        """What a caller sends where there are no headers."""
        return self._sent

    def matches(self, text: str) -> bool:
        """Compare in constant time: neither length nor common beginning shows."""
        found = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        return any(hmac.compare_digest(found, digest) for digest in self._digests)


def sent(token: Watched[Token] | None) -> dict[str, str]:
    """Return the headers that prove who calls."""
    return {} if token is None else {"Authorization": token.value.authorization}


def watched(path: Path | None, key: str = "") -> Watched[Token] | None:
    """Return a token that follows its file; None where there is no file. `key` names it."""
    return None if path is None else Watched([path], lambda: read(path), key)


def read(path: Path) -> Token:
    """Read a token file; raise ConfigError, which does not say what is in it."""
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
    """Return a secret that nobody can guess."""
    return secrets.token_urlsafe(32)
