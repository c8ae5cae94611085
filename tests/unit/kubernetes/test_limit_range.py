"""LimitRanges as the API server lists them, reduced to bounds on CPU limits."""

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
        )
    )
    assert found == CpuBounds(least=50, most=2500, ratio=7.5, names=("r0", "r1", "r2"))
    assert str(found) == "≥ 50m and ≤ 2500m and ≤ 7.5 × the request (LimitRange r0, r1, r2)"


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
    ("bounds", "request_", "wanted", "got"),
    [
        (NO_BOUNDS, None, 7, 7),
        (CpuBounds(least=50), 20, 7, 50),
        (CpuBounds(most=800), 20, 900, 800),
        (CpuBounds(ratio=4.5), 21, 900, 94),
        (CpuBounds(ratio=4.5), None, 900, 900),
    ],
)
def test_a_limit_is_clipped_to_what_is_admitted(bounds, request_, wanted, got):
    assert bounds.clip(wanted, request_) == got


@pytest.mark.parametrize("found", [{"items": [{}]}, {"items": [{"spec": {"limits": [1]}}]}])
def test_what_is_no_limit_range_is_refused(found):
    with pytest.raises(ValueError, match="not of LimitRanges"):
        cpu_bounds(found)
