"""`roma keys add | list | revoke | token`: edits a keys file, whole or not at all.

Comments in it stay. A token is printed once, to standard output alone; the file gets its
hash. A gateway that runs reads the file within a second.
"""

import json
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from ruamel.yaml.error import YAMLError

from roma.cli.console import wide_console
from roma.config import file_edit
from roma.deploy.config_edit import round_trip, written
from roma.domain.errors import ConfigError
from roma.domain.model import Priority
from roma.security import api_keys, tokens

command = typer.Typer(
    help="Keys of those who may call, and the secrets of the admin port.",
    no_args_is_help=True,
    add_completion=False,
)

File = Annotated[Path, typer.Argument(help="A keys file (gateway.keys).", metavar="FILE")]

HEADER = """\
# Who may call; see `roma keys --help`. Hashes of tokens, no tokens.
keys: {}
"""


@command.command()
def add(
    file: File,
    name: Annotated[str, typer.Argument(help="What logs call the caller.", metavar="NAME")],
    model: Annotated[
        list[str], typer.Option(help='A model that it may call, or "*" for all; repeatable.')
    ],
    rate: Annotated[float | None, typer.Option(help="Most requests per second.")] = None,
    burst: Annotated[int | None, typer.Option(help="Most requests at once, with --rate.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Most requests under way.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="The highest it may use.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="Date or time (ISO 8601) from which it is refused.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(help="Name in a client certificate, instead of a token.")
    ] = None,
) -> None:
    """Let NAME call; print its token, which nothing else ever shows again."""
    id_ = api_keys.new_id()
    token = None if certificate else api_keys.new_token(id_)
    entry = {
        "name": name,
        "hash": None if token is None else api_keys.hashed(token),
        "certificate": certificate,
        "models": "*" if "*" in model else list(model),
        "rate": rate,
        "burst": burst,
        "concurrency": concurrency,
        "priority": None if priority is None else priority.value,
        "expires": expires,
    }

    def edit(entries: MutableMapping[str, Any]) -> None:
        entries[id_] = {key: value for key, value in entry.items() if value is not None}

    with file_edit.alone(file):
        _edited(file, edit, added=id_)
    if token is not None:
        print(token)


@command.command("list")
def list_(
    file: File,
    json_output: Annotated[bool, typer.Option("--json", help="Print the keys as JSON.")] = False,
) -> None:
    """Show who may call what; no secret is in it."""
    if json_output:
        entries = api_keys.load(file).keys.items()
        shown = [{"id": id_, **e.model_dump(mode="json", exclude={"hash"})} for id_, e in entries]
        print(json.dumps(shown, indent=2))
        return
    table = Table("id", "name", "models", "limits", "expires")
    for id_, entry in api_keys.load(file).keys.items():
        limits = {
            "req/s": entry.rate,
            "at once": entry.burst,
            "under way": entry.concurrency,
        }
        said = [f"{value:g} {unit}" for unit, value in limits.items() if value is not None]
        said += [entry.priority.value] if entry.priority is not Priority.INTERACTIVE else []
        table.add_row(
            id_,
            (entry.name or id_)
            + (f" (certificate {escape(entry.certificate)})" if entry.certificate else ""),
            "*" if entry.models == "*" else escape(", ".join(entry.models)),
            ", ".join(said) or "-",
            _until(entry.expires),
        )
    wide_console().print(table)


def _until(expires: datetime | None) -> str:
    if expires is None:
        return "-"
    return expires.isoformat() + (" (expired)" if expires <= datetime.now(UTC) else "")


@command.command()
def revoke(
    file: File,
    key: Annotated[str, typer.Argument(help="Its id, or a name: all of that name.")],
) -> None:
    """Let a key call no longer."""
    gone: list[str] = []

    def edit(entries: MutableMapping[str, Any]) -> None:
        for id_ in gone:
            del entries[id_]

    with file_edit.alone(file):
        loaded = api_keys.load(file).keys
        gone += [id_ for id_, entry in loaded.items() if key in (id_, entry.name)]
        if not gone:
            known = ", ".join(f"{id_} ({entry.name or id_})" for id_, entry in loaded.items())
            bound = f"must be one of {known or 'none: there is no key'}"
            raise ConfigError(f"{file}: key = {key}: {bound}")
        _edited(file, edit)
    print(f"revoked {', '.join(gone)}")


@command.command()
def token(
    file: Annotated[Path, typer.Argument(help="A token file to write.", metavar="FILE")],
    replace: Annotated[
        bool, typer.Option(help="Write a new one, and accept the old one beside it.")
    ] = False,
) -> None:
    """Write a new secret for `tokens` of roma.yaml, readable by its owner alone."""
    text = tokens.new() + "\n"
    with file_edit.alone(file):
        if file.exists():
            if not replace:
                bound = "--replace keeps the old one beside it"
                raise ConfigError(f"{file}: is there already: {bound}")
            tokens.read(file)
            text += file.read_text(encoding="ascii").split()[0] + "\n"
        file_edit.write(file, text)
    print(f"wrote {file}")


def _edited(
    file: Path, edit: Callable[[MutableMapping[str, Any]], None], *, added: str | None = None
) -> None:
    """Change the entries of a file; one that would be wrong is not written.

    Nor is a key `added` that has expired: its caller would be refused without a reason.
    """
    if file.exists():
        api_keys.load(file)
    try:
        document = round_trip().load(file.read_text(encoding="utf-8") if file.exists() else HEADER)
    except (YAMLError, OSError) as error:
        raise ConfigError(f"{file}: cannot be edited: {type(error).__name__}") from None
    if getattr(document["keys"], "merge", None):  # a key that is merged in would stay
        raise ConfigError(f"{file}: keys: must be written out to be edited, without a merge key")
    if not document["keys"]:
        document["keys"] = {}  # block style instead of the braces
    edit(document["keys"])
    text, now = written(document), datetime.now(UTC)
    parsed = api_keys.parse(text, source=str(file))
    over = None if added is None else parsed.keys[added].expires
    if over is not None and over <= now:
        bound = f"must be after now ({now.isoformat(timespec='seconds')})"
        raise ConfigError(f"{file}: keys.{added}.expires = {over.isoformat()}: {bound}")
    file_edit.write(file, text)
