"""`roma load` as a user starts it: what it refuses in one line, and what Ctrl-C leaves."""

import json
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.tools.load import LoadInputError
from tests.support.http_server import answering


@pytest.fixture
def load(tmp_path):
    body = tmp_path / "body.json"
    body.write_text('{"instances": [1]}')
    options = ["--body", str(body), "--profile", "5", "--step", "1"]
    return lambda *more: CliRunner().invoke(app, ["load", *options, *more])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("",), "model = : must not be empty"),
        (("m", "--timeout", "0"), "timeout 0 s: must be finite and > 0"),
        (("m", "--url", "ftp://x"), "url 'ftp://x': must be http://"),
        (("m", "--url", "http://a..b"), "url 'http://a..b': encoding with 'idna' codec failed"),
        (("m", "--trace-kind", "counts"), "--trace-kind = counts: must be absent with --profile"),
        (("m", "--trace-column", "t"), "--trace-column = t: must be absent with --profile"),
        (("m", "--profile", "0-0"), "--profile = 0-0: asks for 0 requests; must be at least 1"),
    ],
)
def test_what_is_refused_shows_no_progress(load, arguments, line):
    done = load(*arguments)
    assert isinstance(done.exception, LoadInputError)
    assert str(done.exception).startswith(line)
    assert done.output == ""


@pytest.mark.parametrize(("option", "value"), [("--process", "paced"), ("--step", "0.1")])
def test_a_trace_has_send_times_of_its_own(tmp_path, option, value):
    for name, text in (("body.json", "{}"), ("trace.txt", "3\n2\n")):
        (tmp_path / name).write_text(text)
    words = ["load", "m", "--body", str(tmp_path / "body.json")]
    done = CliRunner().invoke(app, [*words, "--trace", str(tmp_path / "trace.txt"), option, value])
    assert str(done.exception) == f"{option} = {value}: must be absent with --trace"


def test_too_much_load_names_its_option(load):
    done = load("m", "--profile", "1e9")
    assert str(done.exception) == "--profile = 1e9: 1000000000 requests: must be at most 10000000"


def test_a_seed_is_not_negative(load):
    done = load("m", "--seed", "-1")
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == 2


@pytest.fixture
def model_server():
    """An address that answers every request, and an event that is set at the first one."""
    called = threading.Event()

    def answer(_):
        called.set()
        return 200, b""

    with answering(answer) as url:
        yield url, called


@pytest.mark.parametrize("model", ["a[/b]", "a[red]b", "a{b}", "größe"])
def test_any_name_of_a_model_is_shown_as_it_is(load, model_server, model):
    url, _ = model_server
    done = load(model, "--url", url, "--profile", "20", "--step", "0.1", "--process", "paced")
    assert done.exit_code == 0, done.exception
    assert done.output.count(model) == 2  # beside the bar, and above the numbers


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_load_reports_what_was_seen_and_does_not_succeed(
    tmp_path, model_server, number, status
):
    url, called = model_server
    body = tmp_path / "body.json"
    body.write_text('{"instances": [1]}')
    # A shell starts what runs in its background with these signals ignored.
    command = ["env", "--default-signal=INT,TERM", sys.executable, "-m", "roma", "load", "m"]
    options = ["--url", url, "--body", str(body), "--process", "paced", "--json"]
    with subprocess.Popen(
        [*command, *options, "--profile", "10", "--step", "3600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert called.wait(60)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    report = json.loads(out)
    sent = report["total"]["sent"]
    assert 1 <= sent < report["planned"] == 36_000
    assert process.returncode == status
    assert f"interrupted: {sent} of 36000 requests were sent\n" in err
