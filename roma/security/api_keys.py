"""The keys file: callers with their models, rate limits, priorities and expiry dates.

    keys:
      qmvzkfae:                       # a public id; the token is roma_qmvzkfae_…
        name: checkout                # its name in logs and limits
        hash: sha256:9f86d081884c…    # of the whole token, which `roma keys add` prints once
        models: [digits, photos]      # or "*"
        rate: 50                      # requests per second, in bursts of `burst`
        expires: 2027-01-31
      reports:                        # no token: a verified client certificate
        certificate: reports.example.com
        models: "*"
        priority: low

A token's secret is 256 random bits, so a plain SHA-256 is enough: a slow hash protects secrets that
can be guessed, and would cost milliseconds per request. Messages quote only names, ids and bounds
of a keys file, because someone may have put a token there.
"""

import hashlib
import re
import secrets
import string
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from roma.config import yaml_file
from roma.config.security import Limits, Scope
from roma.config.workers import Name
from roma.config.yaml_file import Fault, Section
from roma.domain.errors import ConfigError

_HASH = re.compile(r"sha256:[0-9a-f]{64}")


_NO_MOMENT = PydanticCustomError("form", "must be a date or a time in ISO 8601")


def _moment(value: object) -> object:
    """Return a date as its first moment, and a time without a zone as UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _NO_MOMENT from None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise _NO_MOMENT


def _hash(value: object) -> object:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise PydanticCustomError("form", "must be sha256: and 64 hex digits (`roma keys add`)")
    return value


Moment = Annotated[datetime, BeforeValidator(_moment)]


class KeyEntry(Limits):
    """A caller."""

    name: Name | None = None
    """Name in logs; default: its id. Two keys may share a name while the older is replaced."""
    hash: Annotated[str, BeforeValidator(_hash)] | None = Field(default=None, repr=False)
    """SHA-256 of its token."""
    certificate: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name in a client certificate (`tls.client_ca`): its first URI, DNS or mail name, else CN."""
    models: Scope
    """Models that the caller may use, or "*" for all."""
    expires: Moment | None = None
    """Time of expiry; a date means its first moment, in UTC."""

    @model_validator(mode="after")
    def _check(self) -> "KeyEntry":
        if (self.hash is None) == (self.certificate is None):
            raise Fault("hash", self.hash and "set", "set, or certificate in its place")
        return self


KeyId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Keys(Section):
    """The whole file."""

    keys: dict[KeyId, KeyEntry]
    """Keys by id. An empty mapping admits no caller."""

    @model_validator(mode="after")
    def _check(self) -> "Keys":
        _refuse_twins((id_, e.hash, "hash") for id_, e in self.keys.items())
        _refuse_twins((id_, e.certificate, "certificate") for id_, e in self.keys.items())
        for id_, entry in self.keys.items():
            if entry.hash is not None and not re.fullmatch("[a-z]{8}", id_):
                raise Fault(f"keys.{id_}", id_, "eight letters, those of its token")
        return self


def _refuse_twins(found: Iterable[tuple[str, str | None, str]]) -> None:
    seen: dict[str, str] = {}
    for id_, value, what in found:
        if value is not None and (other := seen.setdefault(value, id_)) != id_:
            raise Fault(f"keys.{id_}.{what}", "…", f"different from that of {other}")


def load(path: Path) -> Keys:
    """Read and validate a keys file; raise `ConfigError` with one line per fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return parse(text, source=str(path))


def parse(text: str, *, source: str) -> Keys:
    """Validate YAML text; error messages quote only names and bounds."""
    data = yaml_file.read(text, source=source, secret=True)
    return yaml_file.validated(Keys, data, source, secret=True)


def expired(loaded: Keys, now: datetime) -> list[str]:
    """Return a line for each key that has expired."""
    return [
        f"keys.{id_}.expires = {entry.expires.isoformat()}: has expired: "
        f"{entry.name or id_} is refused"
        for id_, entry in loaded.keys.items()
        if entry.expires is not None and entry.expires <= now
    ]


def new_id() -> str:
    """Return a random id, one of 2·10¹¹, so that collisions are unlikely.

    It is eight letters, which YAML never reads as a number or a boolean.
    """
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))


def new_token(id_: str) -> str:
    """Return a new token with this id and a random secret."""
    return f"roma_{id_}_{secrets.token_urlsafe(32)}"


def hashed(token: str) -> str:
    """Return a token's hash, as a keys file stores it."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()
