"""What has changed in roma.yaml while everything runs.

The launcher watches the file; it tells the programs that it started by SIGHUP, as anybody may who
started them otherwise. A file that is wrong, or that takes a restart, is an error in the log and
changes nothing.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from roma.config.diff import compare
from roma.config.schema import Config, load
from roma.config.watched_file import Stamp, stamp
from roma.domain.errors import ConfigError

log = logging.getLogger(__name__)


class ConfigWatch:
    """Looks at the file for the launcher; `config` is what is in force."""

    def __init__(self, file: Path, config: Config) -> None:
        self._file = file
        self._config = self._started = config
        # The file may have changed since it was read: an image may have been pulled meanwhile.
        self._seen: Stamp | None = None

    def look(self) -> Config | None:
        """Return the configuration anew if the file has changed and can be taken over."""
        seen = stamp(self._file)
        if seen in (self._seen, None):
            return None
        self._seen = seen
        new = _changed(self._file, self._config, self._started)
        self._config = new or self._config
        return new


async def reloads(file: Path, config: Config) -> AsyncIterator[Config]:
    """Yield the configuration anew after each SIGHUP; `config` is the one in force."""
    told, started = asyncio.Event(), config
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
    while True:
        await told.wait()
        told.clear()
        # In a thread: a file of a thousand models takes longer to read than requests can wait.
        if (new := await asyncio.to_thread(_changed, file, config, started)) is not None:
            config = new
            yield config


def _changed(file: Path, config: Config, started: Config) -> Config | None:
    """Return what the file says now if that differs and takes no restart."""
    try:
        new = load(file)
        change = compare(config, new, started)
    except ConfigError as error:
        log.error("%s: nothing is changed: %s", file, error)
        return None
    return new if change.added or change.removed or change.limits else None
