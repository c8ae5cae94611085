"""`bench quota` charges the simulator the core-seconds that the kernel charged."""

import pytest

from bench.quota import Cell, Load, _profile, _simulated


@pytest.mark.parametrize("normal", [-1.0, 0.0, 2.0])
def test_a_plan_of_large_requests_is_not_charged_twice_for_their_size(normal: float) -> None:
    """The kernel's usage contains the sizes, so the mean cost must not contain them again."""
    plan = [(0.0, normal)] * 20
    cell = Cell((Load(20, 0.05, 0.5),), burst=0.0)

    played = _simulated(cell, [plan], [_profile(4.0, plan, 0.0)])

    assert played.times[0][-1] == pytest.approx(4.0 / 0.5, abs=0.1)  # one period
    assert played.core_seconds == pytest.approx(4.0, abs=0.1)
