"""Log lines: one record is one line, whatever is in it; and a flood is a few lines."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp.http_exceptions import LineTooLong
from hypothesis import given
from hypothesis import strategies as st

from roma.config import schema
from roma.domain.errors import ConfigError
from roma.telemetry import logs
from roma.tools.demo.ports import free_ports

ROOT = Path(__file__).parents[3]
FORGED = "m\n2026-01-01 00:00:00,000 ERROR all is lost\r\x1b[2J\u2028\x00\x7f\x9b31m\u202e\udcff"


def record(message, *args, exc_info=None, **fields):
    made = logging.LogRecord("a.b", logging.WARNING, "file", 1, message, args, exc_info)
    made.__dict__.update(fields)
    return made


def is_harmless(line):
    return not re.search(
        "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", line
    )


def test_the_console_shows_time_level_and_message():
    line = logs.ConsoleFormatter().format(record("executable %s is lost: %s", "m.0", "refused"))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING executable m.0 is lost: refused", line
    )


def test_json_has_time_level_logger_message_and_the_known_fields():
    made = record(
        "request %s", "r1", model="m", response_time=0.12345678, reason=None, status=504, secret="s"
    )
    made.created = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC).timestamp()
    assert json.loads(logs.JsonFormatter().format(made)) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warning",
        "logger": "a.b",
        "message": "request r1",
        "model": "m",
        "response_time": 0.123457,
        "status": 504,
    }


def test_a_disk_that_is_full_costs_lines_and_nothing_else(capsys):
    with Path("/dev/full").open("wb", buffering=0) as full:
        handler = logs._Handler(io.TextIOWrapper(full, write_through=True))
        handler.emit(record("nobody reads this"))
    assert capsys.readouterr().err == ""
    handler.stream = io.StringIO()
    handler.emit(record("%d", "no number"))
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.fixture
def full_pipe():
    """The handler of a pipe that is full, and its reading end; a line that would wait fails."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, 4096 * b".")
    with open(write, "w", buffering=1) as stream:
        yield logs._Handler(stream), read
    os.close(read)


@pytest.mark.parametrize(
    ("free", "messages"),
    [(0, ["one", "two", "three"]), (4096, ["a" * 10_000])],
    ids=["nothing is free", "one page is free, for a longer line"],
)
def test_a_pipe_that_nobody_reads_stops_nobody(full_pipe, free, messages):
    handler, read = full_pipe
    os.read(read, free)
    for message in messages:
        handler.emit(record(message))
    os.read(read, 2**20)
    handler.emit(record("the next"))
    left_out = f"log lines left out because nothing read them: {len(messages)}"
    assert os.read(read, 2**20).decode().splitlines() == [left_out, "the next"]


def test_a_time_without_a_fraction_has_its_milliseconds_too():
    made = record("x")
    made.created = 0.0
    assert json.loads(logs.JsonFormatter().format(made))["time"] == "1970-01-01T00:00:00.000Z"


def test_what_comes_from_outside_forges_no_line():
    shown = (
        r"m\n2026-01-01 00:00:00,000 ERROR all is lost\r\x1b[2J\u2028\x00\x7f\x9b31m\u202e\udcff"
    )
    line = logs.ConsoleFormatter().format(record("lost: %s", FORGED))
    assert line.endswith(f" WARNING lost: {shown}")
    assert is_harmless(line)
    line = logs.JsonFormatter().format(record("lost: %s", FORGED, request_id=FORGED))
    assert is_harmless(line)
    data = json.loads(line)
    assert data["message"] == f"lost: {shown}"
    assert data["request_id"] == shown


@given(st.text(), st.text())
def test_any_text_is_one_harmless_line(message, field):
    made = record("%s", message, model=field)
    assert is_harmless(logs.ConsoleFormatter().format(made))
    line = logs.JsonFormatter().format(made)
    assert is_harmless(line)
    assert json.loads(line)["logger"] == "a.b"


def test_ordinary_letters_stay_as_they_are():
    line = logs.ConsoleFormatter().format(record("größer als 1 €: \U0001f600"))
    assert line.endswith("größer als 1 €: \U0001f600")


def failed(text):
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


def test_no_line_of_a_traceback_looks_like_a_log_line():
    text = logs.ConsoleFormatter().format(record("bug", exc_info=failed(FORGED)))
    first, *others = text.split("\n")
    assert first.endswith("WARNING bug")
    assert others[0].strip() == "Traceback (most recent call last):"
    assert all(line.startswith("    ") and is_harmless(line) for line in others)
    line = logs.JsonFormatter().format(record("bug", exc_info=failed("a\x1b[1m")))
    assert is_harmless(line)
    assert json.loads(line)["exception"].split("\n")[-1] == r"ValueError: a\x1b[1m"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), object()])
def test_odd_values_break_no_line(number):
    line = json.loads(logs.JsonFormatter().format(record("x", response_time=number)))
    assert line["response_time"] == str(number)


CONFIG = """
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{backend: static, cores: 2, executables: [{{url: "http://127.0.0.1:1", model: m}}]}}]
gateway: {{port: {}, admin_port: {}}}
control: {{port: {}}}
"""


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("{format: xml}", "log.format = xml"),
        ("{level: loud}", "log.level = loud"),
        ("{requests: some}", "log.requests = some"),
        ("{colour: red}", "log.colour = 'red': unknown key"),
    ],
)
def test_the_section_is_checked(section, fault):
    text = CONFIG.format(*free_ports(3)) + f"log: {section}\n"
    with pytest.raises(ConfigError, match=re.escape(fault)):
        schema.parse(text)


def run(tmp_path, program, section):
    """Run a program until it has said something, and return what it said until it was stopped."""
    file = tmp_path / "roma.yaml"
    file.write_text(CONFIG.format(*free_ports(3)) + f"log: {section}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "roma", program, str(file)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    first = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    return (first + process.communicate(timeout=60)[1]).splitlines()


@pytest.mark.parametrize("program", ["dispatcher", "supervisor"])
def test_a_program_logs_as_its_file_says(tmp_path, program):
    lines = run(tmp_path, program, "{format: json}")
    assert lines
    for line in map(json.loads, lines):
        assert {"time", "level", "logger", "message"} <= set(line)
        assert line["logger"].startswith(program)


def test_a_level_leaves_out_what_is_below(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(CONFIG.format(*free_ports(3)) + "log: {level: error}\n")
    code = (
        "import logging, sys\nfrom pathlib import Path\nfrom roma.cli.loading import program\n"
        f"program(Path({str(file)!r}))\n"
        "log = logging.getLogger('x')\nlog.warning('low'), log.error('high')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    (line,) = done.stderr.splitlines()
    assert line.endswith("ERROR high")


@pytest.fixture
def root():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("root")
def test_applied_again_the_last_call_holds(capsys):
    logs.apply("json")
    logs.apply("console", "warning")
    logging.getLogger("x").warning("once")
    logging.getLogger("x").info("never")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING once")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_request_that_is_no_http_leaves_no_traceback(level, capsys):
    logs.apply("console", level)
    for error in (LineTooLong(b"A: x"), ValueError("own fault")):
        logging.getLogger("aiohttp.server").error("Error handling request", exc_info=error)
    text = capsys.readouterr().err
    assert text.count("Error handling request") == (2 if level == "debug" else 1)
    assert "own fault" in text


@pytest.fixture
async def limited(caplog):
    caplog.set_level(logging.INFO)
    return logs.RateLimitedLogger(logging.getLogger("flood"), asyncio.get_running_loop())


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "flood"]


@pytest.mark.looptime
async def test_a_flood_is_one_line_a_second_and_a_count(limited, caplog, looptime):
    for i in range(250):  # 100 a second
        limited.log("model m: rejected", logging.WARNING, "number %d", i, fields={"model": "m"})
        await asyncio.sleep(0.01)
    assert looptime == 2.5
    assert said(caplog) == [
        "number 0",
        "model m: rejected: 99 more like this",
        "model m: rejected: 100 more like this",
    ]
    await asyncio.sleep(10)
    assert said(caplog)[3:] == ["model m: rejected: 50 more like this"]
    counts = [getattr(r, "suppressed", 0) for r in caplog.records]
    assert sum(counts) + 1 == 250  # none is lost
    assert all(r.model == "m" for r in caplog.records)
    limited.log("model m: rejected", logging.WARNING, "number %d", 250)
    assert said(caplog)[4:] == ["number 250"]


@pytest.mark.looptime
async def test_labels_do_not_hold_each_other_up(limited, caplog):
    for label in ("a", "b", "a"):
        limited.log(label, logging.WARNING, "line of %s", label)
    assert said(caplog) == ["line of a", "line of b"]
    limited.close()
    assert said(caplog)[2:] == ["a: 1 more like this"]
    await asyncio.sleep(5)
    assert len(said(caplog)) == 3


@pytest.mark.looptime
async def test_what_is_below_the_level_is_not_even_counted(limited, caplog):
    for _ in range(3):
        limited.log("a", logging.DEBUG, "low")
    await asyncio.sleep(2)
    assert said(caplog) == []
