"""What `python -m bench variants` makes of answers, without any."""

import json

import pytest

from bench.readers import LARGE, SMALL
from bench.variants import Run, Setting, Told, _by_load, _overall, during, quality, read, row
from roma.tools.load import RequestEnd, RequestResult

TIMES = {
    LARGE: {1: 0.02, 2: 0.03, 4: 0.04, 8: 0.08, 16: 0.1, 32: 0.2},
    SMALL: {1: 0.002, 2: 0.003, 4: 0.004, 8: 0.008, 16: 0.01, 32: 0.02},
}
SETTING = Setting({LARGE: 0.96, SMALL: 0.72}, TIMES, (0.5, 1.5, 0.5), 10.0)


def test_deadlines_and_loads_follow_from_the_large_variants_times():
    assert (SETTING.soft, SETTING.hard) == (pytest.approx(0.15), pytest.approx(0.3))
    assert [(s.rate, s.duration) for s in SETTING.profile.steps] == [
        (pytest.approx(50), 10.0),
        (pytest.approx(150), 10.0),
        (pytest.approx(50), 10.0),
    ]


@pytest.mark.parametrize(
    ("told", "worth"),
    [
        (Told(0.0, 0.15, 200, LARGE), 1.0),
        (Told(0.0, 0.15, 200, SMALL, is_right=True), 0.75),
        (Told(0.0, 0.225, 200, LARGE), 0.5),
        (Told(0.0, 0.225, 200, SMALL), 0.375),
        (Told(0.0, 0.3, 200, LARGE), 0.0),
        (Told(0.0, 0.01, 504), 0.0),
        (Told(0.0, 0.01, 0), 0.0),
    ],
)
def test_an_answer_is_worth_its_variant_at_the_clients_clock(told, worth):
    assert quality(told, SETTING) == pytest.approx(worth)


def test_a_row_counts_the_refused_for_quality_and_for_nothing_else():
    told = [
        Told(0.0, 0.1, 200, LARGE, is_right=True),
        Told(1.0, 0.2, 200, SMALL),
        Told(2.0, 0.3, 504),
        Told(3.0, 0.1, 200, LARGE, is_right=True),
    ]
    found = row(told, SETTING)
    assert found["requests"] == 4
    assert found["quality"] == pytest.approx((1 + 0.75 * 2 / 3 + 0 + 1) / 4)
    assert found["refused"] == pytest.approx(1 / 4)
    for name in ("small", "late"):
        assert found[name] == pytest.approx(1 / 3)
    assert found["right"] == pytest.approx(2 / 3)
    assert (found["p50"], found["p99"]) == (0.1, 0.2)


def test_where_nothing_was_answered_nothing_is_said_of_answers():
    found = row([Told(0.0, 0.3, 504)], SETTING)
    assert (found["quality"], found["refused"]) == (0.0, 1.0)
    assert found["small"] is found["p95"] is found["right"] is None


def test_a_result_is_read_by_who_gave_it_and_by_its_highest_score():
    body = json.dumps({"predictions": [[0.1, 3.0, -2.0]]}).encode()
    answer = f"{SMALL}\n".encode() + body
    good = RequestResult("digits", 3, RequestEnd.ANSWERED, 1.0, 1.0, 1.25, 200, answer=answer)
    assert read(good, [0, 1]) == Told(1.0, 0.25, 200, SMALL, is_right=True)
    assert not read(good, [0, 2]).is_right
    late = RequestResult("digits", 4, RequestEnd.REJECTED, 1.0, 1.0, 1.5, 504)
    assert read(late, [0, 1]) == Told(1.0, 0.5, 504)
    lost = RequestResult("digits", 5, RequestEnd.FAILED, 1.0, 1.0, 1.5, reason="timeout")
    assert read(lost, [0, 1]) == Told(1.0, 0.5, 0)


def test_the_tables_have_a_row_for_each_policy_and_load():
    told = [Told(float(t), 0.1, 200, LARGE) for t in range(30)]
    runs = [Run("fixed", told, 0.1), Run("qos", told, 0.2)]
    overall, by_load = _overall(runs, SETTING), _by_load(runs, SETTING)
    for table in (overall, by_load):
        assert all(len(cells) == len(table.columns) for cells in table.rows)
    assert [cells[0] for cells in overall.rows] == ["fixed", "qos"]
    assert [cells[1:3] for cells in by_load.rows] == 3 * [("fixed", 10), ("qos", 10)]
    assert len(during(told, 10.0, 20.0)) == 10
