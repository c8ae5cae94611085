"""The admin port. Its first use is the supervisors': one exchange per period, in two halves.

    GET  /control/v1/report    what happened since the dispatcher started (ExchangeReply)
    POST /control/v1/applied   what was applied (ExchangeRequest), right after it was

Two halves, because in-flight limits must follow an allocation at once, not a period later. Beside
them GET /metrics, for Prometheus, /healthz, and the live page (dispatcher/live/page.py).

Page, exchange and metrics have a token each, and can have a listener each.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from aiohttp import hdrs, web
from prometheus_client.core import Metric

from dispatcher import reports
from dispatcher.live.driver import Driver
from dispatcher.live.page import Page
from dispatcher.live.watch import Watch
from roma import exchange, exposition, peers
from roma.config import Config
from roma.doors import HEALTH, Door, guard, listen
from roma.errors import ExchangeError
from roma.tls import server_context
from roma.tokens import watched
from roma.watched import keep_looking

SHUTDOWN_TIMEOUT = 0.5
"""Seconds for connections to close."""

REPORT, APPLIED, METRICS = "/control/v1/report", "/control/v1/applied", "/metrics"

Part = Callable[[web.Application], None]
"""Adds its routes to an application."""

Collect = Callable[[], Iterable[Metric]]
"""Tells what a scrape is answered with."""


@contextlib.asynccontextmanager
async def listening(
    driver: Driver, watch: Watch, epoch: str, config: Config, collect: Collect
) -> AsyncIterator[None]:
    """Serve the admin port, and those of its parts that have one of their own, until the end."""
    g = config.gateway
    admin = watched(config.tokens.admin)
    shared, scraping = peers.exchange_token(config), watched(config.tokens.metrics)
    parts: Mapping[str, Part] = {
        "admin": Page(watch).add_to,
        "exchange": lambda app: _add_exchange(app, driver, epoch),
        "metrics": lambda app: _add_metrics(app, collect),
    }
    doors = {
        REPORT: Door(shared),
        APPLIED: Door(shared),
        METRICS: Door(scraping),
    }
    default = Door(admin, browser=True)
    addresses = {
        "admin": (g.admin_host, g.admin_port),
        "exchange": g.exchange_address,
        "metrics": g.metrics_address,
    }
    context = None if g.admin_tls is None else server_context(g.admin_tls)
    async with contextlib.AsyncExitStack() as stack:
        for address in dict.fromkeys(addresses.values()):
            here = [part for part, where in addresses.items() if where == address]
            app = web.Application(middlewares=[guard(peers.names(config), doors, default)])
            app.router.add_get(HEALTH, _healthz)
            for part in here:
                parts[part](app)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await listen(runner, *address, f"gateway.{here[0]}_port", context)
        files = [file for file in (admin, shared, scraping, context) if file is not None]
        looking = asyncio.create_task(keep_looking(files))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _add_exchange(app: web.Application, driver: Driver, epoch: str) -> None:
    """`epoch` names the dispatcher's start."""

    async def report(_: web.Request) -> web.Response:
        reply = reports.reply(driver.core, epoch, driver.clock())
        return web.Response(body=exchange.REPLY.dump_json(reply), content_type="application/json")

    async def applied(request: web.Request) -> web.Response:
        if hdrs.ORIGIN in request.headers:
            # The page has made this port one for browsers: another site's page must not write here.
            return web.json_response({"error": "not for browsers"}, status=403)
        try:
            message = exchange.parse_request(await request.read())
        except ExchangeError as error:
            return web.json_response({"error": str(error)}, status=400)
        for reading in message.executors:
            driver.on_applied(reading.executor, reading.applied * reading.share)
        return web.Response(status=204)

    app.router.add_get(REPORT, report)
    app.router.add_post(APPLIED, applied)


def _add_metrics(app: web.Application, collect: Collect) -> None:
    async def scrape(request: web.Request) -> web.Response:
        return await exposition.response(request, collect())

    app.router.add_get(METRICS, scrape)
