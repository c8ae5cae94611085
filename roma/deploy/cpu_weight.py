"""Low CPU weight for executables that load beside others that serve, until models are available.

A quota bounds how much CPU loading takes, not when it takes it: TensorFlow starts on all cores at
once, and requests of other models would wait for those bursts. A model server that dies and loads
again keeps its weight.
"""

import asyncio
import contextlib
import logging

import aiohttp

from roma.config.executable import Executable
from roma.config.sockets import reached
from roma.domain.errors import ActuationError
from supervisor.cgroups import Group

log = logging.getLogger(__name__)

LAST = 0.002
"""Weight of a group while it loads; one that serves has 1, the kernel's default."""

LONGEST = 120.0
"""Longest time in seconds at the low weight: loading must finish even where others leave no CPU."""

LOOK = 0.25
"""Seconds between two checks of a model server that loads."""


async def last_until_ready(executable: Executable, group: Group) -> None:
    """Give a group the low weight, and its usual one once its models are available."""
    try:
        group.set_weight(LAST)
        try:
            root, connector = reached(executable.url)
            limit = aiohttp.ClientTimeout(total=10)
            async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
                async with asyncio.timeout(LONGEST):
                    await _available(executable, group, session, root)
        except TimeoutError:
            log.warning(
                "executable %s has loaded for %g s: last no longer", executable.name, LONGEST
            )
        finally:
            group.set_weight(1.0)
    except ActuationError as error:  # for example, the group was removed meanwhile
        log.debug("executable %s: no weight: %s", executable.name, error)


async def _available(
    executable: Executable, group: Group, session: aiohttp.ClientSession, root: str
) -> None:
    """Wait until all models are available, or the group is gone."""
    for model in executable.spec.models:
        url = f"{root}/v1/models/{model}"
        while group.directories[0].exists() and not await _is_available(session, url):
            await asyncio.sleep(LOOK)


async def _is_available(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(url) as response:
            return response.status == 200 and b'"AVAILABLE"' in await response.read()
    return False
