"""Reads the few fields of a protobuf message that identify its model, and nothing else.

Tensors stay bytes: a message's fields are skipped by their lengths. The generated classes, which
would pull in TensorFlow, are not needed. Fields have protobuf's semantics: the last value of a
field wins, messages merge, a member of a oneof clears the others, a known field of another wire
type is an unknown one. A message that protobuf would not read raises `Malformed`, and so does one
of too many fields: reading it would block everything else.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_FIELDS = 10_000
"""Fields of one message, including those of the nested messages that are read. An inference has one
per input."""

MAX_DEPTH = 100
"""Nesting depth of groups: protobuf's own bound."""

_VARINT, _I64, _LEN, _START, _END, _I32 = range(6)
_MAX_TAG = 2**32 - 1
_MAX_LENGTH = 2**31 - 1
_SHORT, _LONG = 5, 10
"""Most bytes of a varint of 32 bits (fields and lengths), and of one of 64."""


class Malformed(ValueError):
    """No protobuf message, or one beyond a bound."""


@dataclass(slots=True)
class WireModelSpec:
    """TensorFlow Serving's ModelSpec: the version is in `version`, in `label`, or in neither."""

    name: str = ""
    version: int | None = None
    label: str | None = None
    is_given: bool = field(default=False, compare=False)
    """True if the message has one."""


class _Reader:
    """A message's bytes, and the number of fields that may still be read."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type, and the begin and end of the value; a group has no value.

        For a varint, the "begin" is its value.
        """
        at, depth, groups = start, 0, [0] * MAX_DEPTH
        while at < end:
            tag, at = self.varint(at, end, most=_SHORT)
            number, kind = tag >> 3, tag & 7
            if tag > _MAX_TAG or not (number or depth):  # within a group, protobuf skips any
                raise Malformed("a field's number is out of range")
            self.left -= 1
            if self.left < 0:
                raise Malformed(f"there are more than {MAX_FIELDS} fields")
            if kind == _END:
                depth -= 1
                if depth < 0 or groups[depth] != number:
                    raise Malformed("a group ends that did not begin")
                continue
            if kind == _START:
                if depth == MAX_DEPTH:
                    raise Malformed(f"groups are nested deeper than {MAX_DEPTH}")
                groups[depth] = number
                depth += 1
                continue
            begins, at = self._value(kind, at, end)
            if not depth:
                yield number, kind, begins, at
        if depth:
            raise Malformed("a group does not end")

    def _value(self, kind: int, at: int, end: int) -> tuple[int, int]:
        """Return where a value begins (for a varint the value itself), and where it ends."""
        if kind == _VARINT:
            return self.varint(at, end)
        if kind == _LEN:
            length, at = self.varint(at, end, most=_SHORT)
            if length > _MAX_LENGTH:
                raise Malformed("a field is longer than protobuf allows")
        elif kind in (_I64, _I32):
            length = 8 if kind == _I64 else 4
        else:
            raise Malformed(f"there is no wire type {kind}")
        if end - at < length:
            raise Malformed("a field goes on beyond its message")
        return at, at + length

    def varint(self, at: int, end: int, most: int = _LONG) -> tuple[int, int]:
        """Return the number at a position, modulo 2**64, and the position after it."""
        value, data = 0, self.data
        for shift in range(0, 7 * most, 7):
            if at >= end:
                raise Malformed("a number goes on beyond its message")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), at
        raise Malformed(f"a number is longer than {most} bytes")

    def text(self, start: int, end: int) -> str:
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError:
            raise Malformed("a text is no UTF-8") from None


def model_spec(data: bytes) -> WireModelSpec:
    """Read field 1, a ModelSpec: that of all of TensorFlow Serving's requests but one."""
    return _spec_in(_Reader(data), 0, len(data))


def task_specs(data: bytes) -> list[WireModelSpec]:
    """Read the ModelSpec of each task of a MultiInferenceRequest."""
    reader = _Reader(data)
    return [
        _spec_in(reader, begins, ends)
        for number, kind, begins, ends in reader.fields(0, len(data))
        if number == 1 and kind == _LEN
    ]


def name_and_version(data: bytes) -> tuple[str, str]:
    """Read fields 1 and 2, both texts: all of the Open Inference Protocol's requests have them."""
    reader, name, version = _Reader(data), "", ""
    for number, kind, begins, ends in reader.fields(0, len(data)):
        if kind == _LEN and number == 1:
            name = reader.text(begins, ends)
        elif kind == _LEN and number == 2:
            version = reader.text(begins, ends)
    return name, version


def with_name(data: bytes, name: str) -> bytes:
    """Return a message of the Open Inference Protocol that names another model.

    The last value of a field wins: it is written behind the message, whose tensors stay untouched.
    """
    return data + text(1, name)


def with_spec_name(data: bytes, name: str) -> bytes:
    """Return a request of TensorFlow Serving whose ModelSpec names another model; it merges."""
    return data + _field(1, text(1, name))


def with_task_names(data: bytes, name: str) -> bytes:
    """Return a MultiInferenceRequest whose tasks name another model.

    Fields that are no messages are left out: TensorFlow Serving knows none here.
    """
    return b"".join(
        _field(
            number, with_spec_name(data[begins:ends], name) if number == 1 else data[begins:ends]
        )
        for number, kind, begins, ends in _Reader(data).fields(0, len(data))
        if kind == _LEN
    )


def _spec_in(reader: _Reader, start: int, end: int) -> WireModelSpec:
    spec = WireModelSpec()
    for number, kind, begins, ends in reader.fields(start, end):
        if number == 1 and kind == _LEN:
            spec.is_given = True
            _merge(reader, spec, begins, ends)
    return spec


def _merge(reader: _Reader, spec: WireModelSpec, start: int, end: int) -> None:
    for number, kind, begins, ends in reader.fields(start, end):
        if kind != _LEN:
            continue
        match number:
            case 1:
                spec.name = reader.text(begins, ends)
            case 2:
                spec.version, spec.label = _int64(reader, begins, ends, spec.version or 0), None
            case 4:
                spec.version, spec.label = None, reader.text(begins, ends)


def _int64(reader: _Reader, start: int, end: int, value: int) -> int:
    """Read an Int64Value that merges into another one."""
    for number, kind, begins, _ in reader.fields(start, end):
        if number == 1 and kind == _VARINT:
            value = begins - 2**64 if begins >= 2**63 else begins
    return value


def text(number: int, value: str) -> bytes:
    """Write a text field."""
    return _field(number, value.encode())


def _field(number: int, encoded: bytes) -> bytes:
    """Write a text or a message field."""
    return _varint(number << 3 | _LEN) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def truth(number: int, *, value: bool) -> bytes:
    """Write a bool field; its number is less than 16. False is the default, which is not sent."""
    return bytes((number << 3 | _VARINT, 1)) if value else b""
