"""State machine of a planned device (Clockwork, §5.2): actions in, starts and outcomes out.

No clock and no device: the real device server, the emulated one and the simulator share this core.
It begins one INFER and one LOAD at a time, each kind in the order of `earliest`, and skips actions
that cannot begin in their window; so a late device catches up. INFERs that were sent to begin
together count as one: the next begins when all of them have ended. It decides nothing else: the
dispatcher chooses what to load, evict, batch, execute together or refuse.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from roma.domain.actions import Action, ActionOutcome, ActionStatus, Discard, Infer, Load, Unload


@dataclass(frozen=True, slots=True)
class Begin:
    """Step: execute these actions now, then report the end of each to `DeviceCore.end`."""

    action: Infer | Load
    others: tuple[Infer | Load, ...] = ()
    """INFERs that begin together with it."""


Step = Begin | ActionOutcome


@dataclass(slots=True)
class _Lane:
    """A kind of action: the waiting ones by `earliest`, and those that run, since when."""

    running: dict[int, tuple[Infer | Load, float]] = field(default_factory=dict)
    waiting: list[tuple[float, int, tuple[Infer | Load, ...]]] = field(default_factory=list)


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
        return f"<DeviceCore: {len(self.loaded)} loaded, {self.free} of {self.pages} pages free>"

    def submit(self, action: Action, now: float) -> list[Step]:
        """Take an action; return the steps that follow, in order."""
        match action:
            case Unload():
                return [ActionOutcome(action.id, self._unload(action), now, now)]
            case Discard():
                return [ActionOutcome(action.id, ActionStatus.OK, now, now)]
            case Infer():
                return self.submit_together((action,), now)
        if action.model not in self._needs:
            return [self._unknown(action, now)]
        return self._wait(self._loads, (action,), now)

    def submit_together(self, actions: Sequence[Infer], now: float) -> list[Step]:
        """Take INFERs that begin together, in the window of the first; return the next steps."""
        known = tuple([action for action in actions if action.model in self._needs])
        steps: list[Step] = [self._unknown(a, now) for a in actions if a not in known]
        for action in known:
            self._uses[action.model] += 1
        return steps + self._wait(self._infers, known, now) if known else steps

    def advance(self, now: float) -> list[Step]:
        """Begin the actions that may begin now; skip those that are too late."""
        steps: list[Step] = []
        for lane in (self._loads, self._infers):
            while not lane.running and lane.waiting and lane.waiting[0][0] <= now:
                _, _, actions = heappop(lane.waiting)
                begun = [action for action in actions if self._begins(lane, action, now, steps)]
                if begun:
                    steps.append(Begin(begun[0], tuple(begun[1:])))
        return steps

    def end(self, action: int, status: ActionStatus, now: float, detail: str = "") -> list[Step]:
        """Record the end of a running action; return its outcome and the steps that follow."""
        for lane in (self._infers, self._loads):
            if action in lane.running:
                done, began = lane.running.pop(action)
                self._settle(done, status)
                return [ActionOutcome(action, status, began, now, detail), *self.advance(now)]
        raise AssertionError(f"action {action} does not run")

    def drop(self) -> list[int]:
        """Drop waiting actions, whose dispatcher is gone, and return their ids; others run on."""
        lanes = (self._infers, self._loads)
        dropped = [action for x in lanes for _, _, actions in x.waiting for action in actions]
        for lane in lanes:
            lane.waiting.clear()
        self._uses.subtract(action.model for action in dropped if isinstance(action, Infer))
        return [action.id for action in dropped]

    def next_wakeup(self) -> float | None:
        """Return the time at which to call `advance`, if nothing ends or arrives before."""
        lanes = (self._infers, self._loads)
        times = [x.waiting[0][0] for x in lanes if x.waiting and not x.running]
        return min(times, default=None)

    def _wait(self, lane: _Lane, actions: tuple[Infer | Load, ...], now: float) -> list[Step]:
        self._sequence += 1
        heappush(lane.waiting, (actions[0].earliest, self._sequence, actions))
        return self.advance(now)

    @staticmethod
    def _unknown(action: Infer | Load, now: float) -> ActionOutcome:
        detail = f"model = {action.model}: must be one that this device has"
        return ActionOutcome(action.id, ActionStatus.INVALID, now, now, detail)

    def _begins(self, lane: _Lane, action: Infer | Load, now: float, steps: list[Step]) -> bool:
        """Return True if an action begins; add its outcome to the steps otherwise."""
        refused, detail = self._refusal(action, now)
        if refused is not None:
            self._settle(action, refused)
            steps.append(ActionOutcome(action.id, refused, now, now, detail))
            return False
        if isinstance(action, Load):
            self.free -= self._needs[action.model]
        lane.running[action.id] = (action, now)
        return True

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
