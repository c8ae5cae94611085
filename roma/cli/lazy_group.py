"""A group of commands, each imported from its own module when it runs."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from roma.cli import interrupts
from roma.domain.errors import ConfigError


class LazyGroup(TyperGroup):
    """`commands_by_name` has the help by name; a command is `command` in roma/cli/NAME_command.py.

    `renamed` has the new names of commands that were called otherwise. ctx: typer's own context,
    whose type is private.
    """

    commands_by_name: ClassVar[Mapping[str, str]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a command with its help alone, for `--help` and completion."""
        text = self.commands_by_name.get(cmd_name)
        return None if text is None else TyperCommand(cmd_name, help=text)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that is called."""
        name = args[0]
        if name in self.renamed:
            raise ConfigError(f"roma {name}: is called roma {self.renamed[name]} since 0.2")
        if name not in self.commands_by_name:
            # Those that typer looks through for what may be meant.
            self.commands = {known: TyperCommand(known) for known in self.commands_by_name}
            return super().resolve_command(ctx, args)
        with interrupts.importing():
            found = import_module(f"roma.cli.{name.replace('-', '_')}_command").command
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command(name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = name
        return name, command, args[1:]
