"""Reasons why executables cannot serve: the launcher's, or those in their own status.

Only reported reasons count: a server that cannot be reached while it starts is no reason to give
up.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from dispatcher.core import Dispatcher
from roma.config import start_failures
from roma.config.watched_file import Watched, looking

MOST_FAULTS = 3
"""Most models of an executable whose faults are told together."""

log = logging.getLogger(__name__)


class Reasons:
    """The reasons known to one dispatcher; `launcher` maps executables to its reasons.

    `seen` has the faults of models that health checks found in their status, by executable, and
    `unreached` why they got none from one that nobody here starts: operators are told, but clients
    may come again.
    """

    def __init__(
        self, core: Dispatcher, launcher: Watched[Mapping[str, str]] | None = None
    ) -> None:
        self.seen: dict[str, Mapping[str, str]] = {}
        self.unreached: dict[str, str] = {}
        self._core = core
        self._launcher = launcher

    def note(
        self,
        executable: str,
        *,
        reported: Mapping[str, str] | None = None,
        unreached: str | None = None,
    ) -> None:
        """Keep what a health check found, faults by model; forget what the one before it did."""
        text = f"{executable}: {unreached}"
        is_new = unreached is not None and self.unreached.get(executable) != text
        if is_new and self._is_lost(executable):  # otherwise the driver logs it
            log.warning("executable %s", text)
        self.seen.pop(executable, None)
        self.unreached.pop(executable, None)
        if reported:
            self.seen[executable] = reported
        if unreached is not None:
            self.unreached[executable] = text

    def of(self, executable: str, model: str | None = None) -> str:
        """Return why an executable cannot serve a model, or any; an empty string: unknown."""
        is_lost = self._is_lost(executable)
        if not is_lost and not self._lacks(executable, model):
            return ""
        said = {} if self._launcher is None else self._launcher.value
        if is_lost and executable in said:
            return said[executable]
        seen = self.seen.get(executable, {})
        found = list(seen.values()) if model is None else [seen[model]] if model in seen else []
        more = f"; {len(found) - MOST_FAULTS} more" if len(found) > MOST_FAULTS else ""
        return f"{executable}: {'; '.join(found[:MOST_FAULTS])}{more}" if found else ""

    def for_operators(self, executable: str, model: str | None = None) -> str:
        """Return what operators are told of an executable that is not live or lacks a model."""
        found = self.of(executable, model)
        if found or not (self._is_lost(executable) or self._lacks(executable, model)):
            return found
        return self.unreached.get(executable, "")

    def _lacks(self, executable: str, model: str | None) -> bool:
        if executable not in self._core.executors:
            return False
        missing = self._core.executors[executable].missing
        return bool(missing) if model is None else model in missing

    def _is_lost(self, executable: str) -> bool:
        executors = self._core.executors
        return executable in executors and not executors[executable].live

    def of_model(self, model: str) -> str:
        """Return why nothing can serve a model; an empty string if something can, or may soon."""
        serving = [e for e in self._core.executors if model in e.spec.models]
        found = [self.of(e.spec.name, model) for e in serving]
        return "; ".join(found) if found and all(found) else ""


@contextlib.asynccontextmanager
async def following(core: Dispatcher, file: Path | None) -> AsyncIterator[Reasons]:
    """Follow the file that a launcher writes, if there is one, until the block ends.

    Raises ConfigError if the file holds something else.
    """
    launcher = start_failures.watched(file)
    async with looking(launcher):
        yield Reasons(core, launcher)
