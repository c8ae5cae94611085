"""`roma status`, `roma top` and `roma explain` as a user starts them."""

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from roma.cli.dashboard_table import Screen, clock, dashboard
from tests.support.http_server import answering

MODEL = {
    "model": "photos",
    "state": "late",
    "why": "900 ms of 500 ms: worker w is short [bold]",
    "sla": 0.5,
    "response_time": 0.9,
    "arrivals": 42.0,
    "waiting": 5,
    "in_flight": 2,
    "gpu_share": 0.25,
    "demanded": 1.5,
    "allocated": 1.2,
    "applied": 1.2,
    "used": 1.1,
    "throttled": 0.5,
    "oldest_age": 0.4,
    "executables": [{"device": "cpu"}, {"device": "gpu"}],
    "late_share": 0.031,
}
WORKER = {
    "worker": "w",
    "answers": True,
    "silent_for": 0.0,
    "error": "",
    "mode": "control",
    "capacity": 2.0,
    "demanded": 3.0,
    "applied": 2.0,
    "used": 1.5,
    "eta": 0.66,
}
VIEW = {"name": "demo", "at": 1_700_000_000.0, "workers": [WORKER], "models": [MODEL]}
STORY = {
    "decisions": [
        {"at": 1_700_000_001.0, "executable": "photos@w", "words": "It needs 1.5 cores."},
    ],
    "refusals": {
        "photos": [
            {
                "at": 1_700_000_000.5,
                "request": 7,
                "reason": "deadline",
                "detail": "waited 1 s",
                "retry_after": 1,
            }
        ]
    },
    "silent": {"v": "status 500"},
}


def serving(answers):
    """An admin port that answers these paths, and nothing else."""

    def answer(path):
        status, body = answers.get(path.partition("?")[0], (404, {"error": f"no {path}"}))
        return status, body if isinstance(body, bytes) else json.dumps(body).encode()

    return answering(answer)


WIDE = Screen(160)


def shown(view, screen=WIDE):
    console = Console(width=screen.width, record=True, file=io.StringIO())
    console.print(dashboard(view, screen))
    return console.export_text()


def test_the_table_says_who_is_late_and_why():
    text = shown(VIEW)
    assert f"demo 1 of 1 models late  {clock(VIEW['at'])}" in text
    assert "worker w: 3.00 demanded, 2.00 applied, 1.50 used of 2.00 cores  short of cores" in text
    for cell in (
        "▲ photos",
        "900",
        "500",
        "42",
        "5+2",
        "25%",
        "1.50",
        "1.20",
        "1.10",
        "50%",
        "3.1%",
    ):
        assert cell in text
    assert "worker w is short [bold]" in text  # text, not markup


def test_a_model_that_nothing_serves_is_not_called_late():
    gone = MODEL | {"model": "digits", "state": "down", "why": "digits@w is loading"}
    assert "demo 1 of 1 models down  " in shown(VIEW | {"models": [gone]})
    assert "demo 1 of 2 models down, 1 late  " in shown(VIEW | {"models": [gone, MODEL]})


def test_before_the_first_look_there_is_no_time():
    assert shown(VIEW | {"at": 0.0, "models": []}).splitlines()[0].strip() == (
        "demo nothing was looked at yet"
    )


def test_what_is_unknown_is_a_dash_and_a_silent_supervisor_is_said():
    silent = WORKER | {"answers": False, "silent_for": 12.3, "error": "refused", "eta": None}
    quiet = MODEL | {
        "state": "ok",
        "response_time": None,
        "waiting": 0,
        "in_flight": 0,
        "demanded": None,
        "late_share": None,
    }
    text = shown(VIEW | {"workers": [silent], "models": [quiet]})
    assert "all promises kept" in text
    assert "silent for 12 s: refused" in text
    assert text.count(" - ") >= 3


def test_a_small_screen_shows_the_worst_and_counts_the_others():
    models = [MODEL | {"model": f"m{i}"} for i in range(50)]
    text = shown(VIEW | {"models": models}, Screen(height=20))
    assert "m0" in text
    assert "m40" not in text
    assert len(text.splitlines()) <= 20
    assert "more that do better" in text


def test_a_narrow_screen_shows_fewer_numbers_and_the_reason_still():
    text = shown(VIEW, Screen(100))
    assert "throttled" not in text
    assert "▲ photos" in text
    assert "900 ms of 500 ms" in text


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80])
def test_a_number_is_left_out_rather_than_cut(width):
    text = shown(VIEW | {"models": [MODEL | {"model": "photos.2"}]}, Screen(width))
    assert "…" not in text
    assert "900" in text
    assert "3.1%" in text


LONG = "unavailable: photos@w cannot run here: " + " ".join(f"word{i}" for i in range(60)) + " end"


@pytest.mark.parametrize("width", [80, 160])
def test_a_long_reason_is_said_in_full_below_the_table(width):
    models = [MODEL | {"model": f"m{i}", "why": LONG} for i in range(3)]
    text = " ".join(shown(VIEW | {"models": models}, Screen(width)).split())
    assert "…" not in text
    assert text.count(LONG) == 3
    assert f"▲ m2: {LONG}" in text


def test_long_reasons_leave_a_small_screen_what_fits():
    models = [MODEL | {"model": f"m{i}", "why": LONG} for i in range(9)]
    text = shown(VIEW | {"models": models}, Screen(160, height=20))
    assert len(text.splitlines()) <= 20
    assert "more that do better" in text
    assert "m0: unavailable" in text
    assert "end" in text


WAITING = {"response_time": None, "oldest_age": 1.234}
READ_ONLY = "observe-only: read-only"


@pytest.mark.parametrize(
    ("model", "worker", "words", "is_shown"),
    [
        # Throttling that nobody reports is unknown.
        ({"throttled": None}, {}, " unknown ", True),
        ({"throttled": 0.0}, {}, " unknown ", False),
        # Who waits for a first answer shows how long, and nobody else.
        (WAITING, {}, ">1234", True),
        (WAITING | {"waiting": 0, "in_flight": 0}, {}, ">", False),
        ({}, {}, ">", False),
        # The share of GPUs is shown where there are some.
        ({}, {}, "on GPU", True),
        ({"executables": [{"device": "cpu"}]}, {}, "on GPU", False),
        # A worker whose host others have is not called short.
        ({}, {"contended": True}, "its host is busy with others", True),
        ({}, {"contended": True}, "short of cores", False),
        # One that nothing controls is said to be that.
        (
            {},
            {"mode": READ_ONLY, "uncontrolled": READ_ONLY},
            f"not controlled: {READ_ONLY}",
            True,
        ),
        (
            {},
            {"answers": False, "error": "refused", "uncontrolled": "no supervisor"},
            "its cores are not controlled",
            True,
        ),
        ({}, {"mode": "dry-run"}, "not controlled", False),
    ],
)
def test_what_is_shown_of_a_model_and_its_worker(model, worker, words, is_shown):
    text = shown(VIEW | {"models": [MODEL | model], "workers": [WORKER | worker]})
    assert (words in text) is is_shown


def test_status_prints_the_board_or_its_json(roma):
    with serving({"/control/v1/dashboard": (200, VIEW)}) as url:
        assert "photos" in roma("status", "--url", url).stdout
        assert json.loads(roma("status", "--url", url, "--json").stdout) == VIEW


def test_explain_tells_decisions_and_refusals_in_their_order(roma):
    with serving({"/control/v1/decisions": (200, STORY)}) as url:
        done = roma("explain", "photos", "--url", url)
    assert done.returncode == 0
    refused, decided, silent = done.stdout.splitlines()
    assert refused == f"{clock(1_700_000_000.5)} request 7 refused (deadline): waited 1 s"
    assert decided == f"{clock(1_700_000_001)} photos@w It needs 1.5 cores."
    assert silent.startswith("The supervisor of v does not answer (status 500)")


def test_explain_blames_no_supervisor_that_only_decides_less_often(roma):
    nothing = {"decisions": [], "refusals": {"photos": []}, "silent": {}}
    with serving({"/control/v1/decisions": (200, nothing)}) as url:
        done = roma("explain", "photos", "--seconds", "1", "--url", url)
    assert done.stdout == (
        "Nothing was decided for photos in the last 1 s: "
        "no supervisor controls its executables, or its periods are longer.\n"
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"error": "model = x: must be one of photos"}), "model = x: must be one of photos"),
        ((200, b"<html>"), "not a dispatcher's admin port"),
        ((200, []), "not a dispatcher's admin port"),
        ((200, {"predictions": [1]}), "not a dispatcher's admin port"),
        ((404, {"error": "Not found: /control/v1/decisions"}), "not a dispatcher's admin port"),
        ((500, {"oops": 1}), "not a dispatcher's admin port"),
        ((200, {"worker": "w", "at": 1.0, "decisions": []}), "not a dispatcher's admin port"),
        ((200, STORY | {"refusals": None}), "not a dispatcher's admin port"),
    ],
)
def test_what_goes_wrong_is_one_line(roma, answer, message):
    with serving({"/control/v1/decisions": answer}) as url:
        done = roma("explain", "x", "--url", url)
    assert done.returncode == 1
    assert done.stderr.strip() == f"{url}: {message}"


@pytest.mark.parametrize("command", ["status", "top"])
@pytest.mark.parametrize(
    "view", [VIEW | {"models": None}, VIEW | {"models": [{}]}, {"models": [], "workers": []}]
)
def test_a_view_that_lacks_something_is_one_line(roma, command, view):
    with serving({"/control/v1/dashboard": (200, view)}) as url:
        done = roma(command, "--url", url)
    assert (done.returncode, done.stderr) == (1, f"{url}: not a dispatcher's admin port\n")


def test_a_terminal_shows_what_comes_from_far_and_does_not_obey_it(roma):
    odd = "\x1b[2Jit is fine\x9b1m"
    worker = WORKER | {"answers": False, "error": odd}
    answers = {
        "/control/v1/dashboard": (
            200,
            VIEW | {"models": [MODEL | {"why": odd}], "workers": [worker]},
        ),
        "/control/v1/decisions": (
            200,
            {"decisions": [], "refusals": {"photos": []}, "silent": {"w": odd}},
        ),
    }
    with serving(answers) as url:
        done = [roma("status", "--url", url), roma("explain", "photos", "--url", url)]
    answers["/control/v1/decisions"] = (404, {"error": odd})
    with serving(answers) as url:
        done.append(roma("explain", "photos", "--url", url))
    for one in done:
        said = one.stdout + one.stderr
        assert "\\x1b[2Jit is fine\\x9b1m" in said
        assert not set(said) & {"\x1b", "\x9b"}


@pytest.mark.parametrize("at", [1e18, -1e18])
def test_a_time_that_no_calendar_has_is_one_line(roma, at):
    with serving({"/control/v1/dashboard": (200, VIEW | {"at": at})}) as url:
        done = roma("status", "--url", url)
    assert (done.returncode, done.stderr) == (1, f"{url}: not a dispatcher's admin port\n")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8500", "localhost:8500", "ftp://h:1", "http://h:x", f"http://{'h' * 64}:1"]
)
def test_a_url_must_be_one(roma, url):
    done = roma("status", "--url", url)
    assert done.returncode == 2
    assert done.stderr == f"--url = {url}: must be http://host:port or https://host:port\n"


def test_nobody_there(roma):
    done = roma("status", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("http://127.0.0.1:1: no dispatcher answers: ")
    assert done.stderr.endswith("no dispatcher answers: connection refused\n")


# A shell starts what runs in its background with this signal ignored.
TOP = ("env", "--default-signal=INT", sys.executable, "-m", "roma", "top", "--url")


def test_top_prints_one_view_below_the_other_where_there_is_no_terminal():
    with (
        serving({"/control/v1/dashboard": (200, VIEW)}) as url,
        subprocess.Popen([*TOP, url], stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            seen = 0
            while seen < 2:
                line = process.stdout.readline()
                assert line, "it ended"
                seen += line.startswith("demo 1 of 1 models late")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


@contextlib.contextmanager
def on_a_terminal(url, **environment):
    """Run `roma top` until Ctrl-C; yield a function that waits for a text and returns all of it."""
    main, terminal = pty.openpty()
    seen = bytearray()

    def until(text, times=1):
        while seen.count(text.encode()) < times:
            assert select.select([main], [], [], 60)[0], seen
            seen.extend(os.read(main, 4096))
        return seen

    process = subprocess.Popen(
        [*TOP, url],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | environment,
    )
    try:
        yield until
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
        os.close(terminal)


def test_top_goes_on_when_the_dispatcher_does_not_answer_and_ends_with_ctrl_c():
    with contextlib.ExitStack() as dispatcher:
        url = dispatcher.enter_context(serving({"/control/v1/dashboard": (200, VIEW)}))
        with on_a_terminal(url, TERM="xterm", COLUMNS="120") as until:
            until("1 of 1 models late")
            dispatcher.close()
            until("no dispatcher answers")


def test_top_prints_one_view_below_the_other_where_a_terminal_is_dumb():
    with (
        serving({"/control/v1/dashboard": (200, VIEW)}) as url,
        on_a_terminal(url, TERM="dumb") as until,
    ):
        assert b"\x1b" not in until("1 of 1 models late", times=2)
