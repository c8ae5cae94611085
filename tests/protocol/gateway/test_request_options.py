"""What clients ask of an answer's quality: read, or refused in one line."""

import pytest

from dispatcher.live.planned import request_options
from roma.domain.model import ModelSpec, Sla
from roma.domain.variants import RequestOptions, Variant
from roma.tensors.errors import RequestError

VARIANTS = (Variant("large", 1.0), Variant("small", 0.93))
SPEC = ModelSpec("m", Sla(0.5), 1.0, variants=VARIANTS)
PLAIN = ModelSpec("m", Sla(0.5), 1.0)
NOW, TODAY = 100.0, 1_700_000_000.5


def read(spec=SPEC, deadline=None, **headers):
    named = {f"x-{key.replace('_', '-')}".encode(): v.encode() for key, v in headers.items()}
    assert request_options.are_in(named) == bool(headers)
    return request_options.read(named, spec, deadline, now=NOW, today=TODAY)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"roma_variant": "small"}, RequestOptions(None, "small", 0.0)),
        ({"roma_min_accuracy": "0.93"}, RequestOptions(None, None, 0.93)),
        ({"roma_min_accuracy": "1"}, RequestOptions(None, None, 1.0)),
        ({"roma_variant": "small", "roma_min_accuracy": "0.9"}, RequestOptions(None, "small", 0.9)),
        ({"request_soft_timeout_ms": "250"}, RequestOptions(100.25, None, 0.0)),
    ],
)
def test_terms_are_what_headers_say(headers, expected):
    assert read(**headers) == (expected, 0.0)


@pytest.mark.parametrize(
    ("start", "spent"),
    [
        ("t=1700000000.25", 0.25),
        ("t=1700000000", 0.5),
        ("1700000000250", 0.25),
        ("t=1700000000250000", 0.25),
        ("t=1700000001", 0.0),
        ("t=1600000000", 100_000_000.5),
    ],
)
def test_time_on_the_way_is_taken_from_the_deadlines(start, spent):
    found, taken = read(request_start=start)
    assert taken == pytest.approx(spent)
    assert (found.soft is None) == (spent == 0)
    if spent:
        assert found.soft == pytest.approx(NOW + max(0.0, 0.5 - spent))


def test_time_on_the_way_is_taken_from_a_soft_deadline_too():
    found, spent = read(request_start="t=1700000000.4", request_soft_timeout_ms="250")
    assert (found.soft, spent) == (pytest.approx(NOW + 0.15), pytest.approx(0.1))


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ({"roma_variant": "tiny"}, "X-Roma-Variant: tiny: must be one of large, small"),
        ({"roma_variant": ""}, "X-Roma-Variant: : must be one of large, small"),
        (
            {"roma_variant": "small", "roma_min_accuracy": "0.95"},
            "X-Roma-Min-Accuracy: 0.95: must be ≤ 0.93, the accuracy of small",
        ),
        *(
            (
                {"roma_min_accuracy": text},
                f"X-Roma-Min-Accuracy: {text}: must be a number, > 0 and ≤ 1",
            )
            for text in ("0", "-1", "nan", "inf", "1.01", "x", "", "0,9", "1e-1", "0.9,0.8")
        ),
        *(
            (
                {"request_soft_timeout_ms": text},
                f"X-Request-Soft-Timeout-Ms: {text}: must be a whole number of milliseconds, "
                "1 to 999999999",
            )
            for text in ("0", "-5", "1.5", "x", "", "1000000000", "5,5")
        ),
        *(
            (
                {"request_start": text},
                f"X-Request-Start: {text}: must be t= and a time in seconds since 1970, milli- or "
                "microseconds as well",
            )
            for text in ("", "t=", "now", "t=5", "t=-1700000000", "t=1e9", "t=nan", "t=17000000000")
        ),
    ],
)
def test_what_makes_no_sense_is_refused(headers, fault):
    with pytest.raises(RequestError) as refused:
        read(**headers)
    assert str(refused.value) == fault


def test_a_soft_deadline_is_within_the_hard_one():
    assert read(deadline=0.25, request_soft_timeout_ms="250")[0].soft == 100.25
    with pytest.raises(RequestError, match=r"Soft-Timeout-Ms: 251: must be ≤ X-Req.*-Ms \(250\)"):
        read(deadline=0.25, request_soft_timeout_ms="251")


def test_no_variant_is_as_accurate():
    spec = ModelSpec("m", Sla(0.5), 1.0, variants=VARIANTS[1:])
    with pytest.raises(RequestError, match=r"1: must be ≤ 0\.93, the accuracy of small"):
        read(spec, roma_min_accuracy="1")


@pytest.mark.parametrize("name", ["X-Roma-Variant", "X-Roma-Min-Accuracy"])
def test_a_model_without_variants_has_none_to_choose(name):
    key = name.removeprefix("X-").replace("-", "_").lower()
    with pytest.raises(RequestError, match=f"{name}: 1: must be absent: model m has no variants"):
        read(PLAIN, **{key: "1"})
    assert read(PLAIN, request_soft_timeout_ms="1")[0].soft == NOW + 0.001
