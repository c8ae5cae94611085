"""Handlers of aiohttp on a port or a socket."""

import contextlib

from aiohttp import web


@contextlib.asynccontextmanager
async def served(*routes, port=0, path=None, tls=None):
    """Serve routes until the block ends; yield the port."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        if path is None:
            site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        else:
            site = web.UnixSite(runner, str(path))
        await site.start()
        yield port or runner.addresses[0][1]
    finally:
        await runner.cleanup()
