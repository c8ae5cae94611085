"""The admin port: exchange with supervisors (one per period, in two halves), metrics, live page.

    GET  /control/v1/report?worker=…  what happened since the dispatcher started (ExchangeReply)
    POST /control/v1/applied   what was applied (ExchangeRequest), right after it was
    GET  /control/v1/needs?worker=…   200 once a queue has outgrown its cores there, or 204

There are two halves because in-flight limits must follow an allocation at once, not a period later.
The port also serves GET /metrics, for Prometheus, /healthz, the live page
(dispatcher/live/admin/page.py), and

    POST /control/v1/reload    load roma.yaml again: 200, or 409 and the reason

The page, the exchange and the metrics have a token each, and can have a listener each.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from aiohttp import hdrs, web
from prometheus_client.core import Metric

from dispatcher import reports
from dispatcher.live.admin.dashboard_feed import DashboardFeed
from dispatcher.live.admin.page import Page
from dispatcher.live.admin.supervisors import (
    Supervisors,
    UnknownWorker,
    WaiterReplaced,
    WorkerTaken,
)
from dispatcher.live.driver import Driver
from dispatcher.live.program import Program
from dispatcher.live.reloading import Reloading
from roma.config.schema import Config
from roma.config.watched_file import looking
from roma.domain import exchange
from roma.domain.errors import ConfigError, ExchangeError
from roma.security import peers
from roma.security.admin_guard import HEALTH, TokenGuard, guard
from roma.security.admin_ports import BODY_TIMEOUT, AdminPorts
from roma.security.tls import server_context
from roma.security.tokens import watched
from roma.telemetry import prometheus

SHUTDOWN_TIMEOUT = 0.5
"""Seconds for connections to close."""

REPORT, APPLIED, METRICS = "/control/v1/report", "/control/v1/applied", "/metrics"
NEEDS, RELOAD = "/control/v1/needs", "/control/v1/reload"

Part = Callable[[web.Application], object]
"""Adds the routes of a part to an application."""

Collect = Callable[[], Iterable[Metric]]
"""Returns the metrics for a scrape."""


class Admin:
    """The handlers of the admin port."""

    def __init__(
        self,
        driver: Driver,
        watch: DashboardFeed,
        supervisors: Supervisors,
        epoch: str,
        collect: Collect,
        *,
        program: Program,
        ports: AdminPorts,
    ) -> None:
        """Take the parts of the dispatcher; `epoch` names the dispatcher's start."""
        self._supervisors = supervisors
        driver.on_need = supervisors.need
        self._watch = watch
        self._driver = driver
        self._page = Page(watch)
        self._epoch = epoch
        self._collect = collect
        self.heard: set[str] = set()
        """Workers whose supervisors have reported what was applied."""
        self.reloading: Reloading | None = None
        """Loads a changed roma.yaml; None where reloading is not available."""
        self._program = program
        self.ports = ports
        """The listeners and their connections."""

    def set_workers(self, config: Config) -> None:
        """Take over the workers of `config`, which may have other executables now."""
        self._supervisors.set_workers(config)
        self.heard.intersection_update(worker.name for worker in config.workers)
        self._watch.set_workers(config)

    @contextlib.asynccontextmanager
    async def listening(self, config: Config) -> AsyncIterator[None]:
        """Serve the admin port, and those of its parts that have a port of their own."""
        g = config.gateway
        admin = watched(config.tokens.admin, "tokens.admin")
        shared = peers.exchange_token(config)
        scraping = watched(config.tokens.metrics, "tokens.metrics")
        parts: Mapping[str, Part] = {
            "admin": self._add_admin,
            "exchange": self._add_exchange,
            "metrics": lambda app: app.router.add_get(METRICS, self._scrape),
        }
        guards = {
            REPORT: TokenGuard(shared),
            APPLIED: TokenGuard(shared),
            NEEDS: TokenGuard(shared),
            METRICS: TokenGuard(scraping),
        }
        default = TokenGuard(admin, browser=True)
        addresses = {
            "admin": (g.admin_host, g.admin_port),
            "exchange": g.exchange_address,
            "metrics": g.metrics_address,
        }
        context = None if g.admin_tls is None else server_context(g.admin_tls, "gateway.admin_tls")
        async with contextlib.AsyncExitStack() as stack:
            for address in dict.fromkeys(addresses.values()):
                here = [part for part, where in addresses.items() if where == address]
                app = web.Application(middlewares=[guard(peers.names(config), guards, default)])
                app.router.add_get(HEALTH, self._healthz)
                for part in here:
                    parts[part](app)
                key = f"gateway.{here[0]}_port"
                open_ = self.ports.listening(
                    app, address, key, context, shutdown_timeout=SHUTDOWN_TIMEOUT
                )
                await stack.enter_async_context(open_)
            await stack.enter_async_context(looking(admin, shared, scraping, context))
            stack.callback(self._supervisors.close)
            yield

    async def _healthz(self, _: web.Request) -> web.Response:
        if not self._program.was_opened:
            return web.Response(status=503, text="clients are not let in yet")
        return web.Response(text="ok")

    def _add_admin(self, app: web.Application) -> None:
        self._page.add_to(app)
        app.router.add_post(RELOAD, self._reload)

    def _add_exchange(self, app: web.Application) -> None:
        app.router.add_get(REPORT, self._report)
        app.router.add_post(APPLIED, self._applied)
        app.router.add_get(NEEDS, self._needs)

    async def _report(self, request: web.Request) -> web.Response:
        self._supervisors.heed(request.query.get("worker", ""))
        reply = reports.reply(self._driver.core, self._epoch, self._driver.clock())
        return web.Response(body=exchange.REPLY.dump_json(reply), content_type="application/json")

    async def _needs(self, request: web.Request) -> web.Response:
        if _is_from_browser(request):  # it would take the place of the supervisor that waits
            return _not_for_browsers()
        worker = request.query.get("worker", "")
        try:
            found = await self._supervisors.needed(worker, exchange.QUIET)
        except UnknownWorker as error:
            return web.json_response({"error": str(error)}, status=404)
        except WaiterReplaced as error:
            return web.json_response({"error": str(error)}, status=409)
        if found and (request.transport is None or request.transport.is_closing()):
            self._supervisors.need(worker)  # for the next caller: this one has gone
        return web.Response(status=200 if found else 204)

    async def _applied(self, request: web.Request) -> web.Response:
        if _is_from_browser(request):
            return _not_for_browsers()
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                body = await request.read()
        except TimeoutError:
            text = f"request body took longer than {BODY_TIMEOUT:g} s"
            return web.json_response({"error": text}, status=408)
        return self._take(body)

    def _take(self, body: bytes) -> web.Response:
        """Record what a supervisor applied, or return why its message is refused."""
        try:
            message = exchange.parse(exchange.REQUEST, body)
            self._supervisors.admit(message, self._driver.clock())
        except ExchangeError as error:
            return web.json_response({"error": str(error)}, status=400)
        except UnknownWorker as error:
            return web.json_response({"error": str(error)}, status=404)
        except WorkerTaken as taken:
            refusal = exchange.REFUSAL.dump_json(exchange.ExchangeRefusal(str(taken), taken.holder))
            return web.Response(status=409, body=refusal, content_type="application/json")
        if not message.hello:
            for r in message.executors:
                self._driver.on_applied(r.executor, r.applied, r.share, r.cost)
            self.heard.add(message.worker)
        return web.Response(status=204)

    async def _reload(self, request: web.Request) -> web.Response:
        if _is_from_browser(request):
            return _not_for_browsers()
        if self.reloading is None:
            return web.json_response({"error": "this dispatcher follows no file"}, status=404)
        try:
            config = await self.reloading.take_over()
        except ConfigError as error:
            return web.json_response({"error": str(error)}, status=409)
        return web.json_response({"models": list(config.models)})

    async def _scrape(self, request: web.Request) -> web.Response:
        return await prometheus.response(request, self._collect())


def _is_from_browser(request: web.Request) -> bool:
    """Return True if a page sent a request: its browser says so.

    A GET for an image, say, has no Origin, but since 2023 Sec-Fetch-Site (Fetch Metadata §2.3).
    """
    return hdrs.ORIGIN in request.headers or "Sec-Fetch-Site" in request.headers


def _not_for_browsers() -> web.Response:
    # The page makes this port one for browsers: another site's page must not write here.
    return web.json_response({"error": "not for browsers"}, status=403)
