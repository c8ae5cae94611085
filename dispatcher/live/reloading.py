"""Reloads a dispatcher's roma.yaml while it runs: on SIGHUP, or by request to the admin port.

The whole file is validated. Its changes are applied at once or not at all; on an error the old
configuration stays in force. Changes that require a restart are named.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from dispatcher.live.http.server import Server
from dispatcher.live.model_registry import ModelRegistry
from roma.config import schema as files
from roma.config.schema import Config
from roma.config.watched_file import check_regular
from roma.domain.errors import ConfigError

log = logging.getLogger(__name__)


class Reloading:
    """Reloads the file; `adapt` derives this dispatcher's configuration from it."""

    def __init__(
        self, file: Path, adapt: Callable[[Config], Config], registry: ModelRegistry, server: Server
    ) -> None:
        self._file = file
        self._adapt = adapt
        self._registry = registry
        self._server = server
        self._turn = asyncio.Lock()

    async def take_over(self) -> Config:
        """Apply the file as it is now, and return it; raise ConfigError, changing nothing."""
        async with self._turn:
            # In a thread: a file of a thousand models takes longer to read than requests can wait.
            new = self._adapt(await asyncio.to_thread(_read, self._file))
            await self._registry.follow(new)
            self._server.bound(new.gateway.limits, new.gateway.max_body_bytes)
            return new

    async def run(self, told: asyncio.Event) -> None:
        """Reload each time that `told` is set, until cancelled."""
        while True:
            await told.wait()
            told.clear()
            try:
                await self.take_over()
            except ConfigError as error:
                log.error("%s: nothing is changed: %s", self._file, error)


def _read(file: Path) -> Config:
    check_regular(file)
    return files.load(file)
