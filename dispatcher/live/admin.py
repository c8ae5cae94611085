"""The admin port. Its first use is the supervisors': one exchange per period, in two halves.

    GET  /control/v1/report    what happened since the dispatcher started (ExchangeReply)
    POST /control/v1/applied   what was applied (ExchangeRequest), right after it was

Two halves, because in-flight limits must follow an allocation at once, not a period later. Beside
them GET /metrics, for Prometheus, /healthz, and the live page (dispatcher/live/page.py).
"""

from aiohttp import hdrs, web

from dispatcher import reports
from dispatcher.live import metrics
from dispatcher.live.driver import Driver
from dispatcher.live.page import Page
from dispatcher.live.watch import Watch
from roma import exchange, exposition
from roma.errors import ExchangeError


def application(driver: Driver, watch: Watch, epoch: str) -> web.Application:
    """Return the admin application of one dispatcher; `epoch` names its start."""

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
            driver.on_applied(reading.executor, reading.applied)
        return web.Response(status=204)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def scrape(request: web.Request) -> web.Response:
        return await exposition.response(request, metrics.collect(driver.core, driver.clock()))

    app = web.Application()
    app.router.add_get("/control/v1/report", report)
    app.router.add_post("/control/v1/applied", applied)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", scrape)
    Page(watch).add_to(app)
    return app
