"""The supervisor core as lists: replies and readings in, allocations to apply out."""

import math
from dataclasses import replace

import pytest

from roma.domain.exchange import (
    REQUEST,
    ExchangeReply,
    ExchangeRequest,
    ExecutorReport,
    parse,
)
from supervisor.executables import Apply, Managed, Reading
from tests.support.supervisor import M, World, build, reading, reply, report, several


def test_the_first_tick_holds_at_what_the_kernel_grants():
    world = World(build())
    world.cores = 0.7
    assert world.tick() == []
    assert world.status.applied == 0.7
    assert world.why == "dispatcher d answered for the first time"


def test_an_unlimited_executable_starts_from_its_maximum_without_a_jump():
    world = World(build())
    world.cores = None
    (command,) = world.tick()
    assert command == Apply("m@w", 4.0)


def test_a_burst_that_was_lost_is_asked_for_once_and_again_where_it_was_not_set():
    """A container that starts again has its quota from the engine, but no burst."""
    core = build(managed=[Managed("m@w", M, 0.1, 4.0, initial=1.0, burst=1.0)])
    now = 0.0

    def tick(burst, *, applies=True):
        nonlocal now
        now += 1.0
        commands = core.tick({}, {"m@w": Reading(0.7, 0.0, 0, 0, burst=burst)}, now=now)
        for command in commands:
            if applies:
                core.on_applied(command.executable, command.cores)
            else:
                core.on_failed(command.executable, "no answer")
        return commands

    assert tick(0.0, applies=False) == [Apply("m@w", 0.7)]  # seen for the first time
    assert tick(0.0) == [Apply("m@w", 0.7)]  # not set yet
    assert tick(0.0) == []  # set, but not to be had here
    assert tick(0.9995) == []  # whole microseconds
    assert tick(0.0) == [Apply("m@w", 0.7)]  # made anew
    assert tick(None) == []  # unknown
    assert core.status["m@w"].decisions[-2].burst is None


def test_core_seconds_are_what_was_used_where_a_burst_was_beyond_the_quota():
    core = build()
    for now, usage in ((1.0, 0.0), (2.0, 0.2), (3.0, 0.8), (4.0, 0.9)):
        core.tick({}, {"m@w": Reading(0.5, usage, 0, 0)}, now=now)
    assert core.status["m@w"].core_seconds == pytest.approx(0.5 + 0.6 + 0.5)


def test_an_age_that_is_no_number_is_no_reason_to_take_cores_away():
    world = World(build()).ticks(3)
    assert world.tick(oldest_age=math.nan) == []
    assert world.why == "a measured number is not finite"


def test_from_the_second_tick_on_the_law_decides():
    world = World(build())
    world.tick()
    assert world.tick(response_time=0.2)  # twice too fast: some cores go
    assert world.status.applied < 1.0
    world.ticks(40)
    assert world.last.demand.terms["load"] == pytest.approx(0.5)  # ĉλ = 0.05·10


def test_demand_allocation_applied_and_observed_are_four_things():
    world = World(build("static", {"level": "max"}, capacity=2.0))
    world.tick()
    world.cores = 0.9  # somebody else wrote the quota
    world.tick(confirm=False)
    status = world.status
    assert (status.demand, status.allocation) == (4.0, 2.0)
    assert (status.applied, status.observed) == (1.0, 0.9)  # nothing was confirmed


def test_a_reverted_quota_is_applied_again():
    world = World(build("static", {"level": "min"})).ticks(3)
    assert world.tick() == []  # nothing to do
    world.cores = 2.0  # systemd or a runtime reverts it
    assert world.tick() == [Apply("m@w", 0.1)]


def test_a_failed_actuation_is_tried_again_and_the_law_knows_what_stands():
    world = World(build("static", {"level": "min"}))
    world.tick()
    first = world.tick(confirm=False)
    world.core.on_failed("m@w")
    second = world.tick(confirm=False)
    assert first
    assert second
    assert world.status.failures == 1
    assert world.last.measurement.applied == 1.0


def test_what_an_engine_set_after_its_timeout_counts_as_applied():
    """At the maximum nothing is asked for again that could be confirmed."""
    world = World(build("static", {"level": "max"}))
    world.tick()
    (command,) = world.tick(confirm=False)
    world.core.on_failed("m@w", "no answer within 0.33 s")
    assert world.status.applied == 1.0
    world.cores = command.cores  # the engine got round to it
    for _ in range(3):
        assert world.tick() == []
        assert world.status.applied == command.cores == 4.0
    assert world.last.measurement.applied == 4.0
    assert world.core.readings("d")[0].applied == 4.0
    assert world.status.changes == 1
    world.cores = 2.0  # somebody else's quota, for the moment until ours is back
    assert world.tick() == [Apply("m@w", 4.0)]


def test_where_nothing_is_applied_what_others_set_stands():
    """In a dry run a law computes from what its executable really has."""
    world = World(build("static", {"level": "max"}))
    for cores in (1.0, 1.0, 2.5):
        world.cores = cores
        world.tick(confirm=False)
    assert world.last.measurement.applied == 2.5


def test_a_silent_dispatcher_means_hold():
    world = World(build()).ticks(2)
    before = world.status.applied
    assert world.tick(silent=True) == []
    assert world.status.applied == before
    assert world.why == "dispatcher d did not answer for 1.0 s"


def test_a_lost_exchange_loses_no_request_and_invents_none():
    world = World(build()).ticks(5)
    world.tick(silent=True)
    world.rate = 30
    world.tick()
    m = world.last.measurement
    assert m.arrivals == 20  # per second, over both periods
    assert m.usage / m.completed_here == pytest.approx(0.05, rel=0.6)


def test_after_a_long_gap_the_law_holds():
    world = World(build()).ticks(3)
    world.tick(dt=4.0)
    assert world.last.demand.cores is None


def test_a_restarted_dispatcher_starts_counting_at_zero():
    world = World(build()).ticks(3)
    world.arrivals, world.epoch = 0, "e2"
    world.tick()
    assert world.last.measurement.arrivals == 10
    assert world.status.demand > 0.1


def test_a_model_that_was_removed_and_came_again_starts_counting_at_zero():
    """Both between two reports of one dispatcher, of which one was lost perhaps."""
    world = World(build()).ticks(5)
    world.arrivals = 0
    world.tick()
    measurement = world.last.measurement
    assert (measurement.arrivals, measurement.completed_here) == (10, 10)


def test_a_restarted_supervisor_reads_back_and_does_not_jump():
    old = World(build("pi")).ticks(10)
    new = World(build("pi"))
    new.cores, new.arrivals, new.now = old.cores, old.arrivals, 0.0
    assert new.tick() == []
    new.tick()
    assert new.status.applied == pytest.approx(old.cores, abs=0.05)


@pytest.mark.parametrize("law", ["usage", "captain"])
def test_an_unreadable_cgroup_means_hold_to_a_law_of_usage(law):
    world = World(build(law)).ticks(3)
    before = world.status.applied
    world.tick(unreadable=True)
    assert world.status.applied == before
    assert world.why == "the executable's cgroup cannot be read"


def test_other_laws_decide_by_the_requests_while_a_cgroup_cannot_be_read():
    """A pod that is out of quota answers late: it must not wait for cores until it has answered."""
    world = World(build("late_share")).ticks(3)
    before, cost = world.status.applied, world.status.known_cost
    world.arrivals *= 3
    world.tick(unreadable=True)
    assert world.status.applied > 1.5 * before
    assert world.status.known_cost == cost
    assert world.last.used is None
    world.tick()  # the reading covers both periods, as do the requests
    assert world.status.known_cost == pytest.approx(cost)


def test_two_ticks_at_one_moment_teach_no_cost():
    world = World(build("late_share"))
    for dt in (1.0, 1.0, 1.0, 0.0):
        before = world.status.cost
        world.tick(dt=dt)
    assert world.status.cost == before


def test_without_cost_and_reading_cores_may_rise_and_do_not_fall():
    """As where a supervisor begins anew: a pod's second reading is still to come."""
    world = World(build("late_share"))
    world.cores = 3.5
    for _ in range(3):
        world.tick(unreadable=world.now > 0)
    assert world.status.cost.estimate is None
    assert world.status.applied == 3.5
    assert world.why == "the executable's cgroup cannot be read"


@pytest.mark.parametrize(
    ("law", "state", "cores"), [("usage", "busy", 2.0), ("static", "lost", 0.1)]
)
def test_in_a_shortage_one_that_cannot_be_read_keeps_its_share_while_it_serves(law, state, cores):
    """A reading may just be late: a pod that is out of quota answers last."""
    names = ("m@w", "n@w")
    core = build(law, {}, capacity=4.0, managed=several(*names))
    for now in (1.0, 2.0, 3.0):
        states = ("busy", "busy" if now < 3.0 else state)
        states = tuple(ExecutorReport(n, s, 1, 0) for n, s in zip(names, states, strict=True))
        told = ExchangeReply("e1", (report("m"), report("n")), states)
        seen = {n: reading(2.0, usage=2 * now) for n in names}
        if now == 3.0:
            seen["n@w"] = None
        for command in core.tick({"d": told}, seen, now=now):
            core.on_applied(command.executable, command.cores)
    assert core.status["n@w"].decisions[-1].demand.why == "the executable's cgroup cannot be read"
    assert [core.status[n].allocation for n in names] == [4.0 - cores, cores]


@pytest.mark.parametrize(
    ("usage", "cores", "why"),
    [
        (1.0, 1.0, "the executable is not ready"),
        (0.01, 0.1, "the executable is not ready and computes nothing"),
    ],
)
def test_an_executable_that_loads_gets_its_initial_cores_while_it_computes(usage, cores, why):
    core = build()
    loading = reply(state="loading")
    for now in (1.0, 2.0, 3.0, 4.0):
        core.tick({"d": loading}, {"m@w": reading(1.0, usage=usage * now)}, now=now)
    assert core.status["m@w"].allocation == cores
    assert core.status["m@w"].decisions[-1].demand.why == why
    core.tick({"d": loading}, {"m@w": reading(cores, usage=4 * usage + 0.1)}, now=5.0)
    assert core.status["m@w"].allocation == 1.0


def beside_one_that_serves(*states, period=1.0):
    """Let `n` be in these states, one a period, beside `m`; return the status of both."""
    names = ("m@w", "n@w")
    core = build("static", {}, capacity=4.0, managed=several(*names))
    for i, state in enumerate(states, start=1):
        reports = tuple(
            ExecutorReport(n, s, 0, 0) for n, s in zip(names, ("busy", state), strict=True)
        )
        told = ExchangeReply("e1", (report("m"), report("n")), reports)
        used = dict.fromkeys(names, reading(2.0, usage=i * period))
        core.tick({"d": told}, used, now=i * period)
    return (core.status[n] for n in names)


def test_who_loads_takes_no_cores_from_who_serves():
    serving, loading = beside_one_that_serves("loading", "loading", "loading")
    assert (serving.demand, loading.demand) == (4.0, 4.0)
    assert (serving.allocation, loading.allocation) == (3.9, 0.1)


def test_who_has_served_and_is_lost_is_no_newcomer():
    serving, lost = beside_one_that_serves("busy", "busy", "busy", "loading")
    assert lost.decisions[-1].demand.why == "the executable is not ready"
    assert lost.allocation == pytest.approx(serving.allocation)


def test_a_restart_loop_takes_nothing_from_who_serves():
    states = ("busy", "busy", "loading", "busy", "loading", "loading")
    serving, lost = beside_one_that_serves(*states)
    assert (serving.allocation, lost.allocation) == (3.9, 0.1)
    # The next loss long after is no loop.
    serving, lost = beside_one_that_serves(*states[:5], period=200.0)
    assert lost.allocation == pytest.approx(serving.allocation)
    # It crashes while it loads: lost once, and never ready again.
    serving, lost = beside_one_that_serves("busy", "busy", *["loading"] * 59)
    assert lost.allocation == pytest.approx(serving.allocation)
    serving, lost = beside_one_that_serves("busy", "busy", *["loading"] * 62)
    assert (serving.allocation, lost.allocation) == (3.9, 0.1)


def test_counts_of_several_dispatchers_add_up_and_the_worst_age_counts():
    core = build()
    for i in (1, 2):
        a = reply(report(arrivals=10 * i, oldest_age=0.1, waiting=1, response_time=0.2))
        b = reply(report(arrivals=30 * i, oldest_age=0.9, waiting=2, response_time=0.3))
        core.tick({"a": a, "b": b}, {"m@w": reading(1.0, usage=float(i))}, now=float(i))
    m = core.status["m@w"].decisions[-1].measurement
    assert (m.arrivals, m.waiting, m.oldest_age, m.response_time) == (40, 3, 0.9, 0.3)


def test_the_load_is_shared_by_those_that_serve():
    """Not by one that loads, or crashes again and again: it would take cores from those."""
    replicas, smaller = ("m@w", "m@v", "m@u"), ((1.0, "m@v"), (2.0, "m@u"))
    managed = Managed("m@w", M, 0.1, 4.0, initial=1.0, replicas=replicas, smaller=smaller)
    core, seen = build(managed=[managed]), []
    for now, state in enumerate(("loading", "busy", "lost", "suspected"), 1):
        others = (ExecutorReport("m@v", state, 0, 0), ExecutorReport("m@u", "idle", 0, 0))
        found = reply()
        found = replace(found, executors=found.executors + others)
        core.tick({"d": found}, {"m@w": reading(usage=now)}, now=float(now))
        seen.append(core.status["m@w"].decisions[-1].measurement)
    assert seen[0] is None
    assert [m.workers for m in seen[1:]] == [3, 2, 3]
    assert [m.smaller for m in seen[1:]] == [(1.0, 2.0), (2.0,), (1.0, 2.0)]


def test_the_cores_that_a_model_began_with_are_for_others_until_its_first_request():
    """Its cost is unknown; it gives them back by and by if nobody needs them."""
    core = build(managed=several("m@w", "n@w"))

    def tick(now, busy, first):
        models = (
            report("m", arrivals=busy, completed_cpu=busy),
            report("n", arrivals=first, in_flight=first),
        )
        executors = (
            ExecutorReport("m@w", "busy", 1, busy),
            ExecutorReport("n@w", "busy" if first else "idle", first, 0),
        )
        answer = ExchangeReply("e1", models, executors)
        seen = {"m@w": reading(2.0, 0.05 * busy), "n@w": reading(2.0)}
        return {c.executable: c.cores for c in core.tick({"d": answer}, seen, now=now)}

    tick(1.0, 0, 0)
    assert tick(2.0, 70, 0)["m@w"] == pytest.approx(3.6, abs=0.3)
    assert core.status["n@w"].demand + core.status["m@w"].demand > 4.0
    assert core.status["m@w"].allocation == pytest.approx(core.status["m@w"].demand, abs=0.001)
    tick(3.0, 140, 1)
    assert core.status["n@w"].allocation == pytest.approx(core.status["n@w"].demand, abs=0.001)


def test_a_limit_that_nobody_can_mean_keeps_no_other_from_being_confirmed():
    managed = [Managed(n, M, 0.1, 4.0, initial=1.0) for n in ("m@w", "x@w", "y@w")]
    core = build(managed=managed)
    core.tick({"d": reply()}, {"m@w": reading(1e4), "x@w": reading(0), "y@w": reading(2)}, now=1.0)
    sent = REQUEST.dump_json(ExchangeRequest("w", core.readings("d")))
    assert [e.applied for e in parse(REQUEST, sent).executors] == [4096, 0.001, 2]


def test_a_dispatcher_gone_for_good_no_longer_blinds_the_others():
    core = build()
    for i in range(1, 8):
        alive = reply(report(arrivals=10 * i))
        dead = reply(report(arrivals=10 * i)) if i <= 2 else None
        core.tick({"a": alive, "b": dead}, {"m@w": reading(1.0, usage=float(i))}, now=float(i))
        decision = core.status["m@w"].decisions[-1]
        if 3 <= i <= 5:
            assert decision.demand.why.startswith("dispatcher b did not answer")
    assert decision.measurement.arrivals == 10


def test_requests_that_late_clients_give_up_raise_the_margin_of_a_promise_on_the_mean():
    """Their times are in no mean: all answers may be fast because the others were not awaited."""
    world = World(build())
    for i in range(8):
        world.tick(response_time=0.4, mean_time=0.4, cancelled_late=8 * i)
    assert world.last.measurement.given_up == 8
    assert world.status.law_state.x > 0


def test_the_mean_of_several_dispatchers_is_that_of_all_their_answers():
    """A few slow answers of one do not stand for the many of another, as the worst time does."""
    core = build()
    for i in range(1, 3):
        busy = reply(report(completed_cpu=90 * i, response_time=0.1, mean_time=0.1))
        quiet = reply(report(completed_gpu=10 * i, response_time=0.6, mean_time=0.6))
        silent = reply(report(response_time=2.0, mean_time=2.0))
        replies = {"a": silent, "b": busy, "c": quiet}
        core.tick(replies, {"m@w": reading(1.0, usage=float(i))}, now=float(i))
    m = core.status["m@w"].decisions[-1].measurement
    assert m.mean_time == pytest.approx(0.15)
    assert m.response_time == 2.0


def test_requests_refused_as_too_late_reach_the_law_as_violations():
    world = World(build("pi", {"error": "rt", "K": 0.5, "a": 0.5})).ticks(2)
    before = world.status.applied
    world.tick(rejected={"deadline": 5})
    assert world.last.measurement.shed == 5
    world.tick(rejected={"deadline": 9})
    assert world.status.applied > before


def test_throttling_is_a_share_of_the_periods_and_reaches_the_law_as_the_profiled_cost_does():
    core = build(managed=[Managed("m@w", M, 0.1, 4.0, initial=1.0, cost=0.05)])
    core.tick({"d": reply()}, {"m@w": reading(1.0, 0.0, 100, 10)}, now=1.0)
    core.tick({"d": reply()}, {"m@w": reading(1.0, 0.5, 120, 15)}, now=2.0)
    (sent,) = core.readings("d")
    assert (sent.throttled, sent.usage) == (0.25, 0.5)
    assert core.status["m@w"].used == 0.5
    m = core.status["m@w"].decisions[-1].measurement
    assert (m.throttled, m.profile) == (0.25, 0.05)


def test_what_is_available_is_the_maximum_or_what_a_shortage_leaves():
    core = build("static", {"level": "max"}, capacity=8.0)
    core.tick({"d": reply()}, {"m@w": reading(1.0, 0.0)}, now=1.0)
    status = core.status["m@w"]
    assert status.available == status.managed.maximum
    short = build("static", {"level": "max"}, capacity=0.5)
    short.tick({"d": reply()}, {"m@w": reading(1.0, 0.0)}, now=1.0)
    assert short.status["m@w"].available == short.status["m@w"].allocation == 0.5
    assert build().status["m@w"].available is None


def test_throttling_that_nobody_reports_is_unknown_and_not_none():
    core = build()
    for now in (1.0, 2.0):
        seen = replace(reading(1.0, 0.2 * now), throttled=None)
        core.tick({"d": reply()}, {"m@w": seen}, now=now)
    (sent,) = core.readings("d")
    assert (sent.throttled, core.status["m@w"].used) == (None, pytest.approx(0.2))


def test_what_was_read_earlier_counts_from_when_it_was_read():
    core = build()
    for now, usage, age in ((1.0, 0.0, 0.0), (2.0, 0.3, 0.4), (3.0, 0.6, 0.9)):
        core.tick({"d": reply()}, {"m@w": replace(reading(1.0, usage), age=age)}, now=now)
        if usage:
            # 0.3 core-seconds between 1.0 and 1.6, and as many between 1.6 and 2.1.
            assert core.status["m@w"].used == pytest.approx(0.3 / (0.6 if now == 2.0 else 0.5))


def test_a_request_that_outlasts_the_period_costs_all_that_it_used():
    core = build()
    for now, usage, completed, running in (
        (1, 0, 0, 0),
        (2, 1, 0, 1),
        (3, 2, 0, 1),
        (4, 2.4, 1, 0),
    ):
        answer = reply(report(), completed=completed, in_flight=running)
        core.tick({"d": answer}, {"m@w": reading(usage=usage)}, now=now)
    assert core.status["m@w"].cost.estimate == pytest.approx(2.4)


def test_the_profiled_cost_sets_the_floor_before_the_first_answer():
    core = build(managed=[Managed("m@w", M, 0.1, 4.0, initial=1.0, cost=0.2)])
    for now in (1.0, 2.0):
        core.tick({"d": reply()}, {"m@w": reading(1.0)}, now=now)
    assert core.status["m@w"].decisions[-1].floor == pytest.approx(0.2 / 0.4)


def test_a_measured_cost_stays_within_four_times_the_profiled_one():
    core = build(managed=[Managed("m@w", M, 0.1, 4.0, initial=1.0, cost=0.01)])
    world = World(core, cost=10.0).ticks(5)
    assert world.status.cost.estimate == pytest.approx(0.04)


def test_what_is_held_is_not_raised_by_gamma_at_every_tick():
    world = World(build("rules", gamma=0.5)).ticks(10)
    assert world.status.applied == 1.0


def test_who_stays_keeps_its_history_when_others_come_and_go():
    stays, goes = (Managed(f"{name}@w", M, 0.1, 4.0, initial=1.0) for name in ("m", "old"))
    comes = Managed("new@w", M, 0.1, 4.0, initial=1.0)
    core = build(managed=[stays, goes])
    core.tick({"d": reply()}, {"m@w": reading(), "old@w": reading()}, now=0.0)
    core.on_applied("m@w", 0.7)
    core.manage([stays, comes])
    assert list(core.status) == ["m@w", "new@w"]
    assert core.status["m@w"].applied == 0.7
    assert core.status["new@w"].applied is None
    applies = core.tick({"d": reply()}, {"m@w": reading(0.7), "new@w": reading()}, now=1.0)
    assert "old@w" not in [apply.executable for apply in applies]


def test_an_executable_that_cannot_be_read_costs_its_neighbours_nothing():
    managed = several("m@w", "x@w", initial=1.0)
    core = build("static", {"level": "max"}, capacity=4.0, managed=managed)
    for now in (1.0, 2.0, 3.0):
        commands = core.tick({"d": reply()}, {"m@w": reading(), "x@w": None}, now=now)
    assert commands == [Apply("m@w", 4.0)]
