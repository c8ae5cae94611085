"""The board: what the dispatcher counts and what supervisors decided, joined, and said in words."""

from dataclasses import replace

import pytest

from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla
from roma.ui.dashboard.feed import Dashboard
from roma.ui.dashboard.rows import ModelState, Worker
from tests.support.supervisor import report

SPEC = ModelSpec("m", Sla(0.5, alpha=0.5), deadline=1.0)
CPU = ExecutorSpec("m@w", Device.CPU, ("m",), worker="w")
GPU = ExecutorSpec("gpu0@w", Device.GPU, ("m",), worker="w")
WORKER = Worker("w", "http://w", True, mode="control", capacity=2.0, demanded=1.0)
GRANTED = {"demand": 0.5, "allocation": 0.5, "applied": 0.5, "used": 0.3, "throttled": 0.1}


class Scene:
    """A dashboard that is fed second by second."""

    def __init__(self, *, specs=(CPU,), worker=WORKER, executable=GRANTED):
        self.dashboard = Dashboard("demo")
        self.second = 0
        self.counted = {}
        self.specs, self.worker, self.executable = specs, worker, executable
        self.states = {spec.name: "busy" for spec in specs}
        self.look()

    def look(self, *, arrivals=0, answered=0, on_gpu=0, late=0, failed=0, rejected=None, **now):
        """Let a second pass in which so much happened."""
        counts = {
            "arrivals": arrivals,
            "completed_cpu": answered - on_gpu,
            "completed_gpu": on_gpu,
            "late": late,
            "failed": failed,
        }
        for name, n in counts.items():
            self.counted[name] = self.counted.get(name, 0) + n
        refused = self.counted.setdefault("rejected", {})
        for reason, n in (rejected or {}).items():
            refused[reason] = refused.get(reason, 0) + n
        executors = tuple(ExecutorReport(s.name, self.states[s.name], 1, 0) for s in self.specs)
        reply = ExchangeReply(
            "e", (report(**self.counted | {"rejected": dict(refused)}, **now),), executors
        )
        self.second += 1
        self.dashboard.take(
            reply,
            {"m": SPEC},
            self.specs,
            {"w": (self.worker, {"m@w": self.executable})},
            now=float(self.second),
            at=1000.0 + self.second,
        )
        return self.dashboard.view.models[0] if self.dashboard.view.models else None


@pytest.mark.parametrize("known", [None, 0.0, 0.25])
def test_throttling_is_the_highest_that_is_known(known):
    assert Scene(executable=GRANTED | {"throttled": known}).look().throttled == known


def test_a_row_has_both_halves():
    row = Scene(specs=(CPU, GPU)).look(
        arrivals=10, answered=8, on_gpu=2, response_time=0.2, waiting=2, in_flight=1, oldest_age=0.1
    )
    assert (row.arrivals, row.gpu_share, row.waiting, row.in_flight) == (10, 0.25, 2, 1)
    assert row.error == pytest.approx(0.2 / 0.5 - 1)
    assert (row.demanded, row.allocated, row.applied, row.used) == (0.5, 0.5, 0.5, 0.3)
    assert row.throttled == 0.1
    assert [e.device for e in row.executables] == ["cpu", "gpu"]
    assert row.executables[1].applied is None


def test_cores_of_several_executables_add_up():
    other = ExecutorSpec("m@v", Device.CPU, ("m",), worker="v")
    board = Dashboard("demo")
    executors = tuple(ExecutorReport(s.name, "busy", 0, 0) for s in (CPU, other))
    for second in (1.0, 2.0):
        board.take(
            ExchangeReply("e", (report(arrivals=int(second)),), executors),
            {"m": SPEC},
            (CPU, other),
            {
                "w": (WORKER, {"m@w": GRANTED}),
                "v": (Worker("v", "http://v", False, 3.0, "refused"), {}),
            },
            now=second,
            at=second,
        )
    row = board.view.models[0]
    assert row.applied is None  # of two hosts one is silent: 0.5 would look like cores taken away
    assert row.executables[0].applied == 0.5
    assert row.executables[1].applied is None


def test_the_share_of_broken_promises_covers_the_last_minute():
    fake_board = Scene()
    fake_board.look(arrivals=10, answered=10, late=10)
    for _ in range(30):
        row = fake_board.look(arrivals=10, answered=10)
    assert row.late_share == pytest.approx(10 / 310)
    for _ in range(40):
        row = fake_board.look(arrivals=10, answered=10)
    assert row.late_share == 0


def test_the_worst_is_first():
    board = Dashboard("demo")
    specs = {n: ModelSpec(n, Sla(0.5), 1.0) for n in ("calm", "worse", "bad", "quiet")}
    executors = [ExecutorSpec(f"{n}@w", Device.CPU, (n,), worker="w") for n in specs]
    times = {"calm": 0.1, "worse": 2.0, "bad": 1.0, "quiet": None}
    for second in (1.0, 2.0):
        reports = tuple(
            report(n, arrivals=0 if t is None else int(10 * second), response_time=t)
            for n, t in times.items()
        )
        found = tuple(ExecutorReport(e.name, "busy", 0, 0) for e in executors)
        board.take(ExchangeReply("e", reports, found), specs, executors, {}, now=second, at=second)
    assert [row.model for row in board.view.models] == ["worse", "bad", "calm", "quiet"]


def steady(fake_board, seconds=12, **more):
    row = None
    for _ in range(seconds):
        row = fake_board.look(**{"arrivals": 10, "answered": 10, "response_time": 0.2} | more)
    return row


@pytest.mark.parametrize(
    ("second", "state", "error", "why"),
    [
        ({}, ModelState.OK, -0.6, "in time"),
        # Between set point and SLA.
        ({"response_time": 0.3}, ModelState.TIGHT, -0.4, "300 ms of 500 ms: "),
        # What waits too long is late although the answers are fast.
        (
            {"answered": 1, "response_time": 0.1, "waiting": 30, "oldest_age": 0.8},
            ModelState.LATE,
            0.6,
            "30 wait, the oldest for 800 ms: ",
        ),
        # A request that hangs is late although nothing waits.
        (
            {"answered": 0, "response_time": None, "in_flight": 1, "oldest_age": 50.0},
            ModelState.LATE,
            99.0,
            "1 runs, the oldest for 50000 ms: ",
        ),
    ],
)
def test_a_model_is_late_by_its_answers_and_by_what_waits(second, state, error, why):
    row = steady(Scene(), **second)
    assert (row.state, row.error) == (state, pytest.approx(error))
    assert row.why.startswith(why)


def test_no_request_yet_and_none_any_more():
    fake_board = Scene()
    row = fake_board.look()
    assert (row.state, row.why) == (ModelState.IDLE, "no request yet")
    fake_board.look(arrivals=1, answered=1, response_time=0.1)
    for _ in range(10):
        row = fake_board.look()
    assert (row.state, row.why) == (ModelState.IDLE, "no request now")


@pytest.mark.parametrize("state", ["loading", "lost"])
def test_nothing_can_serve_it(state):
    fake_board = Scene()
    fake_board.states["m@w"] = state
    row = fake_board.look(arrivals=3, rejected={"no_executable": 3})
    assert row.state is ModelState.DOWN
    assert row.why == f"nothing can serve it: m@w is {state}"


def test_one_of_two_is_gone():
    fake_board = Scene(specs=(CPU, GPU))
    fake_board.states["gpu0@w"] = "lost"
    row = steady(fake_board, response_time=0.9)
    assert row.why == "900 ms of 500 ms: gpu0@w not ready, the others carry the load"


@pytest.mark.parametrize(
    ("executable", "worker", "why"),
    [
        ({"limit": "failure", "failure": "read-only"}, {}, "cores of m@w cannot be set: read-only"),
        (
            {"limit": "held", "why": "no dispatcher answers"},
            {},
            "cores of m@w are held: no dispatcher answers",
        ),
        (
            {"limit": "worker_short", "demand": 1.5, "allocation": 0.9},
            {"demanded": 3.0},
            "worker w is short, 3.00 of 2.00 cores demanded: it gets 0.90 of 1.50",
        ),
        (
            {"limit": "contended", "contention": "others use 1.75 of its host's 2 CPUs"},
            {"demanded": 3.0, "contended": True},
            "others use 1.75 of its host's 2 CPUs",
        ),
        (
            {"limit": "own_maximum", "maximum": 1.0},
            {},
            "needs more than its most cores (cpu.max 1)",
        ),
        ({}, {"mode": "dry-run"}, "cores cannot change on w (dry-run)"),
        (
            {},
            {"uncontrolled": "no cgroup of its executables can be read"},
            "nothing controls the cores of w: no cgroup of its executables can be read",
        ),
        (
            {},
            {"answers": False, "silent_for": 7.2},
            "supervisor of w is silent for 7 s, cores do not follow the load",
        ),
    ],
)
def test_what_keeps_control_from_helping(executable, worker, why):
    fake_board = Scene(executable=GRANTED | executable, worker=replace(WORKER, **worker))
    row = steady(fake_board, response_time=0.9)
    assert row.state is ModelState.LATE
    assert row.why == f"900 ms of 500 ms: {why}"


def test_a_jump_of_the_load_is_said_with_what_control_does_about_it():
    fake_board = Scene()
    steady(fake_board)
    for cores in (0.5, 0.8, 1.2):
        fake_board.executable = GRANTED | {"applied": cores}
        row = fake_board.look(
            arrivals=80, answered=20, response_time=0.9, waiting=60, oldest_age=0.4
        )
    assert row.why == "900 ms of 500 ms: load rose from 10 to 80 req/s, cores follow, 0.50 → 1.20"


def test_cores_that_fall_do_not_follow_a_load_that_is_late():
    fake_board = Scene(executable=GRANTED | {"why": "30 req/s"})
    steady(fake_board)
    for cores in (0.20, 0.18, 0.17):
        fake_board.executable = GRANTED | {"applied": cores, "why": "30 req/s"}
        row = fake_board.look(arrivals=10, answered=10, response_time=0.9)
    assert row.why == "900 ms of 500 ms: 30 req/s"


def test_refused_and_failed_requests_come_before_the_response_time_of_the_others():
    fake_board = Scene()
    steady(fake_board)
    row = fake_board.look(
        arrivals=20, answered=10, rejected={"predicted_late": 9}, response_time=0.2
    )
    assert row.state is ModelState.LATE
    assert row.why.startswith("9 requests refused just now (predicted late): ")
    row = fake_board.look(arrivals=20, answered=10, failed=10, response_time=0.2)
    assert row.why.startswith("10 requests failed just now: ")
    row = fake_board.look(arrivals=20, answered=19, failed=1, response_time=0.2)
    assert row.why.startswith("1 request failed just now: ")


def test_promises_that_just_broke_are_named_also_when_the_time_is_below_the_sla_again():
    fake_board = Scene()
    fake_board.look(arrivals=10, answered=10, late=5)
    row = fake_board.look(arrivals=10, answered=10, response_time=0.3)
    assert row.state is ModelState.LATE
    assert row.why.startswith("5 promises broken in the last 5 s: ")
    for _ in range(5):
        row = fake_board.look(arrivals=10, answered=10, response_time=0.3)
    assert row.state is ModelState.TIGHT
    assert row.why.startswith("300 ms of 500 ms: ")


def test_a_model_that_served_long_ago_is_not_new():
    fake_board = Scene()
    fake_board.look(arrivals=1, answered=1, response_time=0.1)
    fake_board.dashboard.history._data[:] = 0  # its past has left the ring
    assert fake_board.look().why == "no request now"


def test_unknown_cores_are_unknown_not_none():
    row = steady(Scene(worker=replace(WORKER, answers=False)))
    assert (row.applied, row.throttled) == (None, None)
