"""The report on a simulated run: its numbers are the simulation's, its page needs nothing else."""

import errno
import os
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.domain.errors import ConfigError, DecisionLogError
from roma.lab.sim.scenario import SupervisorFault
from roma.lab.sim.simulation import Simulation
from roma.telemetry.decision_log import DecisionLog
from roma.ui.report.build import build
from roma.ui.report.episodes import episodes
from roma.ui.report.read import ExecutableTrack, read
from roma.ui.report.summary import summaries, total, worker_cores
from supervisor.decision_text import Limit
from tests.virtual_time.sim.test_simulation import GOLDEN, golden


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The paper's controller, overloaded, its supervisor away for a while: result and directory."""
    directory = tmp_path_factory.mktemp("run") / "overload"
    run_of = golden("pi", burst=0.0, is_coarse=True, faults=(SupervisorFault(50.0, "w", 5.0),))
    result = Simulation(run_of, decision_log=DecisionLog(directory, fresh=True).write).run()
    return result, directory


@pytest.fixture(scope="module")
def html(run):
    return build(run[1], title="Post-mortem of <m> & others").html


def test_the_counts_are_the_simulations(run):
    result, directory = run
    (model,), (found,) = result.models, summaries(read(directory))
    assert found.requests == model.arrivals
    assert (found.answered, found.on_gpu) == (model.answered, model.on_gpu)
    assert found.refused.total() == model.rejected > 0
    assert found.failed == model.failed
    # What still waits at the end and is late already counts in the result only.
    assert 0 <= model.late - found.late <= model.arrivals - found.ended
    assert found.kept is False


def test_the_core_seconds_are_the_simulations_but_for_the_gap(run):
    result, directory = run
    cores = total(worker_cores(read(directory)))
    # Dead from 50 s to 55 s, and what it decided at 49 s was never written: 6 s, at full load.
    assert cores.all == pytest.approx(result.allocatable * (result.seconds - 6))
    # The file makes readings 10 % too high: what is recorded is what the supervisor saw, and where
    # all of a quota was used that seems to be more than the quota.
    assert -0.1 * result.used_seconds < result.core_seconds - cores.applied <= 6 + 0.01
    assert cores.used == pytest.approx(1.1 * (result.used_seconds - 6), rel=0.1)


def test_without_a_gap_the_core_seconds_are_exact(tmp_path):
    simulation = Simulation(golden("pi", usage_error=1.0), decision_log=DecisionLog(tmp_path).write)
    result = simulation.run()
    cores = total(worker_cores(read(tmp_path)))
    # What the last second used would stand in the next decision.
    assert cores.applied == pytest.approx(result.core_seconds, abs=0.1 * result.allocatable)
    assert cores.saved == pytest.approx(1 - cores.applied / (result.allocatable * result.seconds))
    assert 0 <= result.used_seconds - cores.used <= result.allocatable


def test_the_episode_holds_the_overload_and_names_what_was_in_the_way(run):
    worst = episodes(read(run[1]))[0]
    # The load is 10 req/s, from 30 s to 60 s 70, of the 50 that the one core can take.
    assert worst.span.start <= 31
    assert worst.span.end >= 61
    assert worst.limit is Limit.OWN_MAXIMUM  # alone on its worker: all of it is its maximum
    assert worst.limits[Limit.HELD] == 1  # the supervisor that came back sees nothing at first


def test_the_page_says_what_matters(html):
    assert "0 of 1 promise kept." in html
    assert "because it needed more than the most cores it may have" in html
    assert "law pi" in html
    assert "0:49 to 0:55 (6 s): no decisions of m@w: the supervisor was away" in html
    assert "were refused because they would have been late" in html  # a decision's own words


class Page(HTMLParser):
    """What a page would fetch or run, and whether its elements nest."""

    def __init__(self, text):
        super().__init__()
        self.tags = Counter()
        self.links = []
        self.ids = Counter()
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        given = dict(attributes)
        self.links += [v for k, v in given.items() if k in ("src", "href", "xlink:href", "action")]
        self.ids.update(v for k, v in given.items() if k == "id")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_asks_nothing_of_any_network_and_runs_nothing(html):
    page = Page(html)
    assert page.open == []
    assert page.tags["svg"] == 2  # a model and a worker
    assert not {"script", "link", "img", "iframe", "object", "foreignobject"} & page.tags.keys()
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= page.ids.keys()
    assert max(page.ids.values()) == 1
    assert "http" not in html
    assert "@import" not in html
    assert html.count("url(") == html.count("url(#")


def test_pictures_keep_what_is_written_in_them_and_follow_the_readers_colours(html):
    assert ">0.25<" in html or ">0.50<" in html  # of η's axis: numbers are cut in paths only
    assert "stroke: var(--response)" in html
    assert "prefers-color-scheme:dark" in html


def renamed(run, directory, model):
    """Write a run's decision log with another name of its model."""
    for name in ("models", "decisions-w"):
        lines = (run[1] / f"{name}.jsonl").read_bytes().splitlines()
        records = [{**orjson.loads(line), "model": model} for line in lines]
        DecisionLog(directory).write(name, records)


def test_text_from_outside_is_text(run, tmp_path):
    evil = "<script>alert(1)</script>"
    renamed(run, tmp_path, evil)
    page = build(tmp_path, title=evil).html
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_terminal_does_not_obey_what_a_file_says(run, tmp_path):
    renamed(run, tmp_path, "\x1b[2Jm")
    command = ["report", str(tmp_path), "--out", str(tmp_path / "page.html")]
    said = CliRunner().invoke(app, command).stdout
    assert "\\x1b[2Jm" in said
    assert "\x1b" not in said


def test_the_same_run_is_the_same_page(run, html):
    assert build(run[1], title="Post-mortem of <m> & others").html == html


def test_the_command_writes_page_and_pictures_and_says_the_verdict(run, tmp_path):
    out, pictures = tmp_path / "new/page.html", tmp_path / "png"
    command = ["report", str(run[1]), "--out", str(out), "--png", str(pictures)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "0 of 1 promise kept." in done.stdout
    assert "<title>Run overload</title>" in out.read_text()
    assert sorted(f.name for f in pictures.iterdir()) == ["model-m.png", "worker-w.png"]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in pictures.iterdir())


def test_a_story_of_two_laws_lies_in_two_directories(tmp_path):
    file = tmp_path / "short.yaml"
    example = (GOLDEN / "pi.yaml").read_text()
    file.write_text(example.replace("duration: 90", "duration: 5"))
    story = tmp_path / "story"
    both = ["simulate", str(file), "--law", "pi", "--law", "static", "--decision-log", str(story)]
    assert CliRunner().invoke(app, both).exit_code == 0
    assert sorted(f.name for f in story.iterdir()) == ["pi", "static"]
    assert read(story / "static").laws == ["static"]
    one = ["simulate", str(file), "--seeds", "2", "--decision-log", str(tmp_path / "one")]
    assert CliRunner().invoke(app, one).exit_code == 0
    assert read(tmp_path / "one").whole.seconds == 5  # of the first seed alone


def test_a_directory_with_the_story_of_another_deployment_is_left_alone(tmp_path):
    (tmp_path / "decisions-elsewhere.jsonl").write_text("{}\n")
    file = GOLDEN / "pi.yaml"
    done = CliRunner().invoke(app, ["simulate", str(file), "--decision-log", str(tmp_path)])
    assert "has decisions-elsewhere.jsonl, of another deployment" in str(done.exception)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["models.jsonl", "models+1.jsonl", "decisions-w.jsonl"])
def test_a_simulation_leaves_the_story_of_a_live_run_alone(tmp_path, name):
    (tmp_path / name).write_text('{"at":1795920717.9,"model":"m"}\n{"at":17959')
    done = CliRunner().invoke(
        app, ["simulate", str(GOLDEN / "pi.yaml"), "--decision-log", str(tmp_path)]
    )
    assert str(done.exception) == f"--decision-log = {tmp_path}: has {name}, of a live run"
    assert (tmp_path / name).read_text().endswith('{"at":17959')
    assert len(list(tmp_path.iterdir())) == 1


# What is missing, cut off or foreign


def copied(run, tmp_path, **changes):
    """Copy a run; `changes` are new contents by file, None leaves one out."""
    for name in ("models", "decisions-w"):
        key = name.replace("-", "_")
        content = changes.get(key, (run[1] / f"{name}.jsonl").read_bytes())
        if content is not None:
            (tmp_path / f"{name}.jsonl").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("cut", [-1, -30])
def test_a_line_cut_off_at_the_end_is_left_out_and_said(run, tmp_path, cut):
    whole = (run[1] / "models.jsonl").read_bytes()
    found = read(copied(run, tmp_path, models=whole[:cut]))
    assert len(found.models["m"]["at"]) == (90 if cut == -1 else 89)
    assert any("line 90 is cut off" in note for note in found.notes) == (cut != -1)


def test_a_line_cut_off_in_the_middle_costs_the_line_it_runs_into(run, tmp_path):
    lines = (run[1] / "models.jsonl").read_bytes().splitlines(keepends=True)
    lines[10] = lines[10][:40]  # killed here, and restarted: the next line follows at once
    found = read(copied(run, tmp_path, models=b"".join(lines)))
    assert len(found.models["m"]["at"]) == 88
    assert ["line 11 is" in note for note in found.notes] == [True]
    assert [(g.start, g.end) for g in found.models["m"].gaps] == [(10.0, 12.0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": b"", "decisions_w": None}, "no decision log: no record in models.jsonl"),
        (
            {"models": b'{"a": 1}\n'},
            r"models.jsonl:1: not a second of a model: model: Field required",
        ),
        ({"models": b"hello\n"}, r"models.jsonl:1: not a second of a model: Invalid JSON"),
        ({"models": b"[1, 2]\n"}, r"models.jsonl:1: not a second of a model: "),
        ({"models": b"\xff\xfe\x00\n"}, r"models.jsonl:1: not a second of a model: "),
        ({"decisions_w": b'{"time": "x"}\n'}, r"decisions-w.jsonl:1: not a decision: time: Input"),
    ],
)
def test_what_is_no_story_is_one_line_with_file_and_line(run, tmp_path, changes, message):
    with pytest.raises(DecisionLogError, match=message) as caught:
        read(copied(run, tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("at", [None, -1.0, 1e300])
def test_a_time_that_is_none_names_its_field(run, tmp_path, at):
    lines = (run[1] / "models.jsonl").read_bytes().splitlines()
    lines[4] = orjson.dumps({**orjson.loads(lines[4]), "at": at})
    with pytest.raises(DecisionLogError, match=r"models.jsonl:5: .*: at: "):
        read(copied(run, tmp_path, models=b"\n".join(lines)))


def test_a_run_in_the_working_directory_has_its_name(run, tmp_path, monkeypatch):
    first, _ = (run[1] / "models.jsonl").read_bytes().split(b"\n", 1)
    (tmp_path / "models.jsonl").write_bytes(first)
    monkeypatch.chdir(tmp_path)
    assert f"From {tmp_path.name}/models.jsonl" in build(Path()).html


def test_no_directory_is_one_line(tmp_path):
    with pytest.raises(DecisionLogError, match="nowhere: no such directory"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DecisionLogError, match="file: it must be a directory"):
        read(tmp_path / "file")


def test_a_named_pipe_is_refused_and_not_waited_for(run, tmp_path):
    copied(run, tmp_path)
    (tmp_path / "models.jsonl").unlink()
    os.mkfifo(tmp_path / "models.jsonl")
    with pytest.raises(DecisionLogError, match=r"models.jsonl: must be a file"):
        read(tmp_path)


def test_a_wrong_argument_ends_the_command_with_2(roma, tmp_path):
    done = roma("report", tmp_path / "nowhere")
    assert (done.returncode, done.stderr) == (2, f"{tmp_path}/nowhere: no such directory\n")


@pytest.mark.parametrize("missing", ["models", "decisions_w"])
def test_half_a_story_is_told_and_the_other_half_is_said_to_be_missing(run, tmp_path, missing):
    report = build(copied(run, tmp_path, **{missing: None}))
    assert len(report.notes) == 1
    assert report.notes[0] in report.html.replace("&#x27;", "'")
    assert report.html.count("<svg") == 2 - (missing == "decisions_w")
    assert ("core-seconds applied" in report.html) == (missing == "models")


def test_a_second_is_enough(run, tmp_path):
    first = (run[1] / "models.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert "promise" in build(copied(run, tmp_path, models=first, decisions_w=None)).html


def test_two_files_of_one_story_are_read_in_their_order(run, tmp_path):
    lines = (run[1] / "decisions-w.jsonl").read_bytes().splitlines(keepends=True)
    copied(run, tmp_path, decisions_w=b"".join(lines[40:]))
    (tmp_path / "decisions-w+1.jsonl").write_bytes(b"".join(lines[:40]))
    split, whole = read(tmp_path), read(run[1])
    for name in ("at", "applied", "limit"):
        assert (split.executables["w/m@w"][name] == whole.executables["w/m@w"][name]).all()
    track = split.executables["w/m@w"]
    assert [split.decision(track, i).time for i in (0, 39, 40, 80)] == list(
        track["at"][[0, 39, 40, 80]]
    )


@pytest.mark.parametrize("new", [b"something else\n" * 1000, b"", None, "other"])
def test_a_file_that_changes_under_the_reader_costs_words_not_the_report(run, tmp_path, new):
    found, file = read(copied(run, tmp_path)), tmp_path / "decisions-w.jsonl"
    track = found.executables["w/m@w"]
    assert found.decision(track, 5).time == 5.0
    if new is None:
        file.unlink()
    else:  # "other": a decision lies there still, and it is not this one
        other = file.read_bytes().replace(b'"at":5.0', b'"at":7.0')
        file.write_bytes(other if new == "other" else new)
    assert found.decision(track, 5) is None


def test_a_fleet_of_names_that_are_no_file_names(run, tmp_path):
    renamed(run, tmp_path / "run", "../a/b c")
    build(tmp_path / "run", pictures=tmp_path / "png")
    assert sorted(f.name for f in (tmp_path / "png").iterdir()) == [
        "model-..-a-b-c.png",
        "worker-w.png",
    ]


def test_the_run_is_not_touched(run):
    before = {f.name: f.stat().st_mtime_ns for f in run[1].iterdir()}
    build(run[1])
    assert {f.name: f.stat().st_mtime_ns for f in run[1].iterdir()} == before


def test_a_title_that_is_no_utf_8_is_written_as_far_as_it_is(run, tmp_path):
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(run[1]), "--title", "a\udcff", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "<title>a?" in out.read_text()


def test_a_page_that_cannot_be_written_is_named(run):
    done = CliRunner().invoke(app, ["report", str(run[1]), "--out", "/dev/full"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("roma report: /dev/full: cannot be written: No space")


def test_a_full_disk_is_said_of_the_picture_that_found_no_room(run, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    pictures, page = tmp_path / "pictures", tmp_path / "report.html"
    options = ["--out", str(page), "--png", str(pictures)]
    done = CliRunner().invoke(app, ["report", str(run[1]), *options])
    assert isinstance(done.exception, ConfigError)
    line = rf"roma report: {pictures}/\S+\.png: cannot be written: No space left on device"
    assert re.fullmatch(line, str(done.exception))
    assert list(pictures.iterdir()) == []
    assert not page.exists()


def test_a_simulation_without_faults_has_no_gap(tmp_path):
    Simulation(replace(golden("pi"), duration=20.0), decision_log=DecisionLog(tmp_path).write).run()
    found = read(tmp_path)
    assert [t.gaps for t in (*found.models.values(), *found.executables.values())] == [[], []]
    assert (found.whole.start, found.whole.end) == (0.0, 20.0)


def test_what_a_worker_had_is_counted_once_whoever_ran_on_it():
    class Recorded:
        """Tracks of executables that come and go: `a` for 100 s, then `b`."""

        def __init__(self):
            self.workers = {"w": [self.track("a@w", 0), self.track("b@w", 100)]}

        @staticmethod
        def track(name, begin):
            track = ExecutableTrack(name, name[0], "w")
            at = np.arange(begin, begin + 100, 1.0)
            known = {"at": at, "dt": np.ones(100), "period": np.ones(100)}
            cores = {"wanted": 3.0, "allocation": 3.0, "applied": 3.0, "used": 2.0}
            cores |= {"total": 3.0, "capacity": 4.0}
            track.columns = known | {k: np.full(100, v) for k, v in cores.items()}
            return track

    (found,) = worker_cores(Recorded()).values()
    assert (found.applied, found.all) == (600, 800)
    assert found.saved == 0.25
