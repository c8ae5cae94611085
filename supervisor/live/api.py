"""The supervisor's API for state, decisions and metrics, on a listener of its own.

GET /control/v1/state?worker=…               the worker and its executables now
GET /control/v1/decisions?worker=…&model=…&seconds=…  its last decisions, as text too
GET /metrics, GET /healthz

`worker` may be absent where this program has one. Where another supervisor leads, it is the one to
ask: the answer is a redirect.

Dispatchers present the exchange token, metrics scrapers the metrics token (`tokens` in roma.yaml).
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from roma.domain.errors import DecisionLogError
from roma.domain.stats import quantile
from roma.telemetry import prometheus, wallclock
from supervisor.decision_log import Decision, plain
from supervisor.decision_text import Limit, contended_by, explain, limit
from supervisor.executables import ExecutableStatus
from supervisor.live import metrics
from supervisor.live.actuation import Mode
from supervisor.live.gpus import GpuReading, Gpus
from supervisor.live.loop import ControlLoop

MOST = 3000
"""Most decisions in one answer, the newest: about 3 MB."""

GPU_LIMIT = 1.0
"""Seconds that a scrape waits for the GPUs."""


@dataclass(slots=True)
class Controlled:
    """A worker's control loop, and its mode as of now."""

    loop: ControlLoop
    mode: Mode


def application(
    workers: Callable[[], Sequence[Controlled]],
    gpus: Gpus,
    *,
    middlewares: Sequence[Middleware] = (),
    leader: Callable[[], str] = str,
) -> web.Application:
    """Return the API of the workers of now; `leader` returns the URL of another supervisor.

    That one leads; it is "" while this one does.
    """

    def asked(request: web.Request) -> Controlled:
        if url := leader():
            raise web.HTTPTemporaryRedirect(f"{url}{request.rel_url}")
        return _chosen(workers(), request.query.get("worker"))

    async def state(request: web.Request) -> web.Response:
        found = asked(request)
        return _json(snapshot(found.loop, found.mode()))

    async def told(request: web.Request) -> web.Response:
        loop = asked(request).loop
        try:
            seconds = wallclock.seconds_of(request.query)
        except DecisionLogError as error:
            return web.json_response({"error": str(error)}, status=400)
        now = asyncio.get_running_loop().time()
        found = decisions(loop, request.query.get("model"), now - seconds)
        # Formatting takes longer than a tick may wait.
        return await asyncio.to_thread(_told, found, loop.worker, now)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    pending_readings: asyncio.Task[Sequence[GpuReading]] | None = None

    async def scrape(request: web.Request) -> web.Response:
        # A GPU that sleeps answers after seconds: ticks must not wait for it, and one that never
        # answers is asked once, not once per scrape.
        nonlocal pending_readings
        if pending_readings is None or pending_readings.done():
            pending_readings = asyncio.create_task(asyncio.to_thread(gpus.read))
        await asyncio.wait([pending_readings], timeout=GPU_LIMIT)
        readings = pending_readings.result() if pending_readings.done() else ()
        # One that stands by does not tick: it would look like a control loop that has stalled.
        loops = [] if leader() else [found.loop for found in workers()]
        return await prometheus.response(request, metrics.collect(loops, readings))

    app = web.Application(middlewares=middlewares)
    app.router.add_get("/control/v1/state", state)
    app.router.add_get("/control/v1/decisions", told)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", scrape)
    return app


def _chosen(workers: Sequence[Controlled], name: str | None) -> Controlled:
    """Return the worker of that name, or the only one; raise 404."""
    if name is None and len(workers) == 1:
        return workers[0]
    known = {found.loop.worker: found for found in workers}
    if name in known:
        return known[name]
    error = f"worker = {(name or '')[:64]}: must be one of {', '.join(known)}"
    text = orjson.dumps({"error": error}).decode()
    raise web.HTTPNotFound(text=text, content_type="application/json")


def snapshot(loop: ControlLoop, mode: str) -> dict[str, Any]:
    """Return the supervisor's state as plain data; cores, seconds and shares."""
    core = loop.core
    statuses = core.status.values()
    return {
        "worker": loop.worker,
        "mode": mode,
        "capacity": core.capacity,
        "demanded": sum(s.demand or 0.0 for s in statuses),
        "applied": sum(s.applied or 0.0 for s in statuses),
        "used": sum(s.used for s in statuses),
        "eta": core.eta,
        "ticks": loop.ticks,
        "missed_ticks": loop.missed,
        "jitter_p99": quantile(loop.jitters, 0.99),
        "contended": any(
            s.decisions and limit(s.decisions[-1]) is Limit.CONTENDED for s in statuses
        ),
        "executables": {name: _status(status) for name, status in core.status.items()},
    }


def _status(status: ExecutableStatus) -> dict[str, Any]:
    last = status.decisions[-1] if status.decisions else None
    return {
        "model": status.managed.model.name,
        "minimum": status.managed.minimum,
        "maximum": status.managed.maximum,
        "demand": status.demand,
        "allocation": status.allocation,
        "applied": status.applied,
        "observed": status.observed,
        "used": status.used,
        "usage": status.usage,
        "throttled": status.throttled,
        "changes": status.changes,
        "failures": status.failures,
        "failure": last.failure if last else None,
        "limit": limit(last) if last else Limit.NONE,
        "contention": contended_by(last) if last else "",
        "why": last.demand.why if last else "",
        "terms": last.demand.terms if last else {},
        "facts": last.demand.facts if last else {},
        "measurement": asdict(last.measurement) if last and last.measurement else None,
    }


def decisions(loop: ControlLoop, model: str | None, since: float) -> list[Decision]:
    """Return the decisions after `since`, of one model or of all: the last `MOST`, oldest first."""
    found = [
        replace(d)  # the last one still changes
        for status in loop.core.status.values()
        if model is None or status.managed.model.name == model
        for d in itertools.takewhile(lambda d: d.time > since, reversed(status.decisions))
    ]
    return sorted(found, key=lambda d: d.time)[-MOST:]


def _told(found: Sequence[Decision], worker: str, now: float) -> web.Response:
    at = wallclock.wall_clock(now)
    told = [plain(d, at=at(d.time), worker=worker, words=explain(d)) for d in found]
    return _json({"worker": worker, "at": at(now), "decisions": told})


def _json(content: object) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")
