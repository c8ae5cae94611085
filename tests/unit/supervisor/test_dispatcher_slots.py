"""The slots of an executable that several dispatchers use."""

import pytest

from supervisor.executables import Managed
from tests.support.supervisor import M, build, reading, reply, report


def several(core, now, *, a, b=None, states=("busy", "busy"), cores=20.0, **more):
    """Tick with dispatchers a and b, `a` and `b` their arrivals; return their slots."""
    replies = {
        "a": reply(report(arrivals=a), state=states[0]),
        "b": None if b is None else reply(report(arrivals=b), state=states[1], **more),
    }
    core.tick(replies, {"m@w": reading(cores, usage=now)}, now=now)
    return [
        round(core.readings(d)[0].share * core.readings(d)[0].applied)
        for d, answer in replies.items()
        if answer is not None
    ]


@pytest.fixture
def wide():
    return build(managed=[Managed("m@w", M, 0.1, 20.0, 20.0)], capacity=20.0)


def test_each_dispatcher_has_the_slots_of_its_part_of_the_arrivals(wide):
    # The first report is a baseline: nothing is known yet of anybody's part.
    assert several(wide, 1.0, a=10, b=30) == [10, 10]
    assert several(wide, 2.0, a=20, b=60) == [8, 10]  # what one gives up is free a period later
    assert several(wide, 3.0, a=30, b=90) == [8, 12]
    # Nobody asked for anything: each may begin with as much.
    assert several(wide, 4.0, a=30, b=90) == [8, 10]
    assert several(wide, 5.0, a=30, b=90) == [10, 10]
    assert wide.readings("a")[0].applied == 20.0  # what was applied is one thing for all


def test_fewer_cores_cost_each_its_part_and_no_more(wide):
    several(wide, 1.0, a=10, b=10)
    assert several(wide, 2.0, a=20, b=20) == [10, 10]
    for now, cores in ((3.0, 14.0), (4.0, 13.0), (5.0, 12.0)):
        wide.on_applied("m@w", cores)
        found = several(wide, now, a=int(10 * now), b=int(10 * now), cores=cores)
        assert sum(found) == cores


def test_a_slot_in_which_something_still_runs_is_given_to_nobody_else(wide):
    several(wide, 1.0, a=10, b=10)
    running = {"in_flight": 10}
    assert several(wide, 2.0, a=50, b=10, **running) == [10, 5]
    assert several(wide, 3.0, a=90, b=10, **running) == [10, 5]
    assert several(wide, 4.0, a=130, b=10) == [15, 5]


def test_who_cannot_reach_an_executable_keeps_no_more_than_an_idle_one(wide):
    for now in (1.0, 2.0, 3.0):
        found = several(wide, now, a=int(10 * now), b=int(90 * now), states=("busy", "loading"))
    assert found == [15, 5]


@pytest.mark.parametrize(("dispatchers", "left"), [(1, 20), (2, 19)])
def test_who_is_always_started_again_finds_a_slot(dispatchers, left):
    managed = [Managed("m@w", M, 0.1, 20.0, 20.0)]
    core = build(managed=managed, capacity=20.0, dispatchers=dispatchers)
    several(core, 1.0, a=10, b=10)
    several(core, 2.0, a=20, b=20)
    # It was silent for too long to count any more.
    for now in (3.0, 4.0, 5.0, 6.0, 7.0):
        found = several(core, now, a=int(10 * now))
    assert found == [left]


def test_of_fewer_slots_than_dispatchers_each_has_one(wide):
    for now in (1.0, 2.0, 3.0):
        found = several(wide, now, a=int(10 * now), b=0, cores=0.7)
    assert found == [1, 1]


def test_what_was_never_read_is_divided_too():
    core = build(managed=[Managed("m@w", M, 0.1, 8.0, 8.0)], dispatchers=2)
    core.tick({"a": reply(report()), "b": reply(report())}, {}, now=1.0)
    found = [core.readings(d)[0] for d in "ab"]
    assert [(r.applied, r.share) for r in found] == [(8.0, 0.5), (8.0, 0.5)]


def test_the_slots_of_an_executable_that_has_gone_are_nobodys():
    managed = Managed("m@w", M, 0.1, 8.0, 8.0)
    core = build(managed=[managed], dispatchers=2)
    core.tick({d: reply(report()) for d in "ab"}, {"m@w": reading(8.0)}, now=1.0)
    assert [core.readings(d)[0].share for d in "ab"] == [0.5, 0.5]
    core.manage([])
    core.manage([managed])
    assert not core._parts._told
