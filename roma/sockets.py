"""How aiohttp reaches an address of roma.yaml: over TCP, or by a Unix socket of this machine."""

import aiohttp

from roma.workers import UNIX


def reached(url: str, *, limit: int = 100) -> tuple[str, aiohttp.BaseConnector]:
    """Return the root of an address's URLs, and the connector to them.

    `limit` bounds its connections, 0 does not. To be called in a running loop.
    """
    if url.startswith(UNIX):
        return "http://localhost", aiohttp.UnixConnector(url.removeprefix(UNIX), limit=limit)
    return url, aiohttp.TCPConnector(limit=limit)
