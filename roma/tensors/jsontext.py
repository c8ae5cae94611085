"""JSON as TensorFlow Serving reads it: RapidJSON's dialect, not RFC 8259.

TensorFlow Serving parses with `kParseNanAndInfFlag | kParseStopWhenDoneFlag` and does not validate
UTF-8 (tensorflow_serving/util/json_tensor.cc, `ParseJson`). So `NaN`, `Inf`, `Infinity` and their
negatives are numbers, text after the root is ignored, and a string may contain any bytes.

orjson parses ordinary bodies. A body that it refuses is parsed again, more slowly, by the standard
library with these extensions. Strings keep invalid UTF-8 as surrogate escapes (PEP 383).
"""

import json
import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from roma.tensors.errors import RequestError

PREVIEW_CHARACTERS = 256
"""Most characters of a value that an error text quotes: `kMaxJsonDebugStringBytes`."""

STRING_OR_LITERAL = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?Inf(?:inity)?|-?NaN',
    re.DOTALL,
)
"""Possessive, and a string needs no end: one that is never closed costs a single pass and no memory
for a way back."""

_LITERALS = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}

# Texts of RapidJSON's GetParseError_En, by the beginning of the standard library's texts.
_TEXTS = {
    "Expecting value": "Invalid value.",
    "Expecting property name": "Missing a name for object member.",
    "Expecting ':'": "Missing a colon after a name of object member.",
    "Unterminated string": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX": "Incorrect hex digit after \\u escape in string.",
    "Invalid control": "Invalid encoding in string.",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed body.

    `has_booleans` is false only if no value in it can be true or false: NumPy reads a boolean among
    numbers as a number, whereas TensorFlow Serving refuses it.
    """

    root: dict[str, Any]
    has_booleans: bool


def parse(body: bytes) -> Document:
    """Parse a request body, whose root must be an object; raises RequestError."""
    if not body:
        raise RequestError("JSON Parse error: The document is empty")
    try:
        root = orjson.loads(body)
    except orjson.JSONDecodeError:
        root = _parse_liberally(body)
    if not isinstance(root, dict):
        raise RequestError(f"JSON Value: {preview(root)} Is not object")
    return Document(root, has_booleans=b"true" in body or b"false" in body)


def type_name(value: Any) -> str:
    """Return RapidJSON's name of a value's type."""
    match value:
        case None:
            return "Null"
        case bool():
            return str(value)
        case dict():
            return "Object"
        case list():
            return "Array"
        case str():
            return "String"
    return "Number"


def preview(value: Any) -> str:
    """Return the beginning of a value as JSON, for an error text.

    TensorFlow Serving also wraps objects over several lines; here they stay on one line.
    """
    try:
        # In pieces, so that quoting a body of many megabytes costs no more than quoting a short
        # one.
        pieces = islice(json.JSONEncoder(ensure_ascii=False).iterencode(value), PREVIEW_CHARACTERS)
        return "".join(pieces)[:PREVIEW_CHARACTERS]
    except RecursionError:
        return "[["


def _parse_liberally(body: bytes) -> Any:
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        # Most refused bodies are invalid in any dialect; only these may be valid for RapidJSON.
        if "Inf" not in text and "-NaN" not in text:
            raise _parse_error(error) from None
    try:
        return _decode(_with_literals(text))
    except json.JSONDecodeError as error:
        raise _parse_error(error) from None


def _with_literals(text: str) -> str:
    """Return the text with RapidJSON's literals as the standard library spells them."""
    parts: list[str] = []
    end = 0
    for match in STRING_OR_LITERAL.finditer(text):
        begin = match.start()
        # Most matches are strings, which are not copied.
        if text[begin] != '"' and match[0] in _LITERALS:
            parts += (text[end:begin], _LITERALS[match[0]])
            end = match.end()
    return "".join((*parts, text[end:]))


def _decode(text: str) -> Any:
    decoder = json.JSONDecoder(parse_float=_float, parse_int=_integer)
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        return decoder.raw_decode(text, start)[0]
    except RecursionError:
        raise RequestError("JSON Parse error: The document is nested too deeply.") from None


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise RequestError("JSON Parse error: Number too big to be stored in double.")
    return value


def _integer(digits: str) -> int | float:
    # A number that fits neither int64 nor uint64 is a double (as in RapidJSON and orjson); at most
    # 20 digits can fit.
    if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    return _float(digits)


def _parse_error(error: json.JSONDecodeError) -> RequestError:
    text = error.doc
    if not text.strip(" \t\r\n"):
        reason = "The document is empty."
    elif error.msg.startswith("Expecting ','"):
        closing = "} after an object member" if _is_in_object(text[: error.pos]) else None
        reason = f"Missing a comma or {closing or '] after an array element'}."
    else:
        known = (there for here, there in _TEXTS.items() if error.msg.startswith(here))
        reason = next(known, f"{error.msg}.")
    offset = len(text[: error.pos].encode("utf-8", "surrogateescape"))
    return RequestError(f"JSON Parse error: {reason} at offset: {offset}")


def _is_in_object(text: str) -> bool:
    """Return whether `text`, a document up to a missing comma, ends inside an object."""
    try:
        _decode(f"{text}}}")
    except json.JSONDecodeError as error:
        return error.pos > len(text)
    return True
