import orjson
import pytest
from rich.console import Console

from roma.tools.load.outcomes import RequestEnd, RequestResult, outcome_of
from roma.tools.load.report import Distribution, LoadReport, Recorder


def answered(model: str, intended: float, done: float, *, lag: float = 0.0) -> RequestResult:
    return RequestResult(model, 0, RequestEnd.ANSWERED, intended, intended + lag, done, status=200)


def recorded(model: str, sla: float | None, results: list[RequestResult]) -> Recorder:
    recorder = Recorder(model, sla)
    for result in results:
        recorder.sent += 1
        recorder.record(result)
    return recorder


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, RequestEnd.ANSWERED),
        (204, RequestEnd.ANSWERED),
        (302, RequestEnd.FAILED),
        (400, RequestEnd.INVALID),
        (404, RequestEnd.INVALID),
        (413, RequestEnd.INVALID),
        (429, RequestEnd.REJECTED),
        (500, RequestEnd.FAILED),
        (502, RequestEnd.FAILED),
        (503, RequestEnd.REJECTED),
        (504, RequestEnd.REJECTED),
    ],
)
def test_a_status_has_one_outcome(status: int, outcome: RequestEnd) -> None:
    assert outcome_of(status) is outcome


def test_response_time_starts_at_the_intended_send() -> None:
    result = answered("m", 1.0, 4.0, lag=2.0)
    assert result.response_time == 3.0
    assert result.lag == 2.0


@pytest.mark.parametrize(("behind", "warns"), [(1, False), (2, True)])
def test_a_generator_that_falls_behind_says_so(behind: int, warns: bool) -> None:
    results = [answered("m", 0.0, 0.1, lag=0.05 * (i < behind)) for i in range(100)]
    report = LoadReport.of([recorded("m", 0.2, results)], elapsed=1.0, planned=100)
    assert ("left 50 ms or more" in (report.warning or "")) == warns


def test_percentiles_are_nearest_rank() -> None:
    spread = Distribution.of([float(n) for n in range(1000, 0, -1)])
    assert spread is not None
    assert spread.as_dict() == {
        "count": 1000,
        "mean": 500.5,
        "p50": 500.0,
        "p75": 750.0,
        "p90": 900.0,
        "p95": 950.0,
        "p99": 990.0,
        "p99.9": 999.0,
        "max": 1000.0,
    }


def test_percentiles_of_few_samples_are_samples() -> None:
    spread = Distribution.of([0.1, 0.4, 0.2])
    assert spread is not None
    assert spread.percentiles["p50"] == 0.2
    assert spread.percentiles["p75"] == 0.4
    assert spread.max == 0.4
    assert Distribution.of([]) is None


@pytest.fixture
def report() -> LoadReport:
    """Model a: 3 answers (0.1, 0.2 and 0.3 s; SLA 0.2), a 503 and a timeout. Model b: no SLA."""
    a = recorded(
        "a",
        0.2,
        [
            answered("a", 0.0, 0.1),
            answered("a", 0.0, 0.2, lag=0.01),
            answered("a", 0.0, 0.3, lag=0.03),
            RequestResult("a", 3, RequestEnd.REJECTED, 1.0, 1.0, 1.001, status=503),
            RequestResult("a", 4, RequestEnd.FAILED, 1.0, None, 1.0, reason="client limit"),
        ],
    )
    b = recorded(
        "b",
        None,
        [answered("b", 0.0, 9.0), RequestResult("b", 1, RequestEnd.INVALID, 0, 0, 1, status=400)],
    )
    return LoadReport.of([a, b], elapsed=10.0, planned=8)


def test_a_model_is_reported_by_hand(report: LoadReport) -> None:
    a, _ = report.models
    assert (a.sent, a.answered, a.rejected, a.invalid, a.failed, a.lost) == (5, 3, 1, 0, 1, 0)
    assert (a.statuses, a.reasons) == ({200: 3, 503: 1}, {"client limit": 1})
    assert (a.late, a.late_share) == (1, pytest.approx(1 / 3))  # 0.2 s keeps an SLA of 0.2 s
    assert a.answered_per_s == pytest.approx(0.3)
    assert a.response_time is not None
    assert a.response_time.mean == pytest.approx(0.2)  # the quick rejection is not in it
    assert a.send_lag is not None
    assert (a.send_lag.count, a.send_lag.max) == (4, pytest.approx(0.03))  # one was never sent


def test_the_total_sums_and_counts_late_only_under_an_sla(report: LoadReport) -> None:
    total = report.total
    assert (total.sent, total.answered, total.rejected) == (7, 4, 1)
    assert (total.invalid, total.failed, total.lost) == (1, 1, 0)
    assert total.late_share == pytest.approx(1 / 3)  # of a's 3 answers; b promised nothing
    assert total.sla is None
    assert total.response_time is not None
    assert total.response_time.max == pytest.approx(9.0)


def test_an_unrecorded_request_is_lost() -> None:
    recorder = recorded("a", None, [answered("a", 0.0, 0.1)])
    recorder.sent += 1
    assert LoadReport.of([recorder], elapsed=1.0, planned=2).total.lost == 1


def test_without_answers_there_are_no_shares() -> None:
    empty = LoadReport.of([Recorder("a", 0.2)], elapsed=0.0, planned=0)
    assert (empty.total.late_share, empty.total.response_time) == (None, None)
    assert empty.total.answered_per_s == 0.0
    assert orjson.loads(empty.to_json())["total"]["response_time_s"] is None


def test_json_has_units_in_its_names(report: LoadReport) -> None:
    document = orjson.loads(report.to_json())
    assert (document["elapsed_s"], document["planned"]) == (10.0, 8)
    assert [model["model"] for model in document["models"]] == ["a", "b"]
    assert document["models"][0]["statuses"] == {"200": 3, "503": 1}
    assert document["models"][0]["response_time_s"]["p50"] == pytest.approx(0.2)
    assert document["models"][1]["late_share"] is None
    assert document["total"]["lost"] == 0


def test_the_table_shows_every_model_and_the_total(report: LoadReport) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(report.table())
    rows = {
        " ".join(cells[:-3]): cells[-3:]
        for line in capture.get().splitlines()
        if len(cells := line.replace("│", " ").replace("┃", " ").split()) > 3
    }
    assert rows["sent"] == ["5", "2", "7"]
    assert rows["lost"] == ["0", "0", "0"]
    assert rows["p50 ms"] == ["200.00", "9000.00", "200.00"]
    assert rows["p99.9 ms"] == ["300.00", "9000.00", "9000.00"]
    assert rows["late share"] == ["33.33%", "-", "33.33%"]
    assert rows["send lag max ms"] == ["30.00", "0.00", "30.00"]
    assert rows["client limit"] == ["1", "0", "1"]
    assert rows["status 503"] == ["1", "0", "1"]


def test_one_model_needs_no_total() -> None:
    report = LoadReport.of([recorded("a", None, [answered("a", 0, 1)])], elapsed=1.0, planned=1)
    assert len(report.table().columns) == 2
