"""The story of control: what a decision holds, what it says, and that it can be replayed."""

from dataclasses import replace

import orjson
import pytest

from controllers import registry
from controllers.measurement import Demand, Measurement
from roma.domain.model import ModelSpec, Sla
from supervisor.core import DECISIONS_IN_ALL, DECISIONS_KEPT
from supervisor.decision_log import Decision, plain
from supervisor.decision_text import Limit, explain, limit
from supervisor.executables import Managed
from tests.support.decision_log import parsed, replay
from tests.support.supervisor import World, build


def test_a_decision_holds_what_was_applied_and_what_the_kernel_granted_a_period_later():
    world = World(build()).ticks(4)
    decision = world.last
    assert decision.applied == decision.allocation == world.cores
    assert decision.observed is None
    world.cores = 0.3  # somebody else changes the quota
    world.tick()
    assert decision.observed == 0.3
    assert "A period later the kernel granted 0.300: something changed it." in explain(decision)


def test_a_quota_without_burst_is_named():
    decision = World(build()).ticks(4).last
    assert "burst" not in explain(decision)  # not known yet
    decision.burst = 1.0
    assert "burst" not in explain(decision)
    decision.burst = 0.0
    assert explain(decision).endswith("It has no burst: what a quota period leaves unused is lost.")


def test_a_failed_actuation_says_why_and_what_stands():
    world = World(build()).ticks(4)
    stands = world.last.applied
    world.tick(confirm=False, waiting=20)
    world.core.on_failed("m@w", "read-only file system")
    decision = world.last
    assert decision.applied == stands
    assert limit(decision) is Limit.FAILURE
    said = f"That could not be set: read-only file system; {stands:.3f} stand."
    assert explain(decision).endswith(said)


def test_the_recorded_measurements_give_every_demand_again_even_through_json():
    world = World(build())
    story = []
    for tick in range(40):
        if tick == 15:
            world.tick(silent=True)
        elif tick == 25:
            world.epoch = "e2"
            world.tick()
        else:
            world.tick(waiting=tick % 7, response_time=0.2 + 0.05 * (tick % 9))
        story.append(parsed(orjson.dumps(plain(world.last, at=1.5, worker="w"))))
    replayed = list(replay(registry.build("late_share", {}), story))
    assert len(replayed) > 30
    assert all(demand == decision.demand for decision, demand in replayed)
    # Another law would not do: the test can fail.
    others = replay(registry.build("pi", {}), story)
    assert any(demand != decision.demand for decision, demand in others)


def test_a_story_whose_beginning_is_gone_is_replayed_from_where_the_law_begins_anew():
    world = World(build())
    story = [world.ticks(1).last for _ in range(6)]
    assert [d.fresh for d in story if d.measurement is not None][:2] == [True, False]
    assert list(replay(registry.build("late_share", {}), story[-2:])) == []


def test_the_story_is_bounded_for_one_executable_and_for_all_together():
    many = [
        Managed(f"m{i}@w", ModelSpec("m", Sla(0.5), 1.0), 0.1, 4.0, initial=1.0) for i in range(100)
    ]
    core = build(managed=many)
    assert core.status["m0@w"].decisions.maxlen == DECISIONS_IN_ALL // 100
    core.manage(many[:1])
    assert core.status["m0@w"].decisions.maxlen == DECISIONS_KEPT


M = Measurement(
    response_time=0.4,
    oldest_age=0.25,
    arrivals=12,
    completed_gpu=0,
    completed_here=9,
    completed_cpu=9,
    failed=0,
    shed=2,
    waiting=3,
    in_flight=1,
    usage=0.5,
    applied=1.0,
    sla=0.5,
    set_point=0.4,
    deadline=1.0,
)


def decision(**changes):
    base = {
        "time": 5.0,
        "executable": "m@w",
        "model": "m",
        "dt": 1.0,
        "fresh": False,
        "measurement": M,
        "used": 0.5,
        "demand": Demand(1.2, "12 req/s", {"load": 1.0, "integral": 0.2}),
        "minimum": 0.1,
        "maximum": 2.0,
        "floor": 0.25,
        "wanted": 1.2,
        "total": 1.8,
        "capacity": 2.0,
        "exact": 1.2,
        "allocation": 1.2,
        "applied": 1.2,
    }
    return Decision(**base | changes)


def test_a_decision_in_words():
    assert explain(decision()) == (
        "12 requests arrived in 1.0 s; 9 were answered; 3 wait and 1 run, the oldest for 250 ms; "
        "2 were refused because they would have been late. "
        "Response time 400 ms (aim 400 ms, SLA 500 ms). "
        "It needs 1.200 cores = +1.000 load +0.200 integral (12 req/s). "
        "1.80 of the worker's 2.00 cores are wanted: it gets 1.200."
    )


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, Limit.NONE, "it gets 1.200."),
        (
            {"total": 4.0, "exact": 0.6, "allocation": 0.6, "applied": 0.6},
            Limit.WORKER_SHORT,
            "The worker is short (η = 0.50): 4.00 of the worker's 2.00 cores are wanted; it gets "
            "0.600.",
        ),
        (
            {"total": 4.0, "exact": 0.6, "allocation": 0.6, "applied": 0.6, "floor": 0.8},
            Limit.WORKER_SHORT,
            "it gets 0.600, less than the 0.800 with which one request meets the set point.",
        ),
        (
            {"demand": Demand(2.0, "y", {"load": 3.0, "clip": -1.0}), "wanted": 2.0},
            Limit.OWN_MAXIMUM,
            "It needs 2.000 cores = +3.000 load -1.000 its bounds (y).",
        ),
        (
            {"measurement": None, "demand": Demand(None, "dispatcher d did not answer for 1.0 s")},
            Limit.HELD,
            "The cores are held at 1.200: dispatcher d did not answer for 1.0 s.",
        ),
        (
            {"demand": Demand(None, "the cost of a request is not known yet")},
            Limit.HELD,
            "The cores are held at 1.200: the cost of a request is not known yet.",
        ),
        (
            {
                "measurement": None,
                "demand": Demand(1.0, "the executable is not ready", {"initial": 1.0}),
            },
            Limit.NOT_READY,
            "It needs 1.000 cores = +1.000 its start value (the executable is not ready).",
        ),
        (
            {"exact": 1.5, "allocation": 1.5, "applied": 1.5},
            Limit.NONE,
            "cores are wanted, and spare ones are handed out: it gets 1.500.",
        ),
        (
            {"allocation": None, "applied": None},
            Limit.NONE,
            "Its quota was never read, so nothing can be set.",
        ),
        ({"allocation": 1.2, "applied": 0.9}, Limit.NONE, "0.900 are in force."),
    ],
)
def test_what_stands_between_a_law_and_its_cores(changes, kind, words):
    found = decision(**changes)
    assert limit(found) is kind
    assert words in explain(found)


def test_an_idle_model_and_one_without_an_answer():
    nothing = {"arrivals": 0, "waiting": 0, "in_flight": 0, "response_time": None}
    assert explain(decision(measurement=replace(M, **nothing))).startswith(
        "Nothing arrived, waits or runs. It needs"
    )
    silent = replace(M, response_time=None, failed=2.0)
    assert "2 failed. Nothing was answered (aim 400 ms" in explain(decision(measurement=silent))


def test_what_the_record_does_not_say_is_not_said():
    idle = decision(wanted=0.1, floor=0.3, exact=0.05, allocation=0.05, total=4.0, applied=0.05)
    assert "first of all" not in explain(idle)
    hair = decision(total=4.0, exact=1.2 - 1e-12)
    assert limit(hair) is Limit.NONE
    unread = build().status["m@w"]
    assert unread.demand is None


def test_an_executable_that_was_never_read_wants_nothing_rather_than_no_cores():
    world = World(build())
    world.tick(unreadable=True)
    assert world.status.demand is None
    assert "The cores are held: " in explain(world.last)
    assert world.last.used is None


def test_after_a_decision_that_is_missing_nothing_is_replayed_until_the_law_begins_anew():
    world = World(build())
    story = [world.ticks(1).last for _ in range(8)]
    law = registry.build("late_share", {})
    whole = [d.time for d, _ in replay(law, story)]
    assert [d.time for d, _ in replay(law, story[:4] + story[5:])] == [t for t in whole if t < 5]
