"""A deployment that does what a test says, behind the real page: real board, real words, no load."""

import asyncio
import contextlib
import itertools
import math
import random
import time
from dataclasses import dataclass, field, replace

import orjson
from aiohttp import web

from controllers.measurement import Demand, Measurement
from dispatcher.live.admin.page import Page
from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla, Statistic
from roma.ui.dashboard.feed import Dashboard
from roma.ui.dashboard.rows import Worker
from supervisor.decision_log import Decision, plain
from supervisor.decision_text import explain
from tests.support.supervisor import report
from tests.support.waiting import beside

WORKER = Worker("local", "http://local", True, mode="control", capacity=8.0)


@dataclass
class Actor:
    """A model and what happens to it each second."""

    name: str
    rate: int = 20
    time: float | None = 0.1
    late: int = 0
    refused: int = 0
    waiting: int = 0
    running: int = 0
    oldest: float = 0.0
    on_gpu: int = 0
    executor: str = "idle"
    reason: str = ""
    device: Device = Device.CPU
    aim: float = 0.5
    worker: str = "local"
    cores: dict = field(default_factory=dict)

    @property
    def executable(self):
        return f"{self.name}@{self.worker}"

    @property
    def state(self):
        """What a supervisor says of its executable."""
        applied = 0.02 * self.rate
        return {
            "demand": applied,
            "allocation": applied,
            "applied": applied,
            "observed": applied,
            "used": 0.7 * applied,
            "throttled": 0.05,
            "minimum": 0.1,
            "maximum": 4.0,
            "limit": "none",
            "why": f"{self.rate} req/s at 14.0 core-ms",
            **self.cores,
        }


class FakeBoard:
    """What `Page` needs of a `Watch`, over actors; `look()` lets a second pass."""

    def __init__(self, *actors, workers=(WORKER,), name="scene", links=None):
        self.dashboard = Dashboard(name, links)
        self.actors = {a.name: a for a in actors}
        self.workers = {w.worker: w for w in workers}
        self.silent = {}
        self.refusals = {}
        self.decided = []
        self.at = time.time()
        self.looks = 0
        self._counts = {a: {} for a in self.actors}
        self._waiters = []

    @property
    def view(self):
        return self.dashboard.view

    @property
    def json(self):
        return orjson.dumps(self.view)

    @property
    def models(self):
        return list(self.actors)

    def look(self, seconds=1):
        for _ in range(seconds):
            self._look()
        for waiter in self._waiters:
            waiter.set()

    def past(self, seconds):
        """Let time pass that ends now."""
        self.at -= seconds
        self.look(seconds)

    def _look(self):
        self.looks += 1
        self.at += 1
        actors = self.actors.values()
        executors = tuple(ExecutorReport(a.executable, a.executor, 1, 0) for a in actors)
        reply = ExchangeReply("epoch", tuple(self._report(a) for a in actors), executors)
        states = {name: {} for name in self.workers}
        for a in actors:
            states[a.worker][a.executable] = a.state
        self.dashboard.take(
            reply,
            {a.name: _spec(a) for a in actors},
            [ExecutorSpec(a.executable, a.device, (a.name,), worker=a.worker) for a in actors],
            {
                name: (self._worker(w, states[name]), states[name])
                for name, w in self.workers.items()
            },
            now=float(self.looks),
            at=self.at,
            reasons={a.executable: a.reason for a in actors},
        )

    def _report(self, a):
        counts = self._counts[a.name]
        grown = {
            "arrivals": a.rate,
            "completed_cpu": max(0, a.rate - a.refused - a.on_gpu),
            "completed_gpu": a.on_gpu,
            "late": min(a.late, a.rate - a.refused),
            "refused": a.refused,
        }
        for key, n in grown.items():
            counts[key] = counts.get(key, 0) + n
        numbers = {key: n for key, n in counts.items() if key != "refused"}
        rejected = {"predicted_late": counts["refused"]} if counts["refused"] else {}
        return report(
            a.name,
            **numbers,
            rejected=rejected,
            waiting=a.waiting,
            in_flight=a.running,
            oldest_age=a.oldest,
            response_time=a.time,
            mean_time=a.time,
        )

    def _worker(self, worker, states):
        if not worker.answers:
            return worker
        total = sum(s["demand"] or 0 for s in states.values())
        capacity = worker.capacity
        return replace(
            worker,
            demanded=total,
            applied=sum(s["applied"] or 0 for s in states.values()),
            used=sum(s["used"] or 0 for s in states.values()),
            eta=capacity / total if total else None,
        )

    async def follow(self):
        waiter = asyncio.Event()
        self._waiters.append(waiter)
        try:
            while True:
                waiter.clear()
                yield self.json
                await waiter.wait()
        finally:
            self._waiters.remove(waiter)

    async def decisions(self, model, seconds):
        since = self.at - seconds
        return {
            "at": self.at,
            "decisions": [d for d in self.decided if d["model"] == model and d["at"] > since],
            "refusals": {model: [r for r in self.refusals.get(model, ()) if r["at"] > since]},
            "silent": self.silent,
        }

    def decide(self, model, applied, *, before=0.4, ago=0.0, failure=None, total=2.0):
        """Let the supervisor decide something about a model; return its words."""
        a = self.actors[model]
        measurement = Measurement(
            response_time=0.3, oldest_age=0.1, arrivals=a.rate, completed_gpu=0.0,
            completed_here=a.rate, completed_cpu=a.rate, failed=0.0, shed=0.0, waiting=2,
            in_flight=1, usage=0.3, applied=before, sla=0.5, set_point=0.25, deadline=1.0,
        )  # fmt: skip
        terms = {"load": applied + 0.05, "integral": -0.05}
        demand = Demand(applied, f"{a.rate} req/s at 14.0 core-ms", terms, {"cost": 0.014})
        decision = Decision(
            time=self.at - ago, executable=a.executable, model=model, dt=1.0, fresh=False,
            measurement=measurement, used=0.3, demand=demand, minimum=0.1, maximum=4.0, floor=0.05,
            wanted=applied, total=total, capacity=8.0, exact=applied, allocation=applied,
            applied=before if failure else applied, failure=failure,
        )  # fmt: skip
        words = explain(decision)
        self.decided.append(plain(decision, at=self.at - ago, worker=a.worker, words=words))
        return words

    def refuse(self, model, count, detail="predicted response time 1.200 s > deadline 1.000 s"):
        numbers = itertools.count(len(self.refusals.get(model, ())) + 1)
        self.refusals.setdefault(model, []).extend(
            {
                "at": self.at,
                "request": next(numbers),
                "reason": "predicted_late",
                "detail": detail,
                "retry_after": 0.2,
            }
            for _ in range(count)
        )


class FakePage:
    """The scene on a port; it can be taken away and brought back there."""

    def __init__(self, port):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._runner = None
        self.refusing = False

    async def play(self, fake_board):
        @web.middleware
        async def refuse(request, handler):
            if self.refusing and request.path == "/control/v1/stream":
                return web.json_response({"error": "64 pages are open"}, status=503)
            return await handler(request)

        app = web.Application(middlewares=[refuse])
        Page(fake_board).add_to(app)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def end(self):
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


@contextlib.asynccontextmanager
async def running(fake_board, every=0.2):
    """Let seconds pass, faster than they do."""

    async def tick():
        while True:
            await asyncio.sleep(every)
            fake_board.look()

    async with beside(tick()):
        yield


def fleet(count, seed=1, seconds=200):
    """Return a scene of many models of all kinds, with a past of some minutes."""
    rng = random.Random(seed)
    actors = [Actor(f"model-{i:02}", rate=rng.randint(1, 60)) for i in range(count)]
    fake_board = FakeBoard(*actors, name="fleet")
    phases = [rng.uniform(0, 6) for _ in actors]
    fake_board.at -= seconds
    for second in range(seconds):
        for actor, phase in zip(actors, phases, strict=True):
            wave = 1 + math.sin(phase + second / 40)
            actor.time = 0.02 + 0.15 * wave * rng.uniform(0.8, 1.2)
            actor.rate = int(30 * wave) + rng.randint(0, 4)
        fake_board.look()
    return fake_board


def _spec(actor):
    return ModelSpec(actor.name, Sla(0.5, Statistic.P95, actor.aim), deadline=1.0)
