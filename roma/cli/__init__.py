"""The `roma` command. Each subcommand imports what it needs when it runs: `--help` stays quick."""

from roma.cli.app import main

__all__ = ["main"]
