"""State machine of a planned device (Clockwork, §5.2): actions in, starts and outcomes out.

No clock and no device: the real device server, the emulated one and the simulator share this core.
It begins one INFER and one LOAD at a time, each kind in the order of `earliest`, and skips actions
that cannot begin in their window; so a late device catches up. It decides nothing else: the
dispatcher chooses what to load, evict, batch or refuse.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from roma.domain.actions import Action, ActionOutcome, ActionStatus, Infer, Load, Unload


@dataclass(frozen=True, slots=True)
class Begin:
    """Step: execute this action now, then report its end to `DeviceCore.end`."""

    action: Infer | Load


Step = Begin | ActionOutcome


class _Lane:
    """A kind of action: the waiting actions by `earliest`, and the running one."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running: tuple[Infer | Load, float] | None = None
        self.waiting: list[tuple[float, int, Infer | Load]] = []


class DeviceCore:
    """Core of one device: `pages` it has, and pages that each model in host memory needs."""

    def __init__(self, pages: int, needs: Mapping[str, int]) -> None:
        self.pages = pages
        self.free = pages
        self.loaded: set[str] = set()
        self._needs = needs
        self._infers, self._loads = _Lane(), _Lane()
        self._uses: Counter[str] = Counter()
        """INFERs that wait or run, by model."""
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<WorkerCore: {len(self.loaded)} loaded, {self.free} of {self.pages} pages free>"

    def submit(self, action: Action, now: float) -> list[Step]:
        """Take an action; return the steps that follow, in order."""
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
        """Begin the actions that may begin now; skip those that are too late."""
        steps: list[Step] = []
        for lane in (self._loads, self._infers):
            while lane.running is None and lane.waiting and lane.waiting[0][0] <= now:
                _, _, action = heappop(lane.waiting)
                steps.append(self._begin(lane, action, now))
        return steps

    def end(self, action: int, status: ActionStatus, now: float, detail: str = "") -> list[Step]:
        """Record the end of a running action; return its outcome and the steps that follow."""
        for lane in (self._infers, self._loads):
            if lane.running is not None and lane.running[0].id == action:
                done, began = lane.running
                lane.running = None
                self._settle(done, status)
                return [ActionOutcome(action, status, began, now, detail), *self.advance(now)]
        raise AssertionError(f"action {action} does not run")

    def drop(self) -> list[int]:
        """Drop waiting actions, whose dispatcher is gone, and return their ids; others run on."""
        dropped = [action for x in (self._infers, self._loads) for _, _, action in x.waiting]
        for lane in (self._infers, self._loads):
            lane.waiting.clear()
        self._uses.subtract(action.model for action in dropped if isinstance(action, Infer))
        return [action.id for action in dropped]

    def next_wakeup(self) -> float | None:
        """Return the time at which to call `advance`, if nothing ends or arrives before."""
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
        """Update the state for an action that ended or never began."""
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
