"""What the supervisor tells about itself: GET /control/v1/state, /metrics and /healthz."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from roma import exposition
from roma.stats import quantile
from supervisor.core import Status
from supervisor.live import metrics
from supervisor.live.gpus import GpuReading, Gpus
from supervisor.live.loop import ControlLoop

GPU_LIMIT = 1.0
"""Seconds that a scrape waits for the GPUs."""


def application(loop: ControlLoop, gpus: Gpus, *, worker: str, mode: str) -> web.Application:
    """Return the API; `mode` is `control`, `dry-run` or `observe-only: <reason>`."""

    async def state(_: web.Request) -> web.Response:
        return web.Response(
            body=orjson.dumps(snapshot(loop, worker, mode)), content_type="application/json"
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    asking: asyncio.Task[Sequence[GpuReading]] | None = None

    async def scrape(request: web.Request) -> web.Response:
        # A GPU that sleeps answers after seconds: ticks must not wait for it, and one that never
        # answers is asked once, not once per scrape.
        nonlocal asking
        if asking is None or asking.done():
            asking = asyncio.create_task(asyncio.to_thread(gpus.read))
        await asyncio.wait([asking], timeout=GPU_LIMIT)
        readings = asking.result() if asking.done() else ()
        return exposition.response(request, metrics.collect(loop, worker, readings))

    app = web.Application()
    app.router.add_get("/control/v1/state", state)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", scrape)
    return app


def snapshot(loop: ControlLoop, worker: str, mode: str) -> dict[str, Any]:
    """Return the supervisor's state as plain data; cores, seconds and shares."""
    core = loop.core
    return {
        "worker": worker,
        "mode": mode,
        "capacity": core.capacity,
        "eta": core.eta,
        "ticks": loop.ticks,
        "missed_ticks": loop.missed,
        "jitter_p99": quantile(loop.jitters, 0.99),
        "executables": {name: _status(status) for name, status in core.status.items()},
    }


def _status(status: Status) -> dict[str, Any]:
    last = status.story[-1] if status.story else None
    return {
        "model": status.managed.model.name,
        "demand": status.demand,
        "allocation": status.allocation,
        "applied": status.applied,
        "observed": status.observed,
        "used": status.used,
        "usage": status.usage,
        "throttled": status.throttled,
        "changes": status.changes,
        "failures": status.failures,
        "why": last.demand.why if last else "",
        "terms": last.demand.terms if last else {},
        "measurement": asdict(last.measurement) if last and last.measurement else None,
    }
