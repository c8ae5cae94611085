"""The live page and the data that it reads, on the admin port.

GET /                              the page; its script and style below /page/
GET /control/v1/dashboard          the dashboard now, for `roma top` and `roma status`
GET /control/v1/stream             the same as server-sent events: the history once, then updates
GET /control/v1/history?model=…    a model's last 15 minutes, one sample per second
GET /control/v1/decisions?model=…&seconds=…    decisions and refusals of the last seconds, as text
"""

import asyncio
from copy import copy
from importlib import resources

import orjson
from aiohttp import hdrs, web

from dispatcher.live.admin.dashboard_feed import DashboardFeed
from roma.domain.errors import DecisionLogError
from roma.telemetry import wallclock
from roma.ui.dashboard.history import History

STREAMS = 64
"""Pages that may be open at once."""

EVERY = 5
"""Seconds per sample of the history that a page gets of all models."""

SAMPLES = 50_000
"""Most samples of all models in that history: with many models each gets coarser ones."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """The page's handlers."""

    def __init__(self, feed: DashboardFeed) -> None:
        self._feed = feed
        self._files = _files()
        self._streams = 0

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the admin application."""
        app.router.add_get("/", self._index)
        app.router.add_get("/page/{name}", self._asset)
        app.router.add_get("/control/v1/dashboard", self._view)
        app.router.add_get("/control/v1/history", self._history)
        app.router.add_get("/control/v1/decisions", self._decisions)
        app.router.add_get("/control/v1/stream", self._stream)

    async def _index(self, _: web.Request) -> web.Response:
        return self._file("index.html")

    async def _asset(self, request: web.Request) -> web.Response:
        return self._file(request.match_info["name"])

    def _file(self, name: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound(text=f"Not found: {name}")
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        headers = {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8"}
        return web.Response(body=self._files[name], headers=headers)

    async def _view(self, _: web.Request) -> web.Response:
        return _answer(self._feed.json)

    async def _history(self, request: web.Request) -> web.Response:
        model = request.query.get("model", "")
        series = self._feed.dashboard.history.series(model)
        return self._unknown(model) if series is None else _json(series)

    async def _decisions(self, request: web.Request) -> web.Response:
        model = request.query.get("model")
        if model is not None and model not in self._feed.models:
            return self._unknown(model)
        try:
            seconds = wallclock.seconds_of(request.query)
        except DecisionLogError as error:
            return web.json_response({"error": str(error)}, status=400)
        return _json(await self._feed.decisions(model, seconds))

    def _unknown(self, model: str) -> web.Response:
        known = ", ".join(self._feed.models)
        return web.json_response({"error": f"model = {model}: must be one of {known}"}, status=404)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= STREAMS:
            error = f"{self._streams} pages are open: limit reached"
            return web.json_response({"error": error}, status=503)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # otherwise nginx would buffer events
            }
        )
        if request.method == hdrs.METH_HEAD:
            return response  # aiohttp would write the events of a HEAD, too
        self._streams += 1
        try:
            await response.prepare(request)
            history = copy(self._feed.dashboard.history)
            # For a fleet it takes a tenth of a second: no request waits for it.
            past = await asyncio.to_thread(lambda: _dumped(overview(history)))
            await response.write(_event("history", past))
            async for seen in self._feed.follow():
                await response.write(_event("view", seen))
        except ConnectionError:
            pass  # the page was closed
        finally:
            self._streams -= 1
        return response


def overview(history: History) -> dict[str, object]:
    """Return the series of all models, coarse enough to be sent at once."""
    models = list(history.models)
    every = EVERY
    while history.samples // every * len(models) > SAMPLES:
        every *= 2
    return {"every": every, "models": {model: history.series(model, every) for model in models}}


def _files() -> dict[str, bytes]:
    folder = resources.files("roma.ui.dashboard") / "page"
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


def _event(kind: str, json: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json)


def _json(content: object) -> web.Response:
    return _answer(_dumped(content))


def _answer(json: bytes) -> web.Response:
    return web.Response(
        body=json,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _dumped(content: object) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
