"""Reloading of roma.yaml at run time.

The launcher watches the file, reads it at once on SIGHUP, and sends SIGHUP to the programs that it
started; programs started in another way can be sent SIGHUP by hand. A file that is gone, invalid,
or that needs a restart, is logged as an error and changes nothing.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from roma.config.diff import compare
from roma.config.schema import Config, load
from roma.config.watched_file import Stamp, check_regular, stamp
from roma.domain.errors import ConfigError

log = logging.getLogger(__name__)


class ConfigWatch:
    """The launcher's watch on the file; `config` is the configuration in force."""

    def __init__(self, file: Path, config: Config) -> None:
        self._file = file
        self._config = self._started = config
        # Of no file: it may have changed since it was read, since pulling an image takes time.
        self._seen: Stamp | None = (0, 0, 0)
        self._tried: Stamp | None = self._seen
        self._fault = ""

    def look(self, *, again: bool = False) -> Config | None:
        """Return the new configuration if the file has changed and needs no restart.

        `again` reads it even if it looks the same; its faults are then logged again.
        """
        seen = stamp(self._file)
        if seen == self._seen and not again:
            return None
        try:
            new = _read(self._file, self._config, self._started, self._started)
        except ConfigError as error:
            # Tried again at each look: a right, or another file that it names, may be the reason.
            if again or seen != self._tried or str(error) != self._fault:
                log.error("%s: nothing is changed: %s", self._file, error)
            self._tried, self._fault = seen, str(error)
            return None
        self._seen = self._tried = seen
        self._config = new or self._config
        return new


def listen(told: asyncio.Event) -> None:
    """Set `told` at each SIGHUP from now on, and at once if one came since the program started.

    The launcher starts its programs with SIGHUP blocked: unhandled, it would end them.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


async def reloads(file: Path, config: Config) -> AsyncIterator[Config]:
    """Yield the new configuration after each SIGHUP; `config` is the one in force."""
    told, started = asyncio.Event(), config
    listen(told)
    while True:
        await told.wait()
        told.clear()
        # In a thread: reading a file with a thousand models takes longer than requests can wait.
        if (new := await asyncio.to_thread(_changed, file, config, started)) is not None:
            config = new
            yield config


def _changed(file: Path, config: Config, started: Config) -> Config | None:
    """Return what `_read` does; a fault is logged."""
    try:
        return _read(file, config, started, None)
    except ConfigError as error:
        log.error("%s: nothing is changed: %s", file, error)
        return None


def _read(file: Path, config: Config, started: Config, servers: Config | None) -> Config | None:
    """Return the file's configuration if it differs and needs no restart; raise ConfigError."""
    try:
        check_regular(file)
        new = load(file)
        return new if compare(config, new, started, servers).is_any else None
    except ConfigError:
        raise
    except Exception:  # a bug in reading a file must not end what serves
        log.exception("%s: nothing is changed: it cannot be checked", file)
        return None
