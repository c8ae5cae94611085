"""Executables that want more cores at once than their machine has, worked out by hand."""

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roma.config.profile import ModelProfile
from roma.config.schema import parse
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.machine import SharedCores, Unit
from roma.lab.sim.quota import QuotaCpu
from roma.lab.sim.world import World

PERIOD = 0.1


def run(cores, units, starts):
    """Return the ends by execution; `starts` are (time, unit, work)."""
    machine = SharedCores(cores, cores, units)
    number = itertools.count()
    agenda = [
        (t, next(number), "start", (unit, i, work)) for i, (t, unit, work) in enumerate(starts)
    ]
    heapq.heapify(agenda)
    ends = {}

    def plan(stale):
        for unit in stale:
            unit.version += 1
            if (end := unit.cpu.next_end()) is not None:
                heapq.heappush(agenda, (end[0], next(number), "end", (unit, unit.version)))
        if machine.is_crowded:
            machine.version += 1
            turn = (machine.next_turn(), next(number), "turn", (None, machine.version))
            heapq.heappush(agenda, turn)

    while agenda:
        now, _, kind, (unit, *what) = heapq.heappop(agenda)
        if kind == "start":
            unit.cpu.start(what[0], what[1], now)
            plan(machine.settle(unit, now))
        elif kind == "end" and what[0] == unit.version:
            ends[unit.cpu.end(now)] = now
            plan(machine.settle(unit, now))
        elif kind == "turn" and what[0] == machine.version:
            plan(machine.turn(now))
    return ends


def unit(cores, *, burst=0.0, parallelism=1.0, limit=4.0):
    return Unit(QuotaCpu(cores, period=PERIOD, burst=burst, parallelism=parallelism, limit=limit))


@pytest.mark.parametrize(
    ("cores", "quotas", "works", "ends"),
    [
        # Two that want the same core have half of it each.
        (1.0, (0.5, 0.5), (0.04, 0.04), (0.08, 0.08)),
        # Where there are cores for all nobody waits.
        (2.0, (0.5, 0.5), (0.04, 0.04), (0.04, 0.04)),
        # Who has spent its quota leaves the core to others until its next period: 0.02 at half a
        # core until 0.04, stalled until 0.1; the other one alone until 0.08.
        (1.0, (0.2, 0.8), (0.04, 0.06), (0.12, 0.08)),
    ],
)
def test_two_executables_on_a_machine(cores, quotas, works, ends):
    units = [unit(quota) for quota in quotas]
    found = run(cores, units, [(0.0, u, work) for u, work in zip(units, works, strict=True)])
    assert found == pytest.approx(dict(enumerate(ends)))


def test_who_wants_less_than_a_fair_share_has_all_of_it():
    # b wants 4 of 3 cores and a 1: a is not slowed down.
    a, b = unit(1.0), unit(4.0, parallelism=4.0)
    ends = run(3.0, [a, b], [(0.0, b, 0.2), (0.0, a, 0.05)])
    assert ends == {1: pytest.approx(0.05), 0: pytest.approx(0.05 + 0.1 / 3)}


def test_what_a_burst_asks_for_beyond_the_cores_waits():
    # Saved up: 0.1 each; two cores at once of two, then a third executable takes a share.
    units = [unit(0.5, burst=1.0, parallelism=2.0) for _ in range(2)]
    starts = [(1.0, u, 0.1) for u in units]
    assert run(4.0, units, starts) == {0: pytest.approx(1.05), 1: pytest.approx(1.05)}
    units = [unit(0.5, burst=1.0, parallelism=2.0) for _ in range(2)]
    starts = [(1.0, u, 0.1) for u in units]
    assert run(2.0, units, starts) == {0: pytest.approx(1.1), 1: pytest.approx(1.1)}


def test_an_executable_that_is_lost_in_a_crowd_ends_nothing_and_leaves_its_cores():
    """Two others go on, and still want more than there is: the crowd does not end with the loss."""
    models = "".join(f"  {name}: {{path: x, sla: {{response_time: 1}}}}\n" for name in "abc")
    config = parse(f"models:\n{models}workers: [{{cores: 1}}]")
    agenda, ended = Agenda(), []
    profiles = {
        name: ModelProfile(cost=cost) for name, cost in {"a": 0.03, "b": 0.3, "c": 0.3}.items()
    }
    world = World(config, profiles, agenda, ended.append)
    for i, name in enumerate("abc"):
        world.resize(f"{name}@local", 1.0)
        world.start(i, f"{name}@local", name, [0.0])
    # A third of the core each: a would end at 0.09.
    agenda.at(0.03, world.lose, "a@local")
    agenda.run(2.0)
    assert sorted(ended) == [1, 2]
    assert world.reading("a@local").usage == pytest.approx(0.01)
    world.start(3, "a@local", "a", [0.0])
    agenda.run(3.0)
    assert ended[2:] == [3]


works = st.tuples(st.floats(0, 1.5), st.integers(0, 2), st.floats(0.001, 0.2))


@settings(deadline=None)
@given(
    st.lists(works, min_size=1, max_size=12),
    st.lists(st.floats(0.1, 3.0), min_size=3, max_size=3),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1.0, 2.0]),
)
def test_a_machine_gives_no_more_than_it_has_and_loses_nothing(starts, quotas, burst, cores):
    units = [unit(q, burst=burst, limit=cores) for q in quotas]
    ends = run(cores, units, [(t, units[i], work) for t, i, work in starts])
    assert set(ends) == set(range(len(starts)))
    assert sum(u.cpu.usage for u in units) == pytest.approx(sum(w for _, _, w in starts))
    first, last = min(t for t, _, _ in starts), max(ends.values())
    assert sum(u.cpu.usage for u in units) <= cores * (last - first) + 1e-6
    for i, (t, _, work) in enumerate(starts):
        assert ends[i] >= t + work - 1e-6
