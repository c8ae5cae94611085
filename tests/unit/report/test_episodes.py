"""When was a promise broken, how badly, and what was in the way: seconds in, episodes out."""

from collections import Counter
from itertools import pairwise

import pytest

from controllers.measurement import Demand, Measurement
from roma.domain.model import ModelSpec, Sla, Statistic
from roma.telemetry.decision_log import DecisionLog
from roma.ui.dashboard.moments import Moment, record
from roma.ui.report.clock import MARKS, Clock, duration, milliseconds
from roma.ui.report.columns import Span
from roma.ui.report.episodes import episodes, main_limit, words
from roma.ui.report.page import gap_notes
from roma.ui.report.read import read
from roma.ui.report.summary import summaries
from roma.ui.report.verdict import share, verdict
from supervisor.decision_log import Decision, plain
from supervisor.decision_text import Limit

START = 1_790_000_000.0
MEASUREMENT = Measurement(0.1, 0.0, 20, 0, 20, 0, 0, 0, 0, 0.5, 1.0, 0.5, 0.4, 1.0)


def second(
    at, *, response=0.1, answered=20, late=0, refused=0, failed=0, waiting=0, age=0.0,
    given_up=0, by_client=0, invalid=0, statistic="p95", budget=None, model="m", seconds=1.0,
):  # fmt: skip
    spec = ModelSpec(model, Sla(0.5, Statistic(statistic), own_budget=budget), deadline=1.0)
    moment = Moment(
        model=model,
        seconds=seconds,
        arrivals=answered + refused + failed + given_up,
        answered_cpu=answered,
        answered_gpu=0,
        invalid=invalid,
        late=late,
        rejected={"deadline": refused} if refused else {},
        failed=failed,
        cancelled=given_up,
        cancelled_late=given_up,
        rejected_by_client=by_client,
        waiting=waiting,
        in_flight=0,
        oldest_age=age,
        response_time=response,
        mean_time=response,
    )
    return record(moment, spec, START + at, [])


def decision(at, *, wanted=1.0, total=1.0, failure=None, seen=True, model="m", worker="w"):
    exact = wanted if total <= 4.0 else wanted * 4.0 / total
    d = Decision(
        time=at,
        executable=f"{model}@{worker}",
        model=model,
        dt=1.0,
        fresh=False,
        measurement=MEASUREMENT if seen else None,
        used=0.5,
        demand=Demand(wanted if seen else None, f"at {at}", {"load": wanted} if seen else {}),
        minimum=0.1,
        maximum=4.0,
        floor=0.1,
        wanted=wanted,
        total=total,
        capacity=4.0,
        exact=exact,
        allocation=exact,
        applied=exact,
        failure=failure,
        observed=exact,
    )
    return plain(d, at=START + at, worker=worker, law="pi")


@pytest.fixture
def run(tmp_path):
    def made(seconds, decisions=()):
        story = DecisionLog(tmp_path)
        story.write("models", seconds)
        story.write("decisions-w", decisions)
        return read(tmp_path)

    return made


def said(found):
    """Return the sentences of a run's verdict."""
    return verdict(found, summaries(found), episodes(found), Clock(found.whole, virtual=False))


def calm_but(changes, length=30, **always):
    """Seconds that end at 1, 2, …; `changes` of some of them."""
    return [second(t, **{**always, **changes.get(t, {})}) for t in range(1, length + 1)]


SLOW = {"response": 0.9, "late": 10}


@pytest.mark.parametrize(
    ("changes", "statistic", "expected"),
    [
        ({}, "p95", []),
        ({5: SLOW}, "p95", [(4, 5)]),
        ({5: SLOW, 6: SLOW, 7: SLOW}, "p95", [(4, 7)]),
        ({5: SLOW, 10: SLOW}, "p95", [(4, 10)]),  # four good seconds between them: one episode
        ({5: SLOW, 11: SLOW}, "p95", [(4, 5), (10, 11)]),
        ({1: SLOW, 30: SLOW}, "p95", [(0, 1), (29, 30)]),
        ({5: {"late": 1}}, "p95", []),  # one of 20 may be late
        ({5: {"late": 2}}, "p95", [(4, 5)]),
        ({5: {"late": 1}}, "p99", [(4, 5)]),
        ({5: {"late": 1}}, "each", [(4, 5)]),
        ({5: {"late": 5}}, "mean", []),  # the mean was within the SLA
        ({5: {"refused": 1}}, "mean", [(4, 5)]),
        ({5: {"failed": 1}}, "mean", [(4, 5)]),
        ({5: {"failed": 1}}, "p95", []),
        ({5: {"failed": 2}}, "p95", [(4, 5)]),
        ({5: {"response": None, "answered": 0, "waiting": 3, "age": 0.6}}, "p95", [(4, 5)]),
        ({5: {"response": None, "answered": 0, "waiting": 3, "age": 0.4}}, "p95", []),
        ({5: {"response": 0.5}}, "p95", []),  # as long as was promised
    ],
)
def test_broken_seconds_become_episodes(run, changes, statistic, expected):
    found = episodes(run(calm_but(changes, statistic=statistic)))
    spans = sorted((e.span.start - START, e.span.end - START) for e in found)
    assert spans == [pytest.approx(span) for span in expected]


def test_an_episode_does_not_reach_across_what_is_not_recorded(run):
    seconds = [second(t, **SLOW) for t in (1, 2, 3, 6, 7)]
    found = run(seconds)
    assert found.models["m"].gaps == [Span(START + 3, START + 5)]
    assert sorted(e.span.start - START for e in episodes(found)) == [0, 5]


def test_one_late_look_is_no_gap(run):
    found = run([second(1, **SLOW), second(3.2, seconds=2.2, **SLOW)])
    assert found.models["m"].gaps == []
    (episode,) = episodes(found)
    assert episode.bad == pytest.approx(3.2)


def test_an_episode_adds_up_and_knows_its_worst_second(run):
    worse = {"response": 1.2, "late": 20, "refused": 7}
    (episode,) = episodes(run(calm_but({5: SLOW, 6: worse, 8: SLOW})))
    assert (episode.ended, episode.late, episode.refused, episode.failed) == (87, 40, 7, 0)
    assert (episode.worst, episode.worst_at - START) == (1.2, 6)
    assert (episode.span.seconds, episode.bad) == (4, 3)
    assert episode.broken_share == pytest.approx(47 / 87)


def test_the_worst_episode_is_that_with_most_broken_promises(run):
    changes = {5: {"response": 3.0, "late": 2}, 20: SLOW}
    assert [e.span.end - START for e in episodes(run(calm_but(changes)))] == [20, 5]


def test_the_share_of_an_episode_is_of_what_broke_its_promise(run):
    """Its requests were given up when too late: none was late, refused or failed."""
    (episode,) = episodes(run(calm_but({5: {"given_up": 20, "refused": 4, "by_client": 4}})))
    assert (episode.broken, episode.ended, episode.given_up, episode.refused) == (20, 40, 20, 0)


@pytest.mark.parametrize(
    ("always", "told", "kept"),
    [
        ({"given_up": 20}, 0.5, False),
        ({"refused": 20, "by_client": 20}, 0.0, True),
        ({"refused": 20, "by_client": 20, "statistic": "mean"}, 0.0, True),
        ({"invalid": 15, "late": 1}, 0.2, False),
    ],
)
def test_the_share_that_is_told_is_the_one_that_was_judged(run, always, told, kept):
    found = run(calm_but({}, **always))
    (model,) = summaries(found)
    assert (model.broken_share, model.kept) == (told, kept)
    assert bool(episodes(found)) is not kept


def test_answers_that_refuse_the_input_do_not_weigh_in_a_mean(run):
    refused = {t: {"response": 1.0, "answered": 100, "invalid": 99} for t in range(1, 16)}
    (model,) = summaries(run(calm_but(refused, answered=100, statistic="mean")))
    assert model.mean == pytest.approx((15 * 1.0 + 1500 * 0.1) / 1515)
    assert model.kept is True


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({Limit.NONE: 5}, Limit.NONE),
        ({Limit.NONE: 30, Limit.WORKER_SHORT: 9}, Limit.NONE),
        ({Limit.NONE: 30, Limit.WORKER_SHORT: 10}, Limit.WORKER_SHORT),
        ({Limit.OWN_MAXIMUM: 3, Limit.WORKER_SHORT: 4}, Limit.WORKER_SHORT),
        ({Limit.HELD: 2, Limit.FAILURE: 2, Limit.NOT_READY: 2}, Limit.FAILURE),
    ],
)
def test_the_main_limit_is_the_commonest_that_matters(limits, expected):
    assert main_limit(Counter(limits)) is expected


def test_only_decisions_of_that_time_and_model_count(run):
    decisions = [
        d
        for t in range(30)
        for d in (
            decision(t, wanted=3.0, total=6.0 if 8 <= t < 12 else 3.0),
            decision(t, model="other", failure="no"),
        )
    ]
    found = run(calm_but({10: SLOW, 11: SLOW, 12: SLOW}), decisions)
    (episode,) = episodes(found)
    # In force between 9 s and 12 s: those of 9, 10, 11 and, at the last moment, 12.
    assert episode.limits == {Limit.WORKER_SHORT: 3, Limit.NONE: 1}
    told = words(found, episode)
    assert [(w.when, w.decision.demand.why) for w in told] == [
        ("at its beginning", "at 9"),
        ("at its worst", "at 10"),
    ]
    assert said(found)[0] == "1 of 1 promise kept."  # 30 of 600 were late: as many as p95 lets pass


def test_the_verdict_names_who_broke_it_when_and_why(run):
    changes = dict.fromkeys(range(10, 22), SLOW)
    decisions = [decision(t, wanted=3.0, total=6.0) for t in range(30)]
    seconds = calm_but(changes) + calm_but({}, model="fine")
    found = run(seconds, decisions)
    assert said(found) == [
        "1 of 2 promises kept.",
        "m broke its promise in 20 % of requests, mostly between 14:13:29 and 14:13:41, "
        "because worker w was short of cores.",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (SLOW, "(900 ms, promised 500 ms)"),
        ({"refused": 5}, "(20 % of requests broke the promise)"),  # its answers were in time
    ],
)
def test_a_brief_episode_is_told_by_what_was_broken(run, change, told):
    found = run(calm_but({5: change}))
    assert said(found)[1] == (
        "Over the whole run m kept within what was promised in spite of 1 episode "
        f"from 14:13:24 to 14:13:25 {told}."
    )


def test_a_model_whose_requests_only_wait_kept_nothing(run):
    hung = {"model": "hung", "answered": 0, "response": None, "waiting": 5}
    found = run(calm_but({}) + [second(t, **hung, age=float(t)) for t in range(1, 31)])
    assert said(found) == [
        "1 of 1 promise kept.",
        "Of 1 model no request counted.",
    ]


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        (calm_but({}, answered=0, response=None), "No request counted"),
        (calm_but({}), "1 of 1 promise kept."),
        (calm_but({5: {"refused": 20}}, statistic="mean"), "1 of 1 promise kept."),
        (calm_but({}, refused=20, statistic="mean"), "0 of 1 promise kept."),
        (calm_but({5: {"late": 1}}, statistic="each"), "0 of 1 promise kept."),
        (calm_but({5: {"late": 6}}, statistic="p99"), "1 of 1 promise kept."),
        (calm_but({5: {"late": 7}}, statistic="p99"), "0 of 1 promise kept."),
    ],
)
def test_a_promise_is_kept_within_what_its_statistic_lets_pass(run, seconds, first):
    found = run(seconds)
    assert said(found)[0].startswith(first)


@pytest.mark.parametrize(
    ("statistic", "budget", "promise"),
    [
        ("p99", 0.02, "98 % ≤ 500 ms"),
        ("p95", 0.3, "70 % ≤ 500 ms"),
        ("p99", None, "99 % ≤ 500 ms"),
        ("p99", 0.0005, "99.95 % ≤ 500 ms"),
        ("p99", 1e-6, "99.9999 % ≤ 500 ms"),
        ("each", None, "each ≤ 500 ms"),
        ("mean", None, "mean ≤ 500 ms"),
    ],
)
def test_a_promise_is_named_by_its_budget_not_by_the_statistic_of_control(
    run, statistic, budget, promise
):
    (found,) = summaries(run([second(1, statistic=statistic, budget=budget)]))
    assert found.promise == promise


def test_a_clock_that_was_set_is_a_gap_and_has_few_marks(run):
    jump = 1.8e9  # 57 years
    found = run([second(t) for t in (1, 2, jump + 3, jump + 4)])
    clock = Clock(found.whole, virtual=False)
    assert 2 <= len(clock.marks()) <= MARKS + 1
    (note,) = gap_notes(found, clock)
    assert note.startswith(
        "2026-09-21 14:13 to 2083-10-05 22:13 (500000 h 0 min): no requests of m"
    )
    assert note.endswith("or its clock was set.")


def test_without_decisions_nothing_is_guessed_about_cores(run):
    found = run(calm_but(dict.fromkeys(range(10, 22), SLOW)))
    (episode,) = episodes(found)
    assert episode.limit is None
    assert words(found, episode) == []
    assert said(found)[1].endswith("and nothing is recorded of its cores then.")


def test_gaps_in_the_decisions_add_no_core_seconds(run):
    decisions = [decision(t) for t in (*range(10), *range(20, 30))]
    track = run(calm_but({}), decisions).executables["w/m@w"]
    assert track.gaps == [Span(START + 10, START + 20)]
    assert track.applied_seconds == pytest.approx(20.0)


def test_a_single_missed_tick_is_no_gap_what_was_applied_stood(run):
    decisions = [decision(t) for t in (0, 1, 2, 4, 5, 6)]
    track = run(calm_but({}), decisions).executables["w/m@w"]
    assert track.gaps == []
    assert track.applied_seconds == pytest.approx(7.0)


def test_periods_that_end_early_make_no_gap_of_whole_ones(run):
    """Three of four ticks came early: the usual time between two is less than half a period."""
    at = [second + early for second in range(0, 40, 2) for early in (0, 0.25, 0.5, 1.0)]
    steps = [1.0, *(after - before for before, after in pairwise(at))]
    decisions = [decision(t) | {"dt": dt, "period": 1.0} for t, dt in zip(at, steps, strict=True)]
    track = run(calm_but({}), decisions).executables["w/m@w"]
    assert track.gaps == []
    assert track.used_seconds == pytest.approx(0.5 * 40.0)
    assert track.applied_seconds == pytest.approx(40.0)


def test_a_reading_covers_the_early_decisions_that_had_none(run):
    read = (None, 0.5, None, None, 0.8, None)
    decisions = [decision(t) | {"dt": 1.0, "used": u} for t, u in enumerate(read)]
    track = run(calm_but({}), decisions).executables["w/m@w"]
    assert track.used_seconds == pytest.approx(2 * 0.5 + 3 * 0.8)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 %"), (0.0004, "< 0.1 %"), (0.014, "1.4 %"), (0.14, "14 %")]
)
def test_a_share_is_never_rounded_to_nothing(value, text):
    assert share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0.4 s"), (5, "5 s"), (61, "1 min 1 s"), (120, "2 min"), (7300, "2 h 1 min")],
)
def test_durations(value, text):
    assert duration(value) == text


def test_response_times():
    assert [milliseconds(t) for t in (None, 0.0042, 12.0)] == ["–", "4 ms", "12.0 s"]


def test_clocks():
    real = Clock(Span(START, START + 100), virtual=False)
    assert real.between(Span(START, START + 61)) == "14:13:20 to 14:14:21"
    assert real.whole() == "2026-09-21 14:13:20 to 14:15:00 UTC"
    assert len(real.marks()) <= 10
    days = Clock(Span(START, START + 90_000), virtual=False)
    assert days.time(START) == "09-21 14:13:20"
    virtual = Clock(Span(0, 300), virtual=True)
    assert virtual.between(Span(59.6, 131)) == "1:00 to 2:11"
    assert virtual.marks() == [0, 60, 120, 180, 240, 300]
