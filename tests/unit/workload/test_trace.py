from pathlib import Path

import pytest

from roma.workload.errors import WorkloadError
from roma.workload.trace import TraceKind, read_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.txt"


def test_the_kind_is_said_and_never_guessed(trace: Path) -> None:
    trace.write_text("# two seconds, or two requests\n1\n\n2\n")
    assert read_trace(trace, TraceKind.COUNTS) == [0.0, 1.0, 1.5]
    assert read_trace(trace, TraceKind.TIMESTAMPS) == [0.0, 1.0]


def test_a_csv_column_is_named(trace: Path) -> None:
    trace.write_text('when,"who, where",rps\n10.5,a,3\n10.0,b,0\n12.0,c,1\n')
    assert read_trace(trace, TraceKind.TIMESTAMPS, column="when") == [0.0, 0.5, 2.0]
    assert len(read_trace(trace, TraceKind.COUNTS, column="rps", seed=1)) == 4


def test_a_byte_order_mark_belongs_to_no_value(trace: Path) -> None:
    trace.write_text("time\n1\n3\n", encoding="utf-8-sig")
    assert read_trace(trace, TraceKind.TIMESTAMPS, column="time") == [0.0, 2.0]
    trace.write_text("2\n", encoding="utf-8-sig")
    assert read_trace(trace, TraceKind.COUNTS) == [0.0, 0.5]


@pytest.mark.parametrize(
    ("text", "kind", "column", "message"),
    [
        ("1\n-2\n", TraceKind.COUNTS, None, "line 2: count '-2' is not an integer >= 0"),
        ("1\n2.5\n", TraceKind.COUNTS, None, "line 2: count '2.5' is not an integer"),
        ("1234567890\n", TraceKind.COUNTS, None, "'1234567890' is not an .* of at most 9 digits"),
        (
            "10000001\n",
            TraceKind.COUNTS,
            None,
            "asks for 10000001 requests; must be at most 10000000$",
        ),
        ("1\nsoon\n", TraceKind.TIMESTAMPS, None, "line 2: timestamp 'soon' is not a number"),
        ("x" * 1000, TraceKind.TIMESTAMPS, None, f"line 1: timestamp '{'x' * 40}' is not a number"),
        ("1\n10000002\n", TraceKind.TIMESTAMPS, None, "lasts 10000001 s; must be at most 10000000"),
        ("1\nnan\n", TraceKind.TIMESTAMPS, None, "line 2: timestamp 'nan' is not a number"),
        ("0\n1e300\n", TraceKind.TIMESTAMPS, None, "lasts 1e.300 s; must be at most 10000000"),
        ("-1e308\n1e308\n", TraceKind.TIMESTAMPS, None, "lasts inf s; must be at most"),
        ("", TraceKind.COUNTS, None, "asks for 0 requests; must be at least 1"),
        ("0\n0\n", TraceKind.COUNTS, None, "asks for 0 requests"),
        ("9\n99999999\n", TraceKind.COUNTS, None, "asks for 100000008 requests; must be at most"),
        ("a,b\n1,2\n", TraceKind.COUNTS, "c", "no column 'c'; it has a, b"),
        ("a,b\n1,2\n3\n", TraceKind.COUNTS, "b", "line 3: count '' is not an integer"),
        ("", TraceKind.COUNTS, "c", "no column 'c'"),
    ],
)
def test_a_bad_trace_names_line_and_value(
    trace: Path, text: str, kind: TraceKind, column: str | None, message: str
) -> None:
    trace.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read_trace(trace, kind, column=column)


def test_a_missing_or_binary_file_is_an_input_error(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        read_trace(trace, TraceKind.COUNTS)
    trace.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="decode"):
        read_trace(trace, TraceKind.COUNTS)
