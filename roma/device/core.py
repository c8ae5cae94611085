"""The rules of a planned device (Clockwork, §5.2): actions in, beginnings and outcomes out.

No clock and no device: the same core is inside the real worker, the emulated one and the
simulator. It begins one INFER and one LOAD at a time, each kind in the order of `earliest`, and
skips what could not begin in its window, which is how a device that was late is on time again. It
decides nothing else: what is loaded, evicted, batched or refused is the dispatcher's choice.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from roma.domain.actions import Action, ActionOutcome, ActionStatus, Infer, Load, Unload


@dataclass(frozen=True, slots=True)
class Begin:
    """Do this action now, then report it to `DeviceCore.end`."""

    action: Infer | Load


Step = Begin | ActionOutcome


class _Lane:
    """One kind of action: what waits, by `earliest`, and what runs."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running: tuple[Infer | Load, float] | None = None
        self.waiting: list[tuple[float, int, Infer | Load]] = []


class DeviceCore:
    """One device: `pages` are its own, `needs` the pages of each model it has in host memory."""

    def __init__(self, pages: int, needs: Mapping[str, int]) -> None:
        self.pages = pages
        self.free = pages
        self.loaded: set[str] = set()
        self._needs = needs
        self._infers, self._loads = _Lane(), _Lane()
        self._uses: Counter[str] = Counter()
        """By model: INFERs that wait or run."""
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<WorkerCore: {len(self.loaded)} loaded, {self.free} of {self.pages} pages free>"

    def submit(self, action: Action, now: float) -> list[Step]:
        """Take an action; return what begins or ends by that, in order."""
        if isinstance(action, Unload):
            return [ActionOutcome(action.id, self._unload(action), now, now)]
        if action.model not in self._needs:
            detail = f"model = {action.model}: must be one that this worker has"
            return [ActionOutcome(action.id, ActionStatus.INVALID, now, now, detail)]
        if isinstance(action, Infer):
            self._uses[action.model] += 1
        lane = self._lane(action)
        self._sequence += 1
        heappush(lane.waiting, (action.earliest, self._sequence, action))
        return self.advance(now)

    def advance(self, now: float) -> list[Step]:
        """Begin what may begin now, skip what is too late."""
        steps: list[Step] = []
        for lane in (self._loads, self._infers):
            while lane.running is None and lane.waiting and lane.waiting[0][0] <= now:
                _, _, action = heappop(lane.waiting)
                steps.append(self._begin(lane, action, now))
        return steps

    def end(self, action: int, status: ActionStatus, now: float, detail: str = "") -> list[Step]:
        """Take that a begun action ended; return its outcome and what begins by that."""
        for lane in (self._infers, self._loads):
            if lane.running is not None and lane.running[0].id == action:
                done, began = lane.running
                lane.running = None
                self._settle(done, status)
                return [ActionOutcome(action, status, began, now, detail), *self.advance(now)]
        raise AssertionError(f"action {action} does not run")

    def drop(self) -> list[int]:
        """Forget what waits, whose dispatcher is gone; return the ids. What runs goes on."""
        dropped = [action for x in (self._infers, self._loads) for _, _, action in x.waiting]
        for lane in (self._infers, self._loads):
            lane.waiting.clear()
        self._uses.subtract(action.model for action in dropped if isinstance(action, Infer))
        return [action.id for action in dropped]

    def next_wakeup(self) -> float | None:
        """Return when `advance` should be called, if nothing ends or comes before."""
        lanes = (self._infers, self._loads)
        times = [x.waiting[0][0] for x in lanes if x.waiting and x.running is None]
        return min(times, default=None)

    def _lane(self, action: Infer | Load) -> _Lane:
        return self._infers if isinstance(action, Infer) else self._loads

    def _begin(self, lane: _Lane, action: Infer | Load, now: float) -> Step:
        refused, detail = self._refusal(action, now)
        if refused is not None:
            self._settle(action, refused)
            return ActionOutcome(action.id, refused, now, now, detail)
        if isinstance(action, Load):
            self.free -= self._needs[action.model]
        lane.running = (action, now)
        return Begin(action)

    def _refusal(self, action: Infer | Load, now: float) -> tuple[ActionStatus | None, str]:
        if now > action.latest:
            return ActionStatus.MISSED, f"{(now - action.latest) * 1e3:.3f} ms after `latest`"
        if isinstance(action, Infer):
            is_there = action.model in self.loaded
            return (None, "") if is_there else (ActionStatus.NOT_LOADED, f"model = {action.model}")
        if action.model in self.loaded:
            return ActionStatus.BUSY, f"model = {action.model}: is loaded already"
        need = self._needs[action.model]
        if need > self.free:
            return ActionStatus.NO_PAGES, f"pages = {need}: must be ≤ {self.free} (free)"
        return None, ""

    def _settle(self, action: Infer | Load, status: ActionStatus) -> None:
        """Account for an action that is over, or was not begun."""
        if isinstance(action, Infer):
            self._uses[action.model] -= 1
        elif status is ActionStatus.OK:
            self.loaded.add(action.model)
        elif status in (ActionStatus.ERROR, ActionStatus.INVALID):  # it began: it held pages
            self.free += self._needs[action.model]

    def _unload(self, action: Unload) -> ActionStatus:
        if self._uses[action.model]:
            return ActionStatus.BUSY
        if action.model not in self.loaded:
            return ActionStatus.NOT_LOADED
        self.loaded.remove(action.model)
        self.free += self._needs[action.model]
        return ActionStatus.OK
