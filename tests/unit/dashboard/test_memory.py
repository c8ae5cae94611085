"""Two hours in virtual time: once its rings are full, the dashboard takes no more memory."""

import gc
import sys

from controllers import registry
from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla
from roma.ui.dashboard.feed import Dashboard
from roma.ui.dashboard.rows import Worker
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading
from tests.support.supervisor import report

END = 7_200
PERIOD = 2
FILLED = 2_000
"""Seconds after which every ring is full."""
SCATTER = 100
"""Blocks of memory that come and go; one more at each tick would be 2,600."""

SPEC = ModelSpec("m", Sla(0.5), 1.0)
EXECUTOR = ExecutorSpec("m@w", Device.CPU, ("m",), worker="w")


def test_decisions_and_looks_take_no_more_memory_after_the_first_half_hour():
    core = Supervisor(
        [Managed("m@w", SPEC, 0.1, 4.0, initial=1.0)],
        registry.build("late_share", {}),
        capacity=4.0,
    )
    board = Dashboard("demo")
    worker = Worker("w", "http://w", True, mode="control")
    early = 0
    for second in range(PERIOD, END + 1, PERIOD):
        rate = 10 + second % 7
        now = report(
            arrivals=rate * second,
            completed_cpu=rate * second,
            late=second,
            rejected={"deadline": second // 3},
            response_time=0.1 + 0.01 * (second % 50),
        )
        reply = ExchangeReply("e", (now,), (ExecutorReport("m@w", "busy", 1, rate * second),))
        reading = Reading(1.0, 0.5 * second, second, 0)
        for apply in core.tick({"d": reply}, {"m@w": reading}, now=float(second)):
            core.on_applied(apply.executable, apply.cores)
        told = {"m@w": {"applied": core.status["m@w"].applied}}
        board.take(reply, {"m": SPEC}, [EXECUTOR], {"w": (worker, told)}, now=second, at=second)
        if second == FILLED:
            gc.collect()
            early = sys.getallocatedblocks()
    gc.collect()
    late = sys.getallocatedblocks()
    assert late < early + SCATTER
    assert board.history.samples == core.status["m@w"].decisions.maxlen == 900
