"""Loads of roma.yaml as streams of send times."""

from itertools import islice, takewhile

import pytest

from roma.config.plant import LoadConfig
from roma.lab.sim.loads import repeated, send_times
from roma.workload.errors import WorkloadError


def until(load, duration, *, seed=1):
    return list(takewhile(lambda t: t < duration, send_times(load, duration, seed=seed)))


def test_a_paced_profile_has_its_rate_in_every_step():
    times = until(LoadConfig(profile="10-0-20", step=5.0, process="paced"), 15.0)
    counts = [sum(5 * i <= t < 5 * i + 5 for t in times) for i in range(3)]
    assert counts == pytest.approx([50, 0, 100], abs=1)
    assert times == sorted(times)


def test_the_last_step_lasts_until_the_end():
    times = until(LoadConfig(profile="0-10", step=5.0, process="paced"), 60.0)
    assert len(times) == pytest.approx(550, abs=1)
    assert min(times) >= 5.0


def test_a_run_shorter_than_its_profile_ends_within_it():
    assert max(until(LoadConfig(profile="10-20", step=30.0), 5.0)) < 5.0


def test_poisson_repeats_with_its_seed_and_only_with_it():
    load = LoadConfig(profile="50")
    assert until(load, 20.0, seed=3) == until(load, 20.0, seed=3)
    assert until(load, 20.0, seed=3) != until(load, 20.0, seed=4)
    # 1000 expected, σ = 32: five of them.
    assert abs(len(until(load, 20.0)) - 1000) < 160


def test_on_off_is_silent_first():
    times = until(LoadConfig(on_off=(20, 5, 10), process="paced"), 45.0)
    assert all(t % 15 >= 10 - 1e-9 for t in times)
    assert len(times) == pytest.approx(300, abs=1)


def test_a_trace_repeats_after_its_last_second(tmp_path):
    trace = tmp_path / "counts.txt"
    trace.write_text("2\n0\n4\n")
    load = LoadConfig(trace=trace)
    first = list(islice(send_times(load, 9.0, seed=1), 12))
    assert [int(t) for t in first] == [0, 0, 2, 2, 2, 2, 3, 3, 5, 5, 5, 5]
    assert first[6:] == pytest.approx([3 + t for t in first[:6]])


@pytest.mark.parametrize("load", ["trace: {}", "profile: 1000"])
def test_a_load_that_would_be_simulated_for_hours_is_refused(tmp_path, load):
    trace = tmp_path / "counts.txt"
    trace.write_text("1000\n1000\n")
    key, value = load.format(trace).split(": ")
    with pytest.raises(WorkloadError, match=r"^2e\+08 requests in 200000 s: must be at"):
        send_times(LoadConfig(**{key: value}), 200_000, seed=1)


def test_silence_at_the_end_of_a_trace_is_part_of_it(tmp_path):
    trace = tmp_path / "counts.txt"
    trace.write_text("4\n0\n0\n")
    times = until(LoadConfig(trace=trace), 9.0)
    assert [int(t) for t in times] == [0] * 4 + [3] * 4 + [6] * 4


def test_repetition_is_exact():
    assert list(islice(repeated([0.5, 1.0], 2.0), 5)) == [0.5, 1.0, 2.5, 3.0, 4.5]
