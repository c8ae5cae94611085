"""How predictable a model is: what is run, how often, and by how many threads."""

import threading

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.device import predictability
from roma.device.predictability import PERCENTILES, WARM_UP, LatencyRow


def test_every_row_runs_what_it_says(hand):
    rows = predictability.run(hand, "m", runs=10, threads=(1, 3))
    assert [(row.threads, row.runs) for row in rows] == [(1, 10), (3, 12)]
    warm = 4 * WARM_UP
    assert hand.done.count(("execute", "m")) == 22 + warm
    assert hand.done[0] == ("load", "m")
    assert hand.done[-1] == ("unload", "m")


def test_latencies_rise_with_their_percentiles(hand):
    (row,) = predictability.run(hand, "m", runs=50)
    latencies = [row.percentiles[p] for p in PERCENTILES]
    assert latencies == sorted(latencies)
    assert row.excess(50.0) == 0
    assert row.excess(100.0) >= 0


def test_percentiles_are_told_by_name():
    row = LatencyRow(1, 4, 2.0, {50.0: 0.1, 99.99: 0.15})
    (told,) = predictability.to_json([row])
    assert told["latency"] == {"p50": 0.1, "p99.99": 0.15}
    assert told["excess"]["p99.99"] == pytest.approx(0.5)


@pytest.mark.parametrize("threads", [1, 4])
def test_what_a_model_raises_is_raised(hand, threads):
    calls = threading.Semaphore(WARM_UP * threads + 2)

    def fail_after_some(*_):
        if not calls.acquire(blocking=False):
            raise ValueError("no more")
        return {}

    hand.execute = fail_after_some
    with pytest.raises(ValueError, match="no more"):
        predictability.run(hand, "m", runs=20, threads=(threads,))


def measured(*options):
    words = ["predictability", "--emulate", "mobile_pose_mobilenetv3:1", "--threads", "1"]
    return CliRunner().invoke(app, [*words, "--runs", "1", *options])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--model", "m=models/m"), "model = m=models/m: must be absent where"),
        (("--device", "cuda:3"), "device = cuda:3: must be absent where it is emulated"),
    ],
)
def test_what_an_emulated_device_would_ignore_is_refused(options, fault):
    assert str(measured(*options).exception).startswith(fault)


def test_an_emulated_device_is_named_as_one():
    assert "mobile_pose_mobilenetv3-0, batch 1, emulated: latency" in measured().stdout
