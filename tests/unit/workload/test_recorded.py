"""Named traces from a directory; the files here are made up in the shapes of the real ones."""

from pathlib import Path

import pytest

from roma.lab.experiments.clockwork import functions
from roma.workload.errors import WorkloadError
from roma.workload.recorded import RECORDED, TraceWindow, arrivals, directory, rates
from roma.workload.trace import TraceKind, read_counts, read_trace


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "autothrottle_diurnal.txt").write_text("".join(f"{n}\n" for n in range(1, 101)))
    (tmp_path / "autothrottle_bursty.txt").write_text("5\n" * 50 + "0\n" * 10 + "20\n" * 40)
    (tmp_path / "azure_llm_2023_code.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n"
        "2023-11-16 18:17:07.0799600,110,27\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("name", "window", "rate", "expected"),
    [
        ("diurnal", TraceWindow(3, offset=10), None, [11, 12, 13]),  # as it was recorded
        # A mean rate scales the window, not the whole trace.
        ("bursty", TraceWindow(20, offset=50), 2.0, [0.0] * 10 + [4.0] * 10),
        # Speed makes one second of several.
        ("diurnal", TraceWindow(3, speed=4), None, [2.5, 6.5, 10.5]),
        ("diurnal", TraceWindow(3, speed=4), 6.5, [2.5, 6.5, 10.5]),
        ("llm", TraceWindow(4), None, [2, 0, 0, 1]),  # recorded times become counts
    ],
)
def test_rates_of_a_window(
    traces: Path, name: str, window: TraceWindow, rate: float | None, expected: list[float]
) -> None:
    assert rates(name, traces, window, rate=rate) == pytest.approx(expected)


def test_dates_and_times_are_read_as_seconds(traces: Path) -> None:
    times = read_trace(traces / "azure_llm_2023_code.csv", TraceKind.TIMESTAMPS, column="TIMESTAMP")
    assert times == pytest.approx([0.0, 0.052, 3.1], abs=1e-5)


def test_a_zone_is_respected_where_one_is_given(tmp_path: Path) -> None:
    trace = tmp_path / "t"
    trace.write_text("2024-01-01T01:00:00+01:00\n2024-01-01T00:00:02Z\n2024-01-01 00:00:03\n")
    assert read_trace(trace, TraceKind.TIMESTAMPS) == [0.0, 2.0, 3.0]


def test_counts_of_a_trace_of_counts_are_its_lines(traces: Path) -> None:
    assert read_counts(traces / "autothrottle_diurnal.txt", TraceKind.COUNTS)[:3] == [1, 2, 3]


def test_send_times_have_the_rate_and_the_seed_that_were_asked_for(traces: Path) -> None:
    window = TraceWindow(100)
    once = list(arrivals("bursty", traces, window, seed=4, rate=50.0))
    assert once == list(arrivals("bursty", traces, window, seed=4, rate=50.0))
    assert once != list(arrivals("bursty", traces, window, seed=5, rate=50.0))
    assert len(once) == pytest.approx(5000, abs=300)
    assert not [t for t in once if 50 <= t < 60]


def test_the_directory_is_the_option_or_the_environments(traces: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert directory(other, {"ROMA_TRACES": str(traces)}) == other
    assert directory(None, {"ROMA_TRACES": str(traces)}) == traces
    with pytest.raises(WorkloadError, match="give one, or set ROMA_TRACES"):
        directory(None, {"ROMA_TRACES": ""})
    with pytest.raises(WorkloadError, match="must be a directory"):
        directory(tmp_path / "nowhere", {})


@pytest.mark.parametrize(
    ("name", "window", "rate", "message"),
    [
        ("night", (5,), None, "trace night: must be one of diurnal, bursty, llm"),
        ("diurnal", (95, 6), None, "window ends at 101 s; must be <= 100"),
        ("diurnal", (51, 0, 2), None, "window ends at 102 s; must be <= 100"),
        ("bursty", (10, 50), None, "0 requests from 50 to 60 s"),
        ("diurnal", (5,), 0.0, "rate = 0: must be finite and > 0"),
        ("diurnal", (0,), None, "window seconds = 0: must be >= 1"),
        ("diurnal", (5, -1), None, "window offset = -1: must be >= 0"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(
    traces: Path, name: str, window: tuple[int, ...], rate: float | None, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        rates(name, traces, TraceWindow(*window), rate=rate)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="autothrottle_diurnal"):
        rates("diurnal", tmp_path, TraceWindow(5))


def test_the_document_says_where_each_recorded_file_comes_from() -> None:
    rows = (Path(__file__).parents[3] / "docs/lab.md").read_text().splitlines()
    named = " ".join(row.split("|")[1] for row in rows if row.count("|") == 4)
    for file in (*(trace.file for trace in RECORDED.values()), functions.RECORDED):
        assert f"`{file}`" in named
