"""A late model and its cause, scripted: its own quota, its worker, others on the host, or nobody."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from supervisor.actuators.host import read_host
from supervisor.actuators.recording import RecordingActuator
from supervisor.cgroups import GroupV1, GroupV2
from supervisor.contention import Contention, HostReading, contention, parse_some
from supervisor.decision_log import plain
from supervisor.decision_text import Limit, explain, limit
from supervisor.executables import Managed, Reading
from supervisor.live.api import snapshot
from supervisor.live.loop import ControlLoop
from tests.support.decision_log import parsed
from tests.support.supervisor import M, build, reply, report

LATE = {"response_time": 0.9, "waiting": 3, "in_flight": 1, "oldest_age": 0.7}
"""Now, of a promise of 500 ms."""


class Host:
    """A host of two CPUs with one executable, whose second is scripted by rates."""

    def __init__(self, core=None):
        self.core = core or build("static", {"level": "max"}, capacity=1.4)
        self.now = self.arrivals = self.busy = self.stolen = self.waited = 0.0
        self.usage = self.own = 0.0
        self.periods = self.throttled = self.refused = 0

    def second(
        self,
        *,
        uses=0.2,
        others=1.75,
        stolen=0.0,
        waited=0.4,
        own=None,
        throttled=0,
        refused=0,
        **now,
    ):
        """Let a second pass: CPUs in use and stolen, shares of waiting, throttled periods of 10."""
        self.now += 1.0
        self.arrivals += 10
        self.usage += uses
        self.busy += uses + others
        self.stolen += stolen
        self.waited += waited or 0.0
        self.own += own or 0.0
        self.periods += 10
        self.throttled += throttled
        self.refused += refused
        seen = Reading(1.4, self.usage, self.periods, self.throttled)
        seen = seen if own is None else replace(seen, waited=self.own)
        m = report(arrivals=int(self.arrivals), completed_cpu=int(self.arrivals), **now)
        m = replace(m, rejected={"predicted_late": self.refused} if self.refused else {})
        host = HostReading(2, self.busy, self.stolen, None if waited is None else self.waited)
        self.core.tick({"d": reply(m)}, {"m@w": seen}, now=self.now, host=host)
        return self.core.status["m@w"].decisions[-1]

    def run(self, **second):
        for _ in range(3):
            found = self.second(**second)
        return found


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            {},
            "Others use 1.75 of its host's 2 CPUs, something waits for one 40% of the time: m@w "
            "uses 0.20 of the 1.40 cores it has, throttled 0%.",
        ),
        (
            {"others": 0.6, "stolen": 1.2},
            "The hypervisor takes 1.20 of its host's 2 CPUs, something waits for one 40% of the "
            "time: m@w uses 0.20 of the 1.40 cores it has, throttled 0%.",
        ),
        (
            {"own": 0.6, "others": 0.5},
            "Others use 0.50 of its host's 2 CPUs, it waits for one 60% of the time: m@w uses 0.20 "
            "of the 1.40 cores it has, throttled 0%.",
        ),
        (
            {"response_time": 0.2, "oldest_age": 0.1, "in_flight": 1, "refused": 4},
            "Others use 1.75 of its host's 2 CPUs, something waits for one 40% of the time: m@w "
            "uses 0.20 of the 1.40 cores it has, throttled 0%.",
        ),
        (
            {"waited": None},
            "Others use 1.75 of its host's 2 CPUs: m@w uses 0.20 of the 1.40 cores it has, "
            "throttled 0%.",
        ),
    ],
    ids=["others", "hypervisor", "its own pressure", "admitted in time", "no PSI"],
)
def test_others_have_the_host(second, said):
    found = Host().run(**LATE | second)
    assert limit(found) is Limit.CONTENDED
    assert said in explain(found)


@pytest.mark.parametrize(
    "second",
    [
        LATE | {"throttled": 5},
        LATE | {"uses": 1.3, "others": 0.7},
        LATE | {"others": 0.3},
        LATE | {"waited": 0.05},
        LATE | {"own": 0.05},
        LATE | {"others": 0.1, "waited": None},
        {"response_time": 0.2, "in_flight": 1, "oldest_age": 0.1},
        {"response_time": 0.9},
    ],
    ids=[
        "its quota ran out",
        "it uses what it has",
        "a CPU is idle",
        "nothing waits",
        "it does not wait",
        "idle, no PSI",
        "in time",
        "no work",
    ],
)
def test_others_do_not_have_the_host(second):
    found = Host().run(**second)
    assert limit(found) is not Limit.CONTENDED
    assert "its host's" not in explain(found)


def test_a_worker_is_short_where_its_executables_use_what_they_have_and_only_there():
    """Laws ask for more and more of what others have: that makes no worker short."""
    managed = [Managed(n, replace(M, name=n[0]), 0.1, 1.4, initial=0.7) for n in ("m@w", "n@w")]
    core = build("static", {"level": "max"}, capacity=1.4, managed=managed)
    busy = {"arrivals": 10, "completed_cpu": 10, **LATE}
    kept = reply(report(**busy))
    kept = replace(
        kept,
        models=(report("m", **busy), report("n", **busy)),
        executors=(*kept.executors, replace(kept.executors[0], executor="n@w")),
    )
    for uses, others, kind in ((0.7, 0.6, Limit.WORKER_SHORT), (0.1, 1.8, Limit.CONTENDED)):
        usage = spent = 0.0
        for _ in range(4):
            usage += uses
            spent += 2 * uses + others
            now = core.last()[0].time + 1.0 if core.last() else 1.0
            seen = Reading(0.7, usage, 0, 0)
            core.tick(
                {"d": kept}, {"m@w": seen, "n@w": seen}, now=now, host=HostReading(2, spent, 0.0, 0)
            )
        # Nothing waited by PSI: let it be unknown instead.
        found = [replace(d, contention=replace(d.contention, waited=None)) for d in core.last()]
        assert [limit(d) for d in found] == [kind, kind]


def test_a_decision_without_a_host_is_as_it_was():
    host = Host()
    found = host.run(**LATE)
    assert parsed(orjson.dumps(plain(found))) == found
    assert limit(replace(found, contention=None)) is not Limit.CONTENDED
    assert "contention" not in plain(replace(found, contention=None))


def test_contention_changes_no_allocation():
    calm, busy = Host(), Host()
    for _ in range(4):
        one = calm.second(others=0.0, waited=0.0, **LATE)
        other = busy.second(**LATE)
        assert (one.demand, one.allocation) == (other.demand, other.allocation)


def test_there_is_no_contention_before_two_readings():
    one, two = HostReading(2, 10.0, 1.0, 5.0), HostReading(2, 11.5, 1.25, 5.5)
    assert contention(None, one, 0.2, 1.0) is None
    assert contention(one, None, 0.2, 1.0) is None
    assert contention(one, two, 0.5, 0.0) is None
    assert contention(one, two, 0.5, 1.0) == Contention(2, 0.25, 1.0, 0.25, 0.5)


STAT = """cpu  300 100 200 4000 50 10 40 70 30 0
cpu0 150 50 100 2000 25 5 20 35 15 0
cpu1 150 50 100 2000 25 5 20 35 15 0
intr 1
"""

PRESSURE = """some avg10=41.32 avg60=33.83 avg300=44.07 total=5353518281
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""


def test_a_host_is_read_as_proc_says(tmp_path):
    assert read_host(tmp_path) is None
    (tmp_path / "stat").write_text(STAT)
    assert read_host(tmp_path) == HostReading(2, 6.5, 0.7, None)
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(PRESSURE)
    assert read_host(tmp_path) == HostReading(2, 6.5, 0.7, 5353.518281)
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert read_host(tmp_path) is None  # a sandbox that counts nothing


def test_pressure_of_another_form_is_unknown():
    assert parse_some("full total=3\n") is None
    assert parse_some("some avg10=1 total=x\n") is None


def test_a_group_of_version_2_has_pressure_of_its_own(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 1\nnr_throttled 0\n")
    group = GroupV2([tmp_path], 1, 0.1)
    assert group.read().waited is None
    (tmp_path / "cpu.pressure").write_text(PRESSURE)
    assert group.read().waited == 5353.518281
    assert GroupV1([tmp_path], 1, 0.1)._waited() is None


async def test_the_loop_reads_the_host_and_tells_who_has_it():
    host = Host()
    host.run(**LATE)
    read = []

    def reading():
        read.append(asyncio.get_running_loop().time())
        return HostReading(2, 0.0, 0.0)

    loop = ControlLoop(host.core, RecordingActuator(), [], worker="w", period=1.0, host=reading)
    told = snapshot(loop, "control")
    assert told["contended"]
    assert told["executables"]["m@w"]["limit"] == "contended"
    assert told["executables"]["m@w"]["contention"].startswith("others use 1.75 of its host's")
    await loop.tick()
    assert len(read) == 1
    assert not snapshot(loop, "control")["contended"]
