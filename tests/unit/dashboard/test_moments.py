"""Differences of reports: what happened in the last second."""

from roma.domain.events import Reason, Reject
from roma.domain.exchange import ExchangeReply
from roma.domain.model import ModelSpec, Sla
from roma.ui.dashboard.moments import Moments, record, refusal
from tests.support.supervisor import report


def reply(*reports, epoch="e"):
    return ExchangeReply(epoch, tuple(reports), ())


def between(first, second):
    """Return what happened between two replies about a model."""
    moments = Moments()
    assert moments.take(first, 10.0) == []
    (moment,) = moments.take(second, 11.0)
    return moment


def test_the_first_report_is_only_where_counting_begins():
    now = report(arrivals=103, completed_cpu=2, late=1)
    moment = between(reply(report(arrivals=100)), reply(now))
    assert (moment.arrivals, moment.answered, moment.late, moment.seconds) == (3, 2, 1, 1.0)


def test_a_promise_is_broken_by_late_refused_and_failed_requests():
    now = report(
        completed_cpu=5,
        completed_gpu=3,
        late=2,
        failed=1,
        rejected={"deadline": 4, "queue_full": 6},
    )
    moment = between(reply(report(rejected={"deadline": 4})), reply(now))
    assert moment.rejected == {"queue_full": 6}
    assert moment.refused == 6
    assert moment.broken == 2 + 6 + 1
    assert moment.ended == 8 + 6 + 1


def test_after_a_restart_everything_that_was_counted_is_new():
    moment = between(reply(report(arrivals=100)), reply(report(arrivals=7), epoch="f"))
    assert moment.arrivals == 7


def test_a_model_that_comes_counts_from_nothing_and_one_that_goes_is_gone():
    moments = Moments()
    moments.take(reply(report("a")), 0.0)
    found = moments.take(reply(report("a"), report("b", arrivals=4)), 1.0)
    assert [(m.model, m.arrivals) for m in found] == [("a", 0), ("b", 4)]
    assert [m.model for m in moments.take(reply(report("b")), 2.0)] == ["b"]


def test_a_model_that_goes_and_comes_between_two_reports_counts_from_nothing():
    gone = report(arrivals=100, completed_cpu=90, rejected={"deadline": 9})
    moment = between(reply(gone), reply(report(arrivals=7, completed_cpu=6)))
    assert (moment.arrivals, moment.answered, moment.refused) == (7, 6, 0)


def test_a_line_of_the_decision_log_has_the_promise_and_every_rule_with_its_numbers():
    moment = between(reply(report()), reply(report(arrivals=1)))
    refused = refusal(99.5, Reject(7, Reason.DEADLINE, 0.25, "waited 1 s"))
    line = record(moment, ModelSpec("m", Sla(0.5, alpha=0.5), 1.0), 100.0, [refused])
    assert line["at"] == 100.0
    assert (line["sla"], line["set_point"], line["statistic"]) == (0.5, 0.25, "mean")
    assert line["arrivals"] == 1
    assert line["refusals"] == [
        {
            "at": 99.5,
            "request": 7,
            "reason": "deadline",
            "detail": "waited 1 s",
            "retry_after": 0.25,
        }
    ]
