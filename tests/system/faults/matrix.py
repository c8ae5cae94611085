"""The faults that a deployment shall live through, as data: what is done, and what comes of it.

`drive.py` runs one, `test_matrix.py` all of them, `report.py` writes docs/faults.md.
"""

import contextlib
import signal
from pathlib import Path

from tests.support import deployment as grounds
from tests.system.faults import fault_actions, hostile
from tests.system.faults.fault_runner import Fault

IN_FLIGHT = 2
"""Of one executable: its cores. What may fail when it dies."""

MANY = 30
"""A bound on what may fail by time limits: two of them each second, and a busy machine is slow."""

PRESSED = {"response_time": 0.5, "deadline": 1.0, "max_waiting": 50}
"""Requests that cannot wait for the end of the fault."""

PATIENT = {"response_time": 10.0}
"""Where hundreds of clients run in the test's own process, a busy machine is late by itself."""


def told(line, back="answer"):
    """Let the first stand-in behave badly."""

    @contextlib.asynccontextmanager
    async def strike(deployment):
        deployment.server.say(line)
        yield
        deployment.server.say(back)

    return strike


@contextlib.asynccontextmanager
async def killed_and_restarted(deployment):
    deployment.server.kill()
    await deployment.until(deployment.lost)
    yield
    deployment.start_server()
    await deployment.until(lambda: deployment.get(deployment.server.url, "/")[0] == 200)


@contextlib.asynccontextmanager
async def one_of_two_killed(deployment):
    deployment.server.kill()
    yield
    deployment.start_server()
    await deployment.until(lambda: not deployment.lost())


def paused(which):
    @contextlib.asynccontextmanager
    async def strike(deployment):
        async with grounds.paused(which(deployment)):
            yield

    return strike


@contextlib.asynccontextmanager
async def out_of_memory(deployment):
    group = (
        Path("/sys/fs/cgroup/memory")
        / f"{deployment.file.parent.name}-{deployment.server.process.pid}"
    )
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(96 << 20))
        (group / "cgroup.procs").write_text(str(deployment.server.process.pid))
        deployment.server.say("eat")
        await deployment.until(lambda: deployment.server.ended)
        assert deployment.server.process.returncode == -signal.SIGKILL
        await deployment.until(deployment.lost)
        yield
    finally:
        deployment.server.kill()
        group.rmdir()
    deployment.start_server()
    await deployment.until(lambda: deployment.get(deployment.server.url, "/")[0] == 200)


@contextlib.asynccontextmanager
async def gateway_killed(deployment):
    deployment.gateway.kill()
    yield
    deployment.gateway.start()
    await deployment.ready()


@contextlib.asynccontextmanager
async def gateway_stopped(deployment):
    deployment.gateway.signal(signal.SIGTERM)
    await deployment.until(lambda: deployment.gateway.ended)
    assert deployment.gateway.process.returncode == 0
    yield
    deployment.gateway.start()
    await deployment.ready()


@contextlib.asynccontextmanager
async def supervisor_killed(deployment):
    (group,) = deployment.groups
    await deployment.until(lambda: fault_actions.state(deployment)["ticks"] > 1)
    deployment.supervisor.kill()
    standing = group.read().cores
    yield
    assert group.read().cores == standing
    deployment.supervisor.start()
    await deployment.until(lambda: fault_actions.state(deployment)["ticks"] > 1)


@contextlib.asynccontextmanager
async def supervisor_paused(deployment):
    (group,) = deployment.groups
    await deployment.until(lambda: fault_actions.state(deployment)["ticks"] > 1)
    async with grounds.paused(deployment.supervisor):
        standing = group.read().cores
        yield
        assert group.read().cores == standing
    ticks = fault_actions.state(deployment)["ticks"]
    await deployment.until(lambda: fault_actions.state(deployment)["ticks"] > ticks)


MATRIX = (
    Fault(
        "executable killed",
        "SIGKILL; started again after 100 requests",
        "what it was running fails (502), the rest is refused (503) until it is back",
        killed_and_restarted,
        frozenset({502, 503}),
        most_failed=IN_FLIGHT,
        some_refused=True,
    ),
    Fault(
        "one of two executables killed",
        "SIGKILL; started again after 100 requests",
        "what it was running fails (502); the other one serves on",
        one_of_two_killed,
        frozenset({502}),
        most_failed=IN_FLIGHT,
        deployment={"servers": 2},
    ),
    Fault(
        "executable paused",
        "SIGSTOP for 400 requests",
        "what it holds times out (502), what waits is refused (429, 504); nothing is lost",
        paused(lambda deployment: deployment.server),
        frozenset({429, 502, 503, 504}),
        most_failed=MANY,
        some_refused=True,
        lasts=400,
        deployment=PRESSED,
    ),
    Fault(
        "executable out of memory",
        "a memory cgroup of 96 MiB; the kernel kills it; started again after 100 requests",
        "as if killed: 502 for what it was running, 503 until it is back",
        out_of_memory,
        frozenset({429, 502, 503, 504}),
        most_failed=MANY,
        some_refused=True,
        deployment=PRESSED,
    ),
    Fault(
        "executable answers garbage",
        "bytes that are no HTTP, for 100 requests",
        "502 at once, never repeated elsewhere; while it is looked at, nothing more is sent to it",
        told("garbage"),
        frozenset({502, 503}),
        most_failed=200,
    ),
    Fault(
        "executable answers 500",
        "for 100 requests",
        "its answer goes to the client as it is, and counts as failed",
        told("error"),
        frozenset({500}),
        most_failed=200,
    ),
    Fault(
        "one of two executables answers 500",
        "for 200 requests, at once and reachable all the time",
        "after about twenty failures of what the other one answers, it is taken out of rotation, and "
        "tried with one request now and then",
        told("error"),
        frozenset({500}),
        most_failed=100,
        lasts=200,
        deployment={"servers": 2},
    ),
    Fault(
        "executable hangs up",
        "closes the connection instead of answering, for 100 requests",
        "502, never repeated elsewhere",
        told("hang up"),
        frozenset({502, 503}),
        most_failed=200,
    ),
    Fault(
        "executable answers twice",
        "two answers to each request, for 100 requests",
        "the first one counts; the connection is not used again",
        told("twice"),
    ),
    Fault(
        "executable never answers",
        "reads requests and is silent, for 200 requests; backend_timeout 1 s",
        "502 after backend_timeout; what waits is refused (429, 504)",
        told("silence"),
        frozenset({429, 502, 504}),
        most_failed=MANY,
        some_refused=True,
        lasts=200,
        deployment=PRESSED,
    ),
    Fault(
        "executable answers one byte a second",
        "for 200 requests; backend_timeout 1 s",
        "as if it never answered: the limit is for the whole answer",
        told("drip"),
        frozenset({429, 502, 504}),
        most_failed=MANY,
        some_refused=True,
        lasts=200,
        deployment=PRESSED,
    ),
    Fault(
        "executable's port closed",
        "listener and connections closed, for 100 requests",
        "what it was running fails (502), the rest is refused (503) until it is open again",
        told("close", "open"),
        frozenset({502, 503}),
        most_failed=IN_FLIGHT,
        some_refused=True,
    ),
    Fault(
        "connections to the executable dropped",
        "all reset at once",
        "what was running fails (502); the others go on over new connections",
        told("drop"),
        frozenset({502}),
        most_failed=2 * IN_FLIGHT,
        lasts=1,
    ),
    Fault(
        "gateway killed",
        "SIGKILL; started again after 100 requests; clients try again",
        "every request is answered in the end; each attempt is computed once at most",
        gateway_killed,
        retries=True,
        restarts=True,
    ),
    Fault(
        "gateway stopped",
        "SIGTERM; started again after 100 requests; clients try again",
        "it drains and ends with status 0; every request is answered in the end",
        gateway_stopped,
        retries=True,
        restarts=True,
    ),
    Fault(
        "gateway paused",
        "SIGSTOP for 200 requests: to it, its clock leaps",
        "what waited too long is refused (429, 504), the rest answered; no executable is lost",
        paused(lambda deployment: deployment.gateway),
        frozenset({429, 502, 504}),
        most_failed=IN_FLIGHT,
        lasts=200,
        deployment=PRESSED,
    ),
    Fault(
        "supervisor killed",
        "SIGKILL; started again after 200 requests",
        "no client notices: the last quotas stand, and the next supervisor reads them back",
        supervisor_killed,
        lasts=200,
        deployment={"controlled": True},
    ),
    Fault(
        "supervisor late",
        "SIGSTOP for 400 requests (10 s would be the same: nothing here waits for it)",
        "no client notices: the last quotas stand",
        supervisor_paused,
        lasts=400,
        deployment={"controlled": True},
    ),
    Fault(
        "second supervisor",
        "of the same cgroups; started while the first one controls, for 200 requests",
        "no client notices: it names the first one's process and ends with status 1",
        fault_actions.second_supervisor,
        lasts=200,
        deployment={"controlled": True},
    ),
    Fault(
        "exchange delayed",
        "each message between supervisor and dispatcher 0.6 s late, for 200 requests",
        "no client notices: the supervisor holds, and goes on when answers are in time",
        fault_actions.exchange_delayed,
        lasts=200,
        stage=fault_actions.stage_exchange,
        after=fault_actions.limits_follow,
    ),
    Fault(
        "exchange reordered",
        "confirmations overtake each other, for 200 requests",
        "no client notices; the in-flight limit follows the cores in the end",
        fault_actions.exchange_reordered,
        lasts=200,
        stage=fault_actions.stage_exchange,
        after=fault_actions.limits_follow,
    ),
    Fault(
        "wall clock jumps",
        "a day ahead, and after 200 requests two days back",
        "no client notices: promises and quotas are kept by the steady clock",
        fault_actions.wall_clock_jumps,
        lasts=200,
        stage=fault_actions.stage_wall_clock,
        after=fault_actions.limits_follow,
    ),
    Fault(
        "gateway out of descriptors",
        "128 of them, 200 clients that connect and are silent; for 200 requests; connections to "
        "the executable dropped meanwhile",
        "the gateway keeps what it needs: who has a connection is answered, others are told 503 or "
        "closed",
        fault_actions.descriptors_exhausted,
        frozenset({502, 503}),
        frozenset({"disconnected"}),
        most_failed=MANY,
        at_the_door=True,
        lasts=200,
        deployment={"descriptors": 128, **PATIENT},
    ),
    Fault(
        "hostile clients",
        "100 a second, of 13 kinds, from one address and for a model of their own; for 200 requests",
        "no client notices; each of them is refused, cut off or answered as its kind should be",
        fault_actions.attacked,
        lasts=200,
        deployment={"beside": (hostile.MODEL,), "gateway": {"limits": hostile.TIMEOUTS}, **PATIENT},
    ),
    Fault(
        "look-ups by the hundred",
        "200 clients at once ask for metadata, again and again, for 200 requests",
        "no client notices: the executable gets one look-up a second",
        fault_actions.looked_up,
        lasts=200,
        deployment={"gateway": {"limits": {"connections_per_address": 1000}}, **PATIENT},
    ),
    Fault(
        "disk full",
        "logs and control.decision_log on a full disk, for 200 requests",
        "no client notices; lines are lost, what comes later is written",
        fault_actions.disk_full,
        lasts=200,
        stage=fault_actions.stage_small_disk,
        after=fault_actions.written_again,
    ),
    Fault(
        "network cut",
        "no packet passes between dispatcher and worker until 100 requests after it was noticed",
        "what was running times out (502), the rest is refused (503) until packets pass",
        fault_actions.cable_cut,
        frozenset({429, 502, 503, 504}),
        most_failed=MANY,
        some_refused=True,
        stage=fault_actions.stage_cable,
        deployment=PRESSED,
    ),
    Fault(
        "network bad",
        "5 % of all packets lost and 20 ms of delay, for 300 requests",
        "TCP repeats what was lost, so some are answered later; where a new connection is lost twice, "
        "what waited too long meanwhile is refused (429)",
        fault_actions.cable_bad,
        frozenset({429}),
        lasts=300,
        stage=fault_actions.stage_cable,
        deployment={"cores": 16, "backend_timeout": 10.0},
    ),
)
