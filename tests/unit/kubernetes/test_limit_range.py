"""LimitRanges as the API server lists them, reduced to bounds on CPU limits."""

import math

import pytest

from roma.kubernetes.limit_range import NO_BOUNDS, CpuBounds, cpu_bounds


def listed(*limits):
    items = [
        {"metadata": {"name": f"r{i}"}, "spec": {"limits": [one]}} for i, one in enumerate(limits)
    ]
    return {"items": items}


def test_the_tightest_of_all_bounds_counts():
    found = cpu_bounds(
        listed(
            {"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "4", "memory": "1Gi"}},
            {"type": "Container", "min": {"cpu": "20m"}, "maxLimitRequestRatio": {"cpu": "7.5"}},
            {"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "2500m"}},
            {"type": "Pod", "maxLimitRequestRatio": {"cpu": "6"}},
        )
    )
    assert found == CpuBounds(least=50, most=2500, ratio=6, names=("r0", "r1", "r2", "r3"))
    assert str(found) == "≥ 50m and ≤ 2500m and ≤ 6 × the request (LimitRange r0, r1, r2, r3)"


@pytest.mark.parametrize(
    "limits",
    [
        {"type": "Container", "max": {"memory": "1Gi"}, "default": {"cpu": "1"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
    ],
)
def test_bounds_on_other_things_are_none_on_cpu(limits):
    assert cpu_bounds(listed(limits)) == NO_BOUNDS


@pytest.mark.parametrize(
    ("bounds", "request_", "highest"),
    [
        (NO_BOUNDS, None, math.inf),
        (CpuBounds(most=800), 20, 800),
        (CpuBounds(most=800, ratio=4.5), 20, 90),
        (CpuBounds(most=800, ratio=4.5), None, 800),
    ],
)
def test_the_highest_limit_may_depend_on_the_request(bounds, request_, highest):
    assert bounds.highest(request_) == highest


@pytest.mark.parametrize("found", [{"items": [{}]}, {"items": [{"spec": {"limits": [1]}}]}])
def test_what_is_no_limit_range_is_refused(found):
    with pytest.raises(ValueError, match="not of LimitRanges"):
        cpu_bounds(found)
