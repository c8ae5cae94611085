"""Admission by promise: a budget bounds the queue by the response time, a mean by the deadline."""

import pytest

from dispatcher import reports
from roma.domain.events import (
    CoresApplied,
    CoresNeeded,
    Execute,
    ExecutionEnded,
    ExecutorLost,
    Reason,
    Reject,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.model import ModelSpec, Priority, Sla, Statistic

DEADLINE = 4.0
WITHIN = Sla.within(1.0, 0.02)


def promised(sla):
    return ModelSpec("m", sla, DEADLINE)


def measured(harness, sla, services=(0.3,)):
    """Make an executor of one slot that has answered requests of `services` seconds; return the time."""
    harness.on_cpu(promised(sla))
    now = 0.0
    for seconds in services:
        harness.serve("m", now, now + seconds)
        now += seconds
    return now


def admitted(harness, now, count=100, **request):
    """Return how many of `count` requests that come at once are admitted."""
    commands = [command for _ in range(count) for command in harness.arrive("m", now, **request)]
    return count - sum(isinstance(command, Reject) for command in commands)


@pytest.mark.parametrize(
    ("sla", "most"),
    [
        # One runs; those behind it start after 0.3, 0.6 … s and take 0.3 s, as far as is known.
        (WITHIN, 1 + 3),
        (Sla.within(1.0, 0.05), 1 + 3),
        (Sla(1.0, Statistic.EACH), 1 + 13),  # its deadline is the promise, unless the file says
        (Sla(1.0, Statistic.MEAN), 1 + 13),
    ],
)
def test_a_budget_bounds_the_queue_by_the_promise(harness, sla, most):
    now = measured(harness, sla)
    assert admitted(harness, now) == most


def test_a_refusal_names_the_promise_that_would_be_broken(harness):
    now = measured(harness, WITHIN)
    admitted(harness, now, 4)
    (refused,) = harness.arrive("m", now)
    assert refused.reason is Reason.PREDICTED_LATE
    assert refused.detail == "model m: predicted response time 1.200 s > promise 1.000 s"
    assert refused.retry_after == pytest.approx(0.2)


def test_the_head_is_dropped_when_its_turn_comes_too_late_and_another_waits(harness):
    now = measured(harness, WITHIN)
    (run,) = harness.arrive("m", now)
    harness.arrive("m", now)
    harness.arrive("m", now + 0.5)
    # The first one took far longer than predicted: the second could be done after 1.1 s.
    rejected, started = harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=now + 0.8)
    assert (rejected.request, rejected.reason) == (3, Reason.PREDICTED_LATE)
    assert rejected.detail == "waited 0.800 s + predicted service 0.800 s > promise 1.000 s"
    assert isinstance(started, Execute)
    assert started.requests == (4,)


@pytest.mark.parametrize(
    ("sla", "services", "second", "ends", "then"),
    [
        # By what most requests take, not by half of them: the median is 0.3 s, eight of nine end
        # within 0.6 s.
        (WITHIN, (0.3,) * 7 + (0.6, 0.6), 0.1, 0.5, [Reject, Execute]),
        # No other waits: a late answer is worth more to a client than none, and costs nobody.
        (WITHIN, (0.3,), None, 2.0, [Execute]),
        # A mean and each are bounded by the deadline.
        (Sla(1.0, Statistic.MEAN), (0.3,), 0.5, 2.0, [Execute]),
        (Sla(1.0, Statistic.EACH), (0.3,), 0.5, 2.0, [Execute]),
    ],
)
def test_the_head_makes_way_where_it_breaks_a_promise_that_another_keeps(
    harness, sla, services, second, ends, then
):
    now = measured(harness, sla, services)
    (run,) = harness.arrive("m", now)
    harness.arrive("m", now)
    if second is not None:
        harness.arrive("m", now + second)
    commands = harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=now + ends)
    assert kinds(commands) == then


REACTION = 0.2
"""Seconds in which cores follow a load."""


def following(harness, **executor):
    """Make an executor whose cores follow the load."""
    harness.build(promised(WITHIN), reaction=REACTION)
    harness.cpu("m@w", "m", **executor)


def idle(harness, **more):
    """Make an executor with the cores of an idle model: a request takes 0.9 s; return the time."""
    following(harness, cores=1.0, **more)
    harness.serve("m", 0.0, 0.09)
    harness.core.handle(CoresApplied("m@w", 0.1), now=10.0)
    return 20.0


def kinds(commands):
    return [type(command) for command in commands]


def test_what_cores_can_follow_is_admitted_and_they_are_asked_for_once(harness):
    now = idle(harness, most_cores=4.0)
    assert kinds(harness.arrive("m", now)) == [Execute]
    assert harness.arrive("m", now) == [CoresNeeded("m")]
    # With 4 cores 44 are done in a second, after the one that waits.
    assert admitted(harness, now, 100) == 40
    (refused,) = harness.arrive("m", now + 0.9 * REACTION)
    assert refused.detail.startswith("model m: predicted response time with the most cores 1.0")


def test_once_a_controller_has_seen_the_queue_its_cores_are_what_counts(harness):
    now = idle(harness, most_cores=4.0)
    for _ in range(3):
        harness.arrive("m", now)
    (refused,) = harness.arrive("m", now + 1.01 * REACTION)
    assert refused.detail == "model m: predicted response time 2.700 s > promise 1.000 s"


def test_of_the_most_cores_a_dispatcher_counts_on_its_part(harness):
    now = idle(harness, most_cores=4.0, dispatchers=4)
    assert kinds(harness.arrive("m", now)) == [Execute]
    assert harness.arrive("m", now) == [CoresNeeded("m")]
    assert admitted(harness, now, 100) == 10  # what one core serves


@pytest.mark.parametrize("more", [{}, {"most_cores": 4.0, "in_flight": 1, "dispatchers": 1}])
def test_cores_that_cannot_grow_are_not_asked_for(harness, more):
    now = idle(harness, **more)
    if more:  # with one slot, one thread is the most that it uses
        harness.core.handle(CoresApplied("m@w", 1.0), now=now)
        harness.arrive("m", now)
        assert not any(CoresNeeded("m") in harness.arrive("m", now) for _ in range(20))
        return
    harness.arrive("m", now)
    harness.arrive("m", now)
    (refused,) = harness.arrive("m", now)
    assert refused.detail == "model m: predicted response time 1.800 s > promise 1.000 s"


def test_nor_are_they_for_requests_that_start_at_once_or_are_in_time(harness):
    now = idle(harness, most_cores=4.0)
    harness.core.handle(CoresApplied("m@w", 2.0), now=now)
    assert kinds(harness.arrive("m", now)) == kinds(harness.arrive("m", now)) == [Execute]
    assert harness.arrive("m", now) == []


def test_a_queue_that_built_up_anew_asks_again(harness):
    now = idle(harness, most_cores=4.0)
    (first,) = harness.arrive("m", now)
    assert harness.arrive("m", now) == [CoresNeeded("m")]
    assert harness.arrive("m", now + 0.2 * REACTION) == []  # asked already
    ended = harness.core.handle(ExecutionEnded(first.execution, Result.OK), now=now + 0.9)
    assert kinds(ended) == [Reject, Execute]
    assert harness.arrive("m", now + 0.95) == [CoresNeeded("m")]


def test_a_queue_for_which_the_cores_are_still_too_few_asks_again(harness):
    now = idle(harness, most_cores=4.0)
    harness.arrive("m", now)
    assert harness.arrive("m", now) == [CoresNeeded("m")]
    harness.core.handle(CoresApplied("m@w", 0.2), now=now + 0.01)
    assert harness.arrive("m", now + 0.24 * REACTION) == []
    assert harness.arrive("m", now + 0.26 * REACTION) == [CoresNeeded("m")]
    harness.core.handle(CoresApplied("m@w", 4.0), now=now + 0.3 * REACTION)
    assert CoresNeeded("m") not in harness.arrive("m", now + 0.6 * REACTION)


def test_requests_that_ran_on_what_a_quota_had_left_do_not_hide_the_cost_of_a_queue(harness):
    following(harness, cores=0.1, most_cores=4.0)
    _, run = harness.arrive("m", 0.0)
    harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=0.09)  # at full speed
    harness.core.handle(CoresApplied("m@w", 0.1, cost=0.09), now=0.2)
    harness.core.handle(CoresApplied("m@w", 0.1), now=0.4)  # the cost is still known
    assert kinds(harness.arrive("m", 20.0)) == [Execute]
    assert harness.arrive("m", 20.0) == [CoresNeeded("m")]  # 0.18 core-seconds at 0.1 cores


@pytest.mark.parametrize(("after", "first"), [(0.9, 3), (1.1, 4)])
def test_what_the_cores_to_come_could_do_in_time_is_not_dropped(harness, after, first):
    """The kernel may have granted them, and one request ended, before a dispatcher hears of it."""
    now, ended = idle(harness, most_cores=4.0), after * REACTION
    (run,) = harness.arrive("m", now)
    harness.arrive("m", now)
    harness.arrive("m", now + ended - 0.05)  # in time with the present cores, too
    commands = harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=now + ended)
    assert [c.requests for c in commands if isinstance(c, Execute)] == [(first,)]


def test_the_first_request_of_a_model_of_unknown_cost_asks_for_cores(harness):
    following(harness, cores=0.1, most_cores=4.0)
    asked, run = harness.arrive("m", 20.0)
    assert asked == CoresNeeded("m")
    harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=20.1)
    assert kinds(harness.arrive("m", 30.0)) == [Execute]  # it is known now


def test_it_asks_for_none_if_it_has_all_that_a_request_can_use(harness):
    following(harness, cores=1.0, most_cores=4.0)
    assert kinds(harness.arrive("m", 20.0)) == [Execute]


def test_what_a_gpu_may_serve_asks_for_no_cores_because_no_cpu_was_measured(harness):
    harness.build(promised(WITHIN), reaction=REACTION)
    harness.gpu()
    harness.cpu("m@w", "m", cores=0.1, most_cores=4.0)
    assert kinds(harness.arrive("m", 20.0)) == [Execute]


def test_low_priority_requests_ask_for_no_cores(harness):
    now = idle(harness, most_cores=4.0)
    harness.arrive("m", now)
    for _ in range(3):
        assert harness.arrive("m", now, priority=Priority.LOW) == []
    (refused,) = harness.arrive("m", now, deadline=1.0, priority=Priority.LOW)
    assert refused.reason is Reason.PREDICTED_LATE


def test_low_priority_requests_have_the_deadline_alone(harness):
    now = measured(harness, WITHIN)
    harness.arrive("m", now)
    assert admitted(harness, now, 20, priority=Priority.LOW) == 13


def test_a_clients_own_deadline_still_bounds_it(harness):
    now = measured(harness, WITHIN)
    harness.arrive("m", now)
    harness.arrive("m", now)
    (refused,) = harness.arrive("m", now, deadline=0.5)
    assert refused.detail == "model m: predicted response time 0.600 s > deadline 0.500 s"


def given_up(harness, at, *, runs):
    """Cancel a request of an SLA of 1 s `at` seconds after it came; services take 0.3 s."""
    now = measured(harness, WITHIN)
    if not runs:
        harness.arrive("m", now)  # it is ahead, and takes long
    harness.arrive("m", now)
    harness.core.handle(RequestCancelled(harness.next_id), now=now + at)
    return harness.core.queues["m"]


@pytest.mark.parametrize(
    ("at", "runs", "late"),
    [
        (0.5, True, 0),
        (0.9, True, 0),  # it was to end after 0.3 s: it may have in the next moment
        (1.0, True, 0),
        (1.1, True, 1),
        (0.5, False, 0),
        (0.71, False, 1),  # it waits, and would take 0.3 s more
        (0.9, False, 1),
        (1.0, False, 1),
        (1.1, False, 1),
    ],
)
def test_a_client_that_goes_away_too_late_to_be_served_in_time_counts_as_late(
    harness, at, runs, late
):
    queue = given_up(harness, at, runs=runs)
    assert (queue.cancelled, queue.cancelled_late) == (1, late)


@pytest.mark.parametrize(
    ("deadline", "ends", "counted"),
    [
        (0.2, 0.2, 0),  # it runs, and would have ended after 0.3 s: in time, but not for its client
        (1.5, 1.5, 1),  # it could not be in time any more
    ],
)
def test_a_deadline_of_the_clients_own_breaks_no_promise_that_could_be_kept(
    harness, deadline, ends, counted
):
    now = measured(harness, WITHIN)
    harness.arrive("m", now, deadline=deadline, strict=True)
    (rejected,) = harness.core.handle(Woken(), now=now + ends)
    assert rejected.reason is Reason.DEADLINE
    (report,) = reports.reply(harness.core, "", now + 5).models
    assert (report.broken, report.ended) == (counted, 1 + counted)
    assert report.rejected == {"deadline": 1}


def test_a_client_with_a_deadline_of_its_own_is_not_to_blame_for_what_breaks_here(harness):
    now = measured(harness, WITHIN)
    harness.arrive("m", now)
    for _ in range(2):
        harness.arrive("m", now, deadline=0.9, strict=True)
    commands = harness.core.handle(ExecutorLost("m@w"), now=now + 0.1)
    assert [c.reason for c in commands if isinstance(c, Reject)] == [Reason.NO_EXECUTABLE] * 2
    (report,) = reports.reply(harness.core, "", now + 5).models
    assert (report.broken, report.ended) == (3, 4)


def test_what_counts_for_the_promise_is_one_sum(harness):
    now = measured(harness, WITHIN)
    (run,) = harness.arrive("m", now)
    harness.arrive("m", now)
    (second,) = harness.core.handle(ExecutionEnded(run.execution, Result.OK), now=now + 1.2)  # late
    harness.core.handle(ExecutionEnded(second.execution, Result.ERROR), now=now + 1.3)
    harness.serve("m", now + 2, now + 2.1, Result.INVALID)
    harness.arrive("m", now + 3)
    harness.core.handle(RequestCancelled(harness.next_id), now=now + 3.1)  # in time: in neither sum
    (report,) = reports.reply(harness.core, "", now + 5).models
    assert (report.broken, report.ended) == (2, 3)  # the one that `measured` had was in time
