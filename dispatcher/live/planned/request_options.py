"""Request options of a client about the quality of its answer, and the time a request has spent.

    X-Roma-Variant: digits-small        this variant and no other
    X-Roma-Min-Accuracy: 0.9            a variant that is at least as accurate
    X-Request-Soft-Timeout-Ms: 50       the answer loses value from then on
    X-Request-Start: t=1700000000.123   when it was sent, in proxies' format

Only planned devices support them; elsewhere they are unknown headers.
"""

import re
from collections.abc import Mapping
from typing import Final

from roma.domain.model import ModelSpec
from roma.domain.variants import RequestOptions
from roma.tensors.errors import RequestError

VARIANT: Final = "X-Roma-Variant"
"""Header for the variant that must serve a request; in an answer, for those that did."""

_ACCURACY: Final = "X-Roma-Min-Accuracy"
_SOFT: Final = "X-Request-Soft-Timeout-Ms"
_START: Final = "X-Request-Start"

_KEYS: Final = frozenset(name.lower().encode() for name in (VARIANT, _ACCURACY, _SOFT, _START))

_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,20})?")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,9}")

_TIMES: Final = (946_684_800, 4_102_444_800)
"""The years 2000 and 2100. Some proxies count in seconds, some in milliseconds or microseconds;
only one of these units puts a number between the two."""


def are_in(headers: Mapping[bytes, bytes]) -> bool:
    """Return True if a request has any of these headers."""
    return not _KEYS.isdisjoint(headers)


def read(
    headers: Mapping[bytes, bytes],
    spec: ModelSpec,
    deadline: float | None,
    *,
    now: float,
    today: float,
) -> tuple[RequestOptions, float]:
    """Return a request's options, and the seconds that it spent on its way here.

    `deadline` is its own hard one, in seconds; `now` is the core's clock, `today` the calendar's.
    Raises RequestError.
    """
    variant, accuracy = _quality(headers, spec)
    spent = _spent(_text(headers, _START), today)
    soft = _soft(_text(headers, _SOFT), deadline)
    if soft is None and not spent:
        return RequestOptions(None, variant, accuracy), 0.0
    left = (spec.sla.response_time if soft is None else soft) - spent
    return RequestOptions(now + max(0.0, left), variant, accuracy), spent


def _text(headers: Mapping[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.lower().encode())
    return None if value is None else value.decode("latin-1")


def _quality(headers: Mapping[bytes, bytes], spec: ModelSpec) -> tuple[str | None, float]:
    """Return the requested variant, and the least accuracy."""
    pin, least = _text(headers, VARIANT), _text(headers, _ACCURACY)
    for name, text in ((VARIANT, pin), (_ACCURACY, least)):
        if text is not None and not spec.variants:
            raise RequestError(f"{name}: {text}: must be absent: model {spec.name} has no variants")
    able = [v for v in spec.variants if pin in (None, v.name)]
    if pin is not None and not able:
        known = ", ".join(spec.served_as)
        raise RequestError(f"{VARIANT}: {pin}: must be one of {known}")
    if least is None:
        return pin, 0.0
    if not _NUMBER.fullmatch(least) or not 0 < float(least) <= 1:
        raise RequestError(f"{_ACCURACY}: {least}: must be a number, > 0 and ≤ 1")
    best = able[0]  # variants are in order
    if best.accuracy < float(least):
        bound = f"≤ {best.accuracy}, the accuracy of {best.name}"
        raise RequestError(f"{_ACCURACY}: {least}: must be {bound}")
    return pin, float(least)


def _soft(text: str | None, deadline: float | None) -> float | None:
    if text is None:
        return None
    if not _MILLISECONDS.fullmatch(text) or not int(text):
        bound = "a whole number of milliseconds, 1 to 999999999"
        raise RequestError(f"{_SOFT}: {text}: must be {bound}")
    soft = int(text) / 1000
    if deadline is not None and soft > deadline:
        bound = f"≤ X-Request-Timeout-Ms ({deadline * 1000:.0f})"
        raise RequestError(f"{_SOFT}: {text}: must be {bound}")
    return soft


def _spent(text: str | None, today: float) -> float:
    """Return the seconds since a request was sent; a time in the future counts as now."""
    if text is None:
        return 0.0
    number, (first, last) = text.removeprefix("t="), _TIMES
    if _NUMBER.fullmatch(number):
        for unit in (1.0, 1e3, 1e6):
            sent = float(number) / unit
            if first <= sent < last:
                return max(0.0, today - sent)
    bound = "t= and a time in seconds since 1970, milli- or microseconds as well"
    raise RequestError(f"{_START}: {text}: must be {bound}")
