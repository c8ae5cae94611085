"""Cores of pods: limits set by in-place resize (KEP-1287), confirmed by a watch.

Requests are floors and never move; limits are grants. The kubelet has put a limit into force when
it has observed that generation of the pod, reports no pending resize and shows the new resources.
Nobody but the supervisor core bounds the sum of the limits on a node.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from roma.config.backends.pod import own_name
from roma.domain.errors import ActuationError
from roma.kubernetes.client import ApiServerError
from roma.kubernetes.limit_range import NO_BOUNDS, CpuBounds
from roma.kubernetes.pods import Pod
from roma.kubernetes.quantity import quantity
from roma.kubernetes.watch import PodWatch
from roma.telemetry.tasks import cancel
from supervisor.executables import Reading

LEAST_CHANGE: Final = 10
"""Millicores; a smaller change is not worth a call."""

LEAST_SHARE: Final = 0.01
"""Share of the present limit; a smaller change is not worth a call."""

MOST_PER_SECOND: Final = 10
"""Changes per second on one node: with more, a kubelet's tail latency grows beyond a second."""

CALL_LIMIT: Final = 2.0
"""Seconds that a call may take: longer than a tick waits for it."""

PATIENCE: Final = 2
"""Control periods after which an unconfirmed limit is sent again, 1 m different: a kubelet that was
away acts at once on a change, and otherwise only on its next full pass."""

REFUSED_FOR: Final = 30
"""Control periods for which a refused value is not asked for again."""

NEEDED: Final = "in-place resize takes Kubernetes 1.33 or newer"

MOST_ASKED: Final = 100
"""Limits of a pod that are remembered as asked for: one that is applied late is recent."""

log = logging.getLogger(__name__)


class PodMeters(Protocol):
    """Source of readings (`supervisor/actuators/pod_meters.py`)."""

    def read(self, pods: Mapping[str, Pod]) -> Mapping[str, Reading | None]:
        """Return the readings that have arrived since the last call, by executable."""


@dataclass(slots=True)
class _LimitGrant:
    """A limit that was asked for in the tick at time `at`.

    `generation` is that of the pod with it, 0 if it was refused.
    """

    uid: str
    millis: int
    generation: int
    at: float
    error: ActuationError | None = None


class PodActuator:
    """Applies cores through an API server; `worker` is the name after `@` of its executables.

    It controls the pods on `node`, all of the watch by default.
    `period` is the control period in seconds; `bounds` are those of the namespace on limits;
    `may_act` is false while another supervisor leads.
    """

    def __init__(
        self,
        watch: PodWatch,
        meters: PodMeters,
        *,
        worker: str,
        node: str | None = None,
        container: str,
        period: float,
        bounds: Callable[[], CpuBounds] = lambda: NO_BOUNDS,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._watch = watch
        self._meters = meters
        self._worker = worker
        self._node = node
        self._container = container
        self._bounds = bounds
        self._period = period
        self._limit = period / 3
        """Seconds that a tick waits: a slow API server must not delay the tick after it."""
        self._most = self._allowed = max(1.0, MOST_PER_SECOND * period)
        """Changes that a tick may begin at most, and may begin now: ticks may come early."""
        self._ticked_at = -math.inf
        self._may_act = may_act
        self._grants: dict[str, _LimitGrant] = {}
        self._asked: dict[str, list[int]] = {}
        """Millicores asked for, whether or not an answer came, since the last of them came into
        force."""
        self._in_force: dict[str, int] = {}
        """Millicores of the last limit that was in force while the container ran."""
        self._told: dict[str, int] = {}
        """Millicores last reported as applied."""
        self._readings: Mapping[str, Reading | None] = {}
        self._turn = asyncio.Lock()
        """A single call at a time: of several at once a kubelet holds some for long."""
        self._pending: dict[str, asyncio.Task[ActuationError | None]] = {}
        self._waiting: set[str] = set()
        """Those of `_pending` that wait for their turn: nothing is sent of them yet."""
        self._rest: tuple[float, ActuationError | None] = 0.0, None
        """Time until which the API server wants no call (Retry-After), and its words."""

    async def close(self) -> None:
        """Give up the calls that are on their way."""
        await cancel(self._pending.values())

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every pod: what its model server has reported since the last tick."""
        self._readings = self._meters.read(self._pods())
        return self._readings

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set limits; return what the kubelet has confirmed, and what failed.

        What is neither is on its way, and is returned by a later call.
        """
        now = self._clock()
        self._give_up_waiting()
        more = MOST_PER_SECOND * (now - self._ticked_at)
        self._allowed, self._ticked_at = min(self._most, self._allowed + more), now
        pods = self._pods()
        self._forget(pods)
        failed = self._ended()
        if self._may_act():
            failed |= self._moved(pods)
            failed |= await self._change(pods, cores)
        return self._confirmed(failed) | failed

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()

    def _pods(self) -> dict[str, Pod]:
        return {
            f"{own_name(pod.name)}@{self._worker}": pod
            for pod in self._watch.pods.values()
            if self._node in (None, pod.node) and pod.is_served
        }

    def _forget(self, pods: Mapping[str, Pod]) -> None:
        """Forget what was asked of pods that are gone, also if another has their name now."""
        for name, grant in list(self._grants.items()):
            if name not in pods or pods[name].uid != grant.uid:
                del self._grants[name]
                self._in_force.pop(name, None)
                self._asked.pop(name, None)
        self._asked = {name: asked for name, asked in self._asked.items() if name in pods}
        self._in_force = {name: cores for name, cores in self._in_force.items() if name in pods}
        for name, pod in pods.items():
            if pod.is_up and pod.is_settled and pod.granted is not None:
                self._in_force[name] = pod.granted
                if self._asked.get(name, [None])[-1] == pod.granted:
                    self._asked[name] = [pod.granted]
        self._told = {name: told for name, told in self._told.items() if name in pods}

    async def _change(
        self, pods: Mapping[str, Pod], cores: Mapping[str, float]
    ) -> dict[str, ActuationError]:
        failed: dict[str, ActuationError] = {}
        wanted: list[tuple[float, str, int]] = []
        for name, value in cores.items():
            pod = pods.get(name)
            if pod is None or name in self._pending:
                continue  # it is gone, or not known yet; or its last change is on its way
            if pod.fault:
                failed[name] = ActuationError(f"pod {pod.name}: {pod.fault}")
                continue
            if pod.is_up:
                millis = self._millis(name, pod, round(1000 * value))
            else:
                millis = self._taken_back(name, pod)
            if millis is not None:
                wanted.append((self._need(pod, millis), name, millis))
            elif (error := self._error(name, pod)) is not None:
                failed[name] = error
        # Those most in need; of these the decreases first, whose cores are given to others.
        wanted.sort(key=lambda entry: -abs(entry[0]))
        chosen = sorted(wanted[: round(self._allowed)], key=lambda entry: entry[0] > 0)
        self._allowed -= len(chosen)
        for _, name, millis in chosen:
            call = asyncio.create_task(self._set(name, pods[name], millis))
            self._pending[name] = call
            self._waiting.add(name)
        if self._pending:
            # The tick waits so long and no longer; a call that takes longer goes on.
            await asyncio.wait(self._pending.values(), timeout=self._limit)
        return failed | self._ended()

    @staticmethod
    def _need(pod: Pod, millis: int) -> float:
        """Return how much a change matters: the share by which it changes the limit, signed."""
        present = pod.limit or 0
        change = millis - present
        if not pod.is_up or abs(change) == 1:  # taken back, or sent again: they wait for nothing
            return math.copysign(math.inf, change)
        return change / max(present, LEAST_CHANGE)

    def _moved(self, pods: Mapping[str, Pod]) -> dict[str, ActuationError]:
        """Return, once for each change, the limits that somebody else has moved."""
        found: dict[str, ActuationError] = {}
        for name, grant in self._grants.items():
            pod, asked = pods[name], self._asked.get(name, ())
            is_newer = grant.generation and pod.generation > grant.generation
            if not is_newer or not asked or pod.limit is None:
                continue
            if pod.limit == grant.millis or pod.limit in asked:
                continue
            found[name] = ActuationError(
                f"pod {pod.name}: somebody else moved its CPU limit to {pod.limit}m, "
                "as a VerticalPodAutoscaler does; take CPU out of its controlled resources"
            )
            log.warning("%s", found[name])
            self._grants[name] = _LimitGrant(pod.uid, pod.limit, pod.generation, self._ticked_at)
        return found

    def _give_up_waiting(self) -> None:
        """Cancel the calls that a slow API server has left waiting.

        Their cores may be others' by now, and sent together they would be too many for a kubelet.
        """
        for name in self._waiting:
            self._pending.pop(name).cancel()
        self._allowed += len(self._waiting)
        self._waiting.clear()

    def _ended(self) -> dict[str, ActuationError]:
        """Forget the calls that have ended; return what failed of them."""
        ended = {name: call for name, call in self._pending.items() if call.done()}
        for name in ended:
            del self._pending[name]
        results = {name: call.result() for name, call in ended.items()}
        return {name: error for name, error in results.items() if error is not None}

    def _millis(self, name: str, pod: Pod, wanted: int) -> int | None:
        """Return the limit to ask for; None if there is nothing to ask."""
        wanted = max(wanted, pod.least)
        grant, present = self._grants.get(name), pod.limit or 0
        if grant is not None and grant.error is not None:
            is_same = abs(wanted - grant.millis) <= _band(grant.millis)
            if is_same and self._periods_since(grant) < REFUSED_FOR:
                return None
            return wanted
        if abs(wanted - present) > _band(present):
            return wanted
        if pod.is_settled or pod.resize:
            return None
        if grant is None:  # somebody else's change, or ours before a restart
            self._grants[name] = _LimitGrant(pod.uid, present, pod.generation, self._ticked_at)
        elif self._periods_since(grant) >= PATIENCE:
            # Less is within any quota, upper bound and sum of a node; more may be beyond it.
            least = max(pod.least, self._bounds().least)
            return present - 1 if present > least else present + 1
        return None

    def _periods_since(self, grant: _LimitGrant) -> int:
        return round((self._ticked_at - grant.at) / self._period)

    def _taken_back(self, name: str, pod: Pod) -> int | None:
        """Return the limit to ask for while the container is down: none above the last in force.

        A kubelet resizes the pod's own cgroup with a running container only, and on cgroup v1 a
        container that starts with more than that one has fails with EINVAL, again and again.
        """
        known = self._in_force.get(name)
        return known if known is not None and known < (pod.limit or 0) else None

    def _error(self, name: str, pod: Pod) -> ActuationError | None:
        """Return why a limit that was asked for is not in force."""
        if pod.resize:
            return ActuationError(f"pod {pod.name} on node {pod.node}: {pod.resize}")
        grant = self._grants.get(name)
        return None if grant is None else grant.error

    async def _set(self, name: str, pod: Pod, millis: int) -> ActuationError | None:
        path = f"/api/v1/namespaces/{self._watch.namespace}/pods/{pod.name}/resize"
        resources = {"limits": {"cpu": quantity(millis)}}
        body = {"spec": {"containers": [{"name": self._container, "resources": resources}]}}
        try:
            async with self._turn:
                self._waiting.discard(name)
                if not self._may_act():
                    return None  # another supervisor has begun while this call waited
                if self._clock() < self._rest[0]:
                    return self._rest[1]
                self._asked[name] = [*self._asked.get(name, ()), millis][-MOST_ASKED:]
                answer = await self._watch.client.patch(path, body, CALL_LIMIT)
            found = self._watch.take(answer)
            generation = pod.generation if found is None else found.generation
            self._grants[name] = _LimitGrant(pod.uid, millis, generation, self._ticked_at)
            self._told.pop(name, None)
            async with asyncio.timeout(self._limit):
                await self._watch.until(pod.name, lambda: self._is_over(pod, generation))
        except TimeoutError:
            return None  # it is on its way; a later tick looks again
        except ApiServerError as error:
            if error.status in (404, 410):
                # A server that lacks the resource names no pod; a late watch still shows one.
                if f'"{pod.name}"' in str(error) or await self._goes(pod):
                    return None
                error = ApiServerError(f"{error}: {NEEDED}", error.status)
            if error.retry_after:
                self._rest = self._clock() + error.retry_after, error
            # 401 is about the credentials: the same value may be set once they are renewed.
            if not error.is_passing and error.status != 401:
                self._grants[name] = _LimitGrant(pod.uid, millis, 0, self._ticked_at, error)
            return error
        return None

    async def _goes(self, pod: Pod) -> bool:
        """Return whether the watch shows that a pod which was not found has gone.

        A server that does not know the resource answers alike, and the pod stays.
        """
        try:
            async with asyncio.timeout(self._limit):
                await self._watch.until(pod.name, lambda: self._is_gone(pod))
        except TimeoutError:
            return False
        return True

    def _is_gone(self, pod: Pod) -> bool:
        now = self._watch.pods.get(pod.name)
        return now is None or now.uid != pod.uid or now.is_leaving

    def _is_over(self, pod: Pod, generation: int) -> bool:
        now = self._watch.pods.get(pod.name)
        if now is None or now.uid != pod.uid or now.resize:
            return True
        return now.generation >= generation and now.is_settled

    def _confirmed(self, failed: Collection[str]) -> dict[str, float | ActuationError]:
        """Return, by executable, the cores that have come into force since the last call.

        Those of an executable that `failed` are left for a later call.
        """
        found: dict[str, float | ActuationError] = {}
        for name, pod in self._pods().items():
            granted = pod.granted if pod.is_settled else self._measured(name)
            if name not in failed and granted is not None and self._told.get(name) != granted:
                self._told[name] = granted
                found[name] = granted / 1000
        return found

    def _measured(self, name: str) -> int | None:
        """Return the millicores that the kernel grants, where a kubelet is late to say so."""
        reading = self._readings.get(name)
        return None if reading is None or reading.cores is None else round(1000 * reading.cores)


def _band(millis: int) -> float:
    """Return the millicores by which a limit must change to be worth a call, from `millis`."""
    return max(LEAST_CHANGE, LEAST_SHARE * millis) - 1
