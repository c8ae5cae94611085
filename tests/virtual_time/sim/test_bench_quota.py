"""`bench quota` charges the simulator the core-seconds that the kernel charged."""

import pytest

from bench.quota import Cell, Load, _profile, _simulated, _size


@pytest.mark.parametrize("normal", [-1.0, 0.0, 2.0])
def test_a_plan_of_large_requests_is_not_charged_twice_for_their_size(normal: float) -> None:
    """The kernel's usage contains the sizes, so the mean cost must not contain them again."""
    plan = [(0.0, normal)] * 20
    cell = Cell((Load(20, 0.05, 0.5),), burst=0.0)

    played = _simulated(cell, [plan], [_profile(4.0, 4.0, plan, 0.0)])

    assert played.times[0][-1] == pytest.approx(4.0 / 0.5, abs=0.1)  # one period
    assert played.core_seconds == pytest.approx(4.0, abs=0.1)


def test_what_a_process_uses_outside_of_a_response_does_not_lengthen_the_simulated_one() -> None:
    """A kernel's response is the waking and the work; taking and answering use cores beside it."""
    plan = [(at / 10, 0.0) for at in range(20)]
    asked = 20 * 0.05 * _size(0.0)
    cell = Cell((Load(10, 0.05, 1.0),), burst=0.0)

    played = _simulated(cell, [plan], [_profile(asked + 20 * 0.001, asked, plan, 0.003)])

    assert played.times[0] == pytest.approx([0.003 + asked / 20] * 20)
    assert played.core_seconds == pytest.approx(2.0, abs=0.1)  # granted: more than was used
