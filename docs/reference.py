"""The generated reference: `roma`'s commands and the keys of roma.yaml, as Markdown.

`python docs/reference.py` writes docs/reference/cli.md and config.md, which are not committed: `make docs`
makes them anew. Help texts and docstrings under the fields are the only source.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from roma.cli.app import COMMANDS, Commands
from roma.config.schema import Config

HERE = Path(__file__).parent / "reference"


def cell(text: object) -> str:
    """Return a text fit for a cell of a table."""
    return re.sub(r"\s+", " ", str(text)).replace("|", r"\|").strip()


def cli() -> str:
    """Return the page of the command line."""
    lines = [
        "# Command line",
        "",
        "Exit status: 0 done, 1 failed, 2 the configuration or the machine is wrong. `roma --version`;",
        "`roma --install-completion` for your shell.",
        "",
    ]
    group = Commands(name="roma")
    for name in COMMANDS:
        _, command, _ = group.resolve_command(typer.Context(group), [name])
        lines += section(f"roma {name}", command)
    return "\n".join(lines).rstrip() + "\n"


def section(name: str, command: Any) -> Iterator[str]:
    """Yield the lines of a command, or of a group and its commands."""
    children = getattr(command, "commands", None)
    yield from (f"## {name}" if name.count(" ") == 1 else f"### {name}", "")
    yield from (cell(command.help or ""), "")
    if children:
        for child, found in children.items():
            yield from section(f"{name} {child}", found)
        return
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if shown:
        yield from ("| argument or option | default | meaning |", "|---|---|---|")
    for parameter in shown:
        is_option = parameter.param_type_name == "option"
        names = (
            ", ".join(parameter.opts)
            if is_option
            else (parameter.metavar or parameter.name.upper())
        )
        default = "" if parameter.default in (None, False, ()) else f"`{parameter.default}`"
        required = "required" if parameter.required else default
        text = cell(getattr(parameter, "help", None) or "")
        yield f"| `{names}` | {required} | {text} |"
    yield ""


def config() -> str:
    """Return the page of roma.yaml."""
    schema = Config.model_json_schema()
    lines = [
        "# Keys of roma.yaml",
        "",
        "Times are seconds, CPU is cores, sizes are bytes. Unknown keys are refused. `roma config check FILE`",
        "validates a file; `roma config schema` prints this page's source as JSON Schema, for editors.",
        "",
    ]
    todo, seen = [("", "the file", schema)], set()
    definitions = schema["$defs"]
    while todo:
        path, title, found = todo.pop(0)
        if title in seen:
            continue
        seen.add(title)
        lines += [f"## {path or 'roma.yaml'}", "", cell(found.get("description", "")), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key, field in found["properties"].items():
            kind, references = describe(field, definitions)
            default = (
                f"`{cell(field['default'])}`" if field.get("default") not in (None, {}, []) else ""
            )
            if key in found.get("required", ()):
                default = "required"
            if references and isinstance(field.get("default"), dict):
                default = ""
            lines.append(f"| `{key}` | {kind} | {default} | {cell(field.get('description', ''))} |")
            for reference, suffix in references:
                todo.append(
                    (f"{path}.{key}{suffix}".lstrip("."), reference, definitions[reference])
                )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def describe(field: dict[str, Any], definitions: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return a field's type in words, and the sections that it refers to with their key suffix."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        found = definitions[name]
        if "properties" in found:
            return "section", [(name, "")]
        return describe(found, definitions)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in field:
            parts = [describe(f, definitions) for f in field[choice] if f.get("type") != "null"]
            return " or ".join(dict.fromkeys(p[0] for p in parts)), [r for p in parts for r in p[1]]
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"]), []
    if "const" in field:
        return f"`{field['const']}`", []
    if field.get("type") == "array":
        inner, references = describe(field.get("items", {}), definitions)
        return f"list of {inner or 'values'}", [(r, f"[]{s}") for r, s in references]
    if field.get("type") == "object":
        values = field.get("additionalProperties") or {}
        values = next(iter(field.get("patternProperties", {}).values()), values)
        inner, references = describe(values, definitions)
        return f"map of {inner or 'values'}", [(r, f".NAME{s}") for r, s in references]
    return field.get("type", "") + bounds(field), []


def bounds(field: dict[str, Any]) -> str:
    """Return a number's bounds, or nothing."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[key]:g}" for key, sign in signs.items() if key in field]
    return " " + ", ".join(found) if found else ""


def main() -> None:
    """Write the pages."""
    for name, text in (("cli.md", cli()), ("config.md", config())):
        (HERE / name).write_text(text)


if __name__ == "__main__":
    main()
