"""Lines of JSON in a directory: appended, bounded, and never in anybody's way."""

import json
import shutil
import threading

import pytest

from roma.domain.errors import ConfigError
from roma.telemetry import decision_log
from roma.telemetry.decision_log import DecisionLog
from tests.support import decision_log as recorded


def lines(directory, name="models"):
    return [json.loads(line) for line in recorded.lines(directory, name)]


def test_a_run_appends_to_the_last_one_unless_it_begins_anew(tmp_path):
    DecisionLog(tmp_path).write("models", [{"a": 1}])
    again = DecisionLog(tmp_path)
    again.write("models", [{"a": 2}, {"a": 3}])
    assert lines(tmp_path) == [{"a": 1}, {"a": 2}, {"a": 3}]
    anew = DecisionLog(tmp_path, fresh=True)
    anew.write("models", [{"a": 4}])
    anew.write("models", [{"a": 5}])
    assert lines(tmp_path) == [{"a": 4}, {"a": 5}]
    assert lines(tmp_path, "decisions-w") == []


def test_a_run_that_begins_anew_leaves_nothing_of_workers_that_decide_no_more(tmp_path):
    last = DecisionLog(tmp_path, largest=1)
    for name in ("models", "decisions-a", "decisions-b"):
        last.write(name, [{"run": 1}])
    (tmp_path / "notes.jsonl").touch()
    anew = DecisionLog(tmp_path, fresh=True)
    anew.write("decisions-a", [{"run": 2}])
    assert {f.name for f in tmp_path.iterdir()} == {"decisions-a.jsonl", "notes.jsonl"}
    assert lines(tmp_path, "decisions-a") == [{"run": 2}]


def test_a_full_file_makes_room_and_the_one_before_goes(tmp_path):
    story = DecisionLog(tmp_path, largest=40)
    for n in range(12):
        story.write("models", [{"n": n}])
    kept = [line["n"] for line in lines(tmp_path)]
    assert kept == list(range(kept[0], 12))
    assert 5 <= len(kept) <= 10
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 2 * 50


def test_what_cannot_be_written_is_said_once_and_goes_on_later(tmp_path, caplog):
    directory = tmp_path / "story"
    story = DecisionLog(directory)
    directory.rmdir()
    directory.touch()  # a file where the directory was
    story.write("models", [{"n": 1}])
    story.write("models", [{"n": 2}])
    assert len([r for r in caplog.records if "lines are lost" in r.message]) == 1
    directory.unlink()
    directory.mkdir()
    story.write("models", [{"n": 3}])
    assert lines(directory) == [{"n": 3}]


def test_a_directory_that_somebody_removed_is_made_again(tmp_path):
    story = DecisionLog(tmp_path / "a" / "story")
    story.write("models", [{"n": 1}])
    shutil.rmtree(tmp_path / "a")
    story.write("models", [{"n": 2}])
    assert lines(tmp_path / "a" / "story") == [{"n": 2}]


async def test_a_record_that_cannot_be_encoded_costs_no_later_one(tmp_path, caplog):
    story = DecisionLog(tmp_path)
    await story.close("models", [{"why": "\ud800"}])
    await story.close("models", [{"n": 2}])
    assert lines(tmp_path) == [{"n": 2}]
    assert "lines are lost: str is not valid UTF-8" in caplog.text


async def test_a_host_without_threads_costs_lines_only(tmp_path, monkeypatch, caplog):
    def start(_):
        raise RuntimeError("can't start new thread")

    story = DecisionLog(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        story.offer("models", [{"n": 1}])
    assert "lines are lost: can't start new thread" in caplog.text
    await story.close("models", [{"n": 2}])
    assert lines(tmp_path) == [{"n": 2}]


async def test_a_disk_that_hangs_costs_lines_and_nobody_waits(tmp_path, monkeypatch, caplog):
    story, gate, began = DecisionLog(tmp_path), threading.Event(), threading.Event()
    write = story.write

    def hang(name, records):
        began.set()
        gate.wait(10)
        write(name, records)

    monkeypatch.setattr(story, "write", hang)
    story.offer("models", [{"n": 1}])
    began.wait(10)
    story.offer("models", [{"n": 2}])  # returns at once
    assert "the disk does not keep up" in caplog.text
    gate.set()
    await story.close("models", [{"n": 3}])
    assert lines(tmp_path) == [{"n": 1}, {"n": 3}]


async def test_a_disk_that_hangs_for_good_does_not_hold_up_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_log, "LAST", 0.05)
    story, gate = DecisionLog(tmp_path), threading.Event()
    monkeypatch.setattr(story, "write", lambda name, records: gate.wait(30))
    story.offer("models", [{"n": 1}])
    await story.close("models", [{"n": 2}])
    assert not gate.is_set()
    gate.set()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"decision log = .*file/x: cannot be written"):
        DecisionLog(tmp_path / "file" / "x")
