"""The difference of two clocks, by questions and answers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roma.device_protocol import ClockOffset, Pong


def asked(clock, offset, there, back, at=100.0):
    """Ask at `at`; the question takes `there` seconds and the answer `back`."""
    clock.add(Pong(at, at + there + offset), at + there + back)


def test_nothing_is_known_at_first():
    clock = ClockOffset()
    assert clock.value is None
    assert clock.error == math.inf


def test_equal_ways_give_the_offset_itself():
    clock = ClockOffset()
    asked(clock, 5.0, 0.25, 0.25)
    assert clock.value == 5.0
    assert clock.error == 0.25
    assert clock.to_device(1.0) == 6.0


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        ([(5.0, 0.125, 0.125), (5.0, 2.0, 0.0)], 5.0),  # the fastest one counts
        ([(5.0, 0.0, 0.0), (6.0, 0.5, 0.5), (6.0, 0.5, 0.5)], 6.0),  # old ones are forgotten
    ],
)
def test_of_the_last_answers_the_fastest_counts(answers, value):
    clock = ClockOffset(keep=2)
    for answer in answers:
        asked(clock, *answer)
    assert clock.value == value


seconds = st.floats(0, 1)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(seconds, seconds), min_size=1))
def test_the_offset_is_within_its_error(offset, ways):
    clock = ClockOffset()
    for there, back in ways:
        asked(clock, offset, there, back)
    assert clock.value == pytest.approx(offset, abs=clock.error + 1e-6)
