"""Timers: never early, taken back, set anew."""

import asyncio
import time
from contextlib import contextmanager

import pytest

from roma.device.precise import Alarm, sleep_until


@contextmanager
def alarm():
    fired = []
    event = asyncio.Event()

    def on_time():
        fired.append(time.monotonic())
        event.set()

    timer = Alarm(on_time)
    timer.start()
    try:
        yield timer, fired, event
    finally:
        timer.stop()


@pytest.mark.parametrize("delay", [-1.0, 0.0, 0.0007, 0.02])
async def test_an_alarm_is_never_early(delay):
    with alarm() as (timer, fired, event):
        when = time.monotonic() + delay
        timer.set(when)
        await event.wait()
        assert len(fired) == 1
        assert fired[0] >= when


async def test_an_alarm_that_is_taken_back_or_set_anew_does_not_fire_for_the_old_time():
    with alarm() as (timer, fired, event):
        now = time.monotonic()
        timer.set(now + 0.01)
        timer.set(None)
        timer.set(now + 0.02)
        timer.set(now + 0.05)
        await event.wait()
        assert len(fired) == 1
        assert fired[0] >= now + 0.05


async def test_an_alarm_that_fired_can_be_set_again():
    with alarm() as (timer, fired, event):
        for _ in range(3):
            event.clear()
            timer.set(time.monotonic())
            await event.wait()
        assert len(fired) == 3


async def test_an_alarm_that_fires_while_it_is_set_anew_keeps_the_new_time():
    with alarm() as (timer, fired, event):
        now = time.monotonic()
        timer.set(now + 0.001)
        time.sleep(0.005)  # noqa: ASYNC251 - it has fired, and the loop has not looked yet
        timer.set(now + 0.03)
        await event.wait()
        assert fired[0] >= now + 0.03


def test_a_sleep_is_never_too_short():
    when = time.monotonic() + 0.003
    sleep_until(when)
    assert time.monotonic() >= when
