"""The `roma` command. Each subcommand imports what it needs when it runs: `--help` stays quick."""

from roma.cli import interrupts

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C has no traceback, however early it comes."""
    with interrupts.importing():
        from roma.cli import app
    app.main()
