"""Updates the dashboard: reads the core and queries every supervisor once a second.

Nothing here decides anything, and nothing waits for it: a supervisor that does not answer within
half a second is shown as silent.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout
from yarl import URL

from dispatcher import reports
from dispatcher.live.admin import answers
from dispatcher.live.driver import Driver
from dispatcher.live.unavailable import Reasons
from roma.config.backends import registry as backends
from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.watched_file import Watched, looking
from roma.domain.model import Device
from roma.security import peers
from roma.security.tokens import Token, sent
from roma.telemetry import decision_log, wallclock
from roma.telemetry.decision_log import DecisionLog
from roma.telemetry.reachability import reason
from roma.telemetry.tasks import background
from roma.ui.dashboard.control import judged
from roma.ui.dashboard.feed import Dashboard
from roma.ui.dashboard.moments import Moment, record, refusal
from roma.ui.dashboard.rows import DashboardView, Worker

PERIOD = 1.0
"""Seconds between two updates."""

ASK_LIMIT = 0.5
"""Seconds that a supervisor may take to return its state."""

TELL_LIMIT = 3.0
"""Seconds that it may take to return its decisions: a quarter of an hour of them is a lot."""

log = logging.getLogger(__name__)


class DashboardFeed:
    """The dashboard of one dispatcher, and its followers."""

    def __init__(
        self,
        driver: Driver,
        config: Config,
        epoch: str,
        session: ClientSession,
        token: Watched[Token] | None,
        *,
        reasons: Reasons,
    ) -> None:
        self.dashboard = Dashboard(config.name, config.gateway.links)
        self._driver = driver
        self._epoch = epoch
        self._session = session
        self._token = token
        self._reasons = reasons
        self._heard: dict[str, float] = {}
        self.set_workers(config)
        self._fresh = asyncio.Event()
        directory = config.control.decision_log
        self._decision_log = None if directory is None else DecisionLog(directory)
        self._told = driver.clock()
        self._json: bytes | None = None

    def set_workers(self, config: Config) -> None:
        """Show the workers of `config` from the next update on."""
        self._supervisors = config.supervisor_urls
        is_dry = config.control.dry_run
        controlled = [] if is_dry else [e for e in executables(config) if e.controlled]
        self._expected = Counter(e.spec.worker for e in controlled)
        discovered = (w.name for w in config.workers if backends.of(w).discovers and not is_dry)
        self._discovered = set(discovered)
        now = self._driver.clock()
        self._heard = {name: self._heard.get(name, now) for name in self._supervisors}

    @property
    def view(self) -> DashboardView:
        """The state at the last update."""
        return self.dashboard.view

    @property
    def uncontrolled(self) -> Sequence[str]:
        """Workers that have no controlled executable although they should."""
        return [worker.worker for worker in self.view.workers if worker.uncontrolled]

    @property
    def models(self) -> list[str]:
        """The models that are served."""
        return list(self._driver.core.queues)

    async def run(self) -> None:
        """Update once a second until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            try:
                await self.look()
            except Exception:  # a page must never take the requests down with it
                log.exception("the dashboard could not be brought up to date")
            due = max(due + PERIOD, clock())
            await asyncio.sleep(due - clock())

    async def look(self) -> None:
        """Update once, and wake all followers."""
        states = await asyncio.gather(
            *(self._ask(worker, url) for worker, url in self._supervisors.items())
        )
        core, now = self._driver.core, self._driver.clock()
        moments = self.dashboard.take(
            reports.reply(core, self._epoch, now),
            {name: queue.spec for name, queue in core.queues.items()},
            [executor.spec for executor in core.executors],
            {worker.worker: (worker, executables) for worker, executables in states},
            now=now,
            at=wallclock.wall_clock(now)(now),
            reasons={e.spec.name: self._reasons.for_operators(e.spec.name) for e in core.executors},
            missing={
                e.spec.name: {m: self._reasons.for_operators(e.spec.name, m) for m in e.missing}
                for e in core.executors
                if e.live and e.missing
            },
        )
        self._json = None
        if self._decision_log is not None:
            self._decision_log.offer(decision_log.MODELS, self._records(moments, now))
        woken, self._fresh = self._fresh, asyncio.Event()
        woken.set()

    async def close(self) -> None:
        """Record what happened since the last update."""
        if self._decision_log is not None:
            await self.look()
            await self._decision_log.close()

    async def follow(self) -> AsyncIterator[bytes]:
        """Yield the present view as JSON, and then every new one."""
        while True:
            fresh = self._fresh
            yield self.json
            await fresh.wait()

    @property
    def json(self) -> bytes:
        """The view as JSON, encoded once per update for all followers."""
        if self._json is None:
            self._json = orjson.dumps(self.view)
        return self._json

    def refusals(self, model: str, since: float) -> list[dict[str, Any]]:
        """Return the refusals of a model after `since` on the dispatcher's clock, oldest first."""
        at = wallclock.wall_clock(self._driver.clock())
        queue = self._driver.core.queues.get(model)
        found = [] if queue is None else [r for r in queue.refusals if r[0] > since]
        return [refusal(at(time), reject) for time, reject in found]

    async def decisions(self, model: str | None, seconds: float) -> dict[str, Any]:
        """Return the last seconds' decisions for a model, or for all, and who did not answer."""
        now = self._driver.clock()
        query = {"seconds": f"{seconds:g}"} | ({} if model is None else {"model": model})
        asked = self._asked(model)
        found = await asyncio.gather(
            *(
                self._get(url, "decisions", {**query, "worker": worker}, TELL_LIMIT)
                for worker, url in asked.items()
            )
        )
        told = dict(zip(asked, found, strict=True))
        decisions = [d for a in found if isinstance(a, dict) for d in a["decisions"]]
        decisions.sort(key=lambda d: (d["at"], d["executable"]))
        models = self._driver.core.queues if model is None else (model,)
        return {
            "at": wallclock.wall_clock(now)(now),
            "decisions": decisions,
            "refusals": {name: self.refusals(name, now - seconds) for name in models},
            "silent": {name: a for name, a in told.items() if isinstance(a, str)},
        }

    def _asked(self, model: str | None) -> dict[str, str]:
        """Return the supervisors that may have decided something for a model."""
        executors = self._driver.core.executors
        hosts = {e.spec.worker for e in executors if model in (None, *e.spec.models)}
        return {worker: url for worker, url in self._supervisors.items() if worker in hosts}

    async def _ask(self, worker: str, url: str) -> tuple[Worker, Mapping[str, Any]]:
        answer = await self._get(url, "state", {"worker": worker}, ASK_LIMIT)
        now = self._driver.clock()
        if isinstance(answer, str):
            silent = Worker(worker, url, False, now - self._heard.get(worker, now), answer)
            return judged(silent, {}, self._controllable(worker)), {}
        if worker in self._heard:  # it may have gone meanwhile
            self._heard[worker] = now
        known = {key: answer[key] for key in answers.WORKER if key in answer}
        states = answer.get("executables", {})
        return judged(
            Worker(worker, url, True, **known), states, self._controllable(worker)
        ), states

    def _controllable(self, worker: str) -> int:
        """Return how many executables of a worker should be controlled."""
        if worker not in self._discovered:
            return self._expected[worker]
        found = (e.spec for e in self._driver.core.executors)
        return sum(spec.worker == worker and spec.device is Device.CPU for spec in found)

    async def _get(
        self, url: str, what: str, query: Mapping[str, str], limit: float
    ) -> dict[str, Any] | str:
        """Return a supervisor's answer, or why there is none."""
        try:
            status, body = await self._call(f"{url}/control/v1/{what}", query, limit)
            if status != 200:
                return f"status {status}"
            answer = orjson.loads(body)
        except TimeoutError:  # an OSError too
            return f"no answer within {limit:g} s"
        except (ClientError, OSError, ValueError) as error:
            return reason(error)
        if not isinstance(answer, dict):
            return "its answer is no object"
        return answers.fault(what, answer) or answer

    async def _call(self, url: str, query: Mapping[str, str], limit: float) -> tuple[int, bytes]:
        """Ask a supervisor; one that stands by names the one to ask instead."""
        for _ in range(2):
            async with self._session.get(
                url,
                params=query,
                headers=sent(self._token),
                timeout=ClientTimeout(total=limit),
                allow_redirects=False,  # aiohttp would leave the token out
            ) as response:
                leader = response.headers.get("Location", "") if response.status == 307 else ""
                if not leader.startswith(("http://", "https://")):
                    return response.status, await response.read()
            url = f"{URL(leader).origin()}{URL(url).path}"
        return 508, b""  # two supervisors that name each other: neither leads any more

    def _records(self, moments: Sequence[Moment], now: float) -> list[dict[str, Any]]:
        at, since = wallclock.wall_clock(now)(now), self._told
        self._told = now
        queues = self._driver.core.queues
        return [record(m, queues[m.model].spec, at, self.refusals(m.model, since)) for m in moments]


@contextlib.asynccontextmanager
async def feeding(
    driver: Driver, config: Config, epoch: str, reasons: Reasons
) -> AsyncIterator[DashboardFeed]:
    """Keep a dashboard up to date until the block ends."""
    context, token = peers.to_supervisors(config), peers.exchange_token(config)
    async with peers.session(context) as session:
        feed = DashboardFeed(driver, config, epoch, session, token, reasons=reasons)
        try:
            async with background(feed.run()), looking(context, token):
                yield feed
        finally:
            await feed.close()
