"""Strict YAML reader: text in, plain data out; each validation fault is one line.

Strict, because YAML and pydantic accept common typing errors: here duplicate keys are refused,
`yes` is not a number and `1:30` is not 90. Every fault names its key, its value (shortened, on one
line) and the bound.
"""

import math
import re
import reprlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from roma.domain.errors import ConfigError, in_words

M = TypeVar("M", bound=BaseModel)

_short = reprlib.Repr()
_short.maxlevel = 2
_short.maxstring = _short.maxother = _short.maxlong = 60

_HIDDEN = "…"
_LONGEST_KEY = 32
"""Longest key of a secret file that is shown, in characters; tokens are longer."""


_NO_FILE = ' in "<unicode string>",'


def _without_nul(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path cannot contain NUL")
    return path


FilePath = Annotated[Path, AfterValidator(_without_nul)]
"""A path without a NUL, which the operating system would reject."""


class Section(BaseModel):
    """A section of a hand-written file: a misspelt key must not silently mean its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def relative_to(self, base: Path) -> Self:
        """Return the section with its paths, and those of sections in it, resolved against `base`.

        `base` is the directory of the file.
        """
        own = {name: getattr(self, name) for name in type(self).model_fields}
        found = {name: _resolved(value, base) for name, value in own.items()}
        # What stays the same is not updated: pydantic would count it as set by the file.
        changed = {name: value for name, value in found.items() if value != own[name]}
        return self.model_copy(update=changed) if changed else self

    @model_validator(mode="before")
    @classmethod
    def _check_booleans(cls, data: Any) -> Any:
        """Refuse `true` where a number is expected: pydantic would read it as 1."""
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            found = [(name, part) for name, part in _parts(key, value) if isinstance(part, bool)]
            if field is None or not found:
                continue
            kinds, (name, part) = tuple(_kinds(field.annotation)), found[0]
            is_inside = value is not part
            if bool in kinds or Any in kinds or (is_inside and any(map(_is_section, kinds))):
                continue
            raise Fault(name, str(part).lower(), "a value, not true or false")
        return data


def _resolved(value: Any, base: Path) -> Any:
    match value:
        case Path():
            return base / value
        case Section():
            return value.relative_to(base)
        case tuple():
            return tuple(_resolved(part, base) for part in value)
        case dict():
            return {name: _resolved(part, base) for name, part in value.items()}
    return value


def _parts(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a value, and what is in it if it is a list or a mapping, with their keys."""
    yield key, value
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    for name, part in value.items() if isinstance(value, dict) else ():
        yield f"{key}.{name}", part


def _is_section(kind: object) -> bool:
    """Return True for a section, which checks its own values."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _kinds(annotation: object) -> Iterator[object]:
    """Yield a type and those that it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


class Fault(ValueError):
    """A fault found by a validator that compares several keys; `key` is relative to its section."""

    def __init__(self, key: str, value: object, bound: str) -> None:
        super().__init__(f"{key} = {value}: must be {bound}")
        self.key = key
        self.value = value
        self.bound = bound


def text_of(path: Path) -> str:
    """Return the text of a file; raise `ConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {in_words(error)}") from error


def read(text: str, *, source: str, secret: bool = False) -> Any:
    """Return the data of a YAML text; raise `ConfigError` with one line that names the source.

    For a `secret` text the message gives the position of the fault and none of its content.
    """
    try:
        # _UniqueKeys extends yaml's SafeLoader.
        return yaml.load(text, Loader=_UniqueKeys)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unreadable"
        # Of a text in memory, yaml's marks say where it is not.
        said = place if secret else " ".join(str(error).replace(_NO_FILE, " at").split())
        # The cause quotes the text too.
        raise ConfigError(f"{source}: not valid YAML: {said}") from (None if secret else error)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # Raised by yaml's own constructors for `2020-99-99`, `!!int abc` and the like.
        said = "a value is not what its form says" if secret else _one_line(str(error))
        raise ConfigError(f"{source}: not valid YAML: {said}") from (None if secret else error)
    except RecursionError:
        raise ConfigError(f"{source}: not valid YAML: nested too deeply") from None


def validated(kind: type[M], data: object, source: str, *, secret: bool = False) -> M:
    """Return plain data as a model of pydantic's; raise `ConfigError` with one line per fault."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = describe(error, source, secret=secret)
        # The cause quotes the values.
        raise ConfigError("\n".join(lines)) from (None if secret else error)


_KINDS = {
    "byte_size": "must be a number of bytes, or a size such as 2GiB or 500MB",
    "byte_size_unit": "must be a number of bytes, or a size such as 2GiB or 500MB",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
}
"""Kinds of values by pydantic's fault, in the words of YAML."""


def describe(error: ValidationError, source: str, *, secret: bool = False) -> list[str]:
    """Return pydantic's faults as lines: `source: key = value: bound`.

    For a `secret` file no value is shown, and no key long enough to be a secret.
    """
    lines = []
    for found in error.errors(include_url=False):
        # "[key]" marks a fault in a mapping's key; it is not a key of the file.
        parts = [str(part) for part in found["loc"] if part != "[key]"]
        key = ".".join(_HIDDEN if secret and len(part) > _LONGEST_KEY else part for part in parts)
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, Fault):
            key = f"{key}.{cause.key}" if key else cause.key
            shown, message = _show(cause.value), f"must be {cause.bound}"
        elif found["type"] == "missing":
            lines.append(f"{source}: {_one_line(key)}: missing")
            continue
        elif found["type"] == "extra_forbidden":
            shown, message = _one_line(_short.repr(found["input"])), "unknown key"
        else:
            shown = _show(found["input"])
            message = _KINDS.get(found["type"]) or found["msg"][0].lower() + found["msg"][1:]
        if secret:
            shown = _HIDDEN
        lines.append(f"{source}: {_one_line(key) or 'file'} = {shown}: {_one_line(message)}")
    return lines


MOST_KEYS = 10_000
"""Most keys of one mapping, merged ones included: a few lines of merges could make billions."""


LARGEST = 10**30
"""Largest whole number. Python's are unbounded, and one of more than 4300 digits cannot be
printed."""


class _UniqueKeys(yaml.SafeLoader):
    """YAML loader that refuses a mapping with a duplicate key; YAML keeps the last one silently.

    Plain scalars are read as in YAML 1.2: `yes` and `1:30` are strings. A number that begins with
    0 is refused: 010 is 8 in YAML 1.1 and 10 in YAML 1.2.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = super().construct_scalar(node)
        if text.isascii():
            return text
        try:
            # JSON writes a character beyond the first plane as two escapes.
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise yaml.constructor.ConstructorError(
                None, None, "half a surrogate pair is no character", node.start_mark
            ) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if re.match(r"[-+]?0[0-9_]", node.value):
            raise yaml.constructor.ConstructorError(
                None, None, f"a number must not begin with 0: {node.value:.60}", node.start_mark
            )
        number = super().construct_yaml_int(node)
        if abs(number) > LARGEST:
            raise yaml.constructor.ConstructorError(
                None, None, "a whole number must be from -10^30 to 10^30", node.start_mark
            )
        return number

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise yaml.constructor.ConstructorError(
                None, None, f"merges more than {MOST_KEYS} keys", node.start_mark
            )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "keys must be plain words", key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} appears twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_TAG = "tag:yaml.org,2002:"
_REPLACED = {
    f"{_TAG}bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    f"{_TAG}int": (r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    f"{_TAG}float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
}
"""Resolvers of plain scalars: the pattern of the whole scalar, and its first characters."""

_UniqueKeys.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in _REPLACED]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_form, _first) in _REPLACED.items():
    _UniqueKeys.add_implicit_resolver(_tag, re.compile(f"(?:{_form})\\Z"), list(_first))

_UniqueKeys.add_constructor(f"{_TAG}int", _UniqueKeys.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes every text that YAML 1.1 or 1.2 would read as another type.

    Without anchors: repeated lists are written out, since people read them.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a text; breaks of line that only YAML 1.1 knows must be escaped."""
    style = '"' if any(c in text for c in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.yaml_implicit_resolvers = {
    first: [*forms, *_UniqueKeys.yaml_implicit_resolvers.get(first, ())]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def dump(data: object, *, compact: bool = False) -> str:
    """Return plain data as a YAML document, its keys in their order.

    `compact`: lists and mappings of scalars take a line each.
    """
    flow = None if compact else False
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=flow,
    )


def quoted(text: str) -> str:
    """Return a text in double quotes, on one line."""
    return yaml.dump(text, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")


def _show(value: object) -> str:
    """Return a value as text for people: scalars as they are, structures shortened."""
    return _one_line(value if isinstance(value, str) else _short.repr(value))


def _one_line(text: str) -> str:
    flat = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return flat if len(flat) <= 160 else f"{flat[:157]}..."
