"""`roma simulate`: the example of the repository, laws side by side, records to identify from."""

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roma.cli import simulate_command
from roma.cli.app import app
from roma.config import placement, schema
from roma.domain.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "examples/simulate.yaml"


@pytest.fixture
def short(tmp_path):
    """The example, cut to half a minute."""
    text = EXAMPLE.read_text()
    assert "duration: 300" in text
    file = tmp_path / "short.yaml"
    busy = text.replace("15-40-40-15", "60-70-70-60")  # more than the GPUs can take
    assert busy != text
    file.write_text(busy.replace("duration: 300", "duration: 30"))
    return file


def simulate(file, *options):
    return CliRunner().invoke(app, ["simulate", str(file), *options])


def refused(file, *options):
    """Return the line of a command that is refused."""
    done = simulate(file, *options)
    assert isinstance(done.exception, ConfigError), done.exception
    return str(done.exception)


def test_laws_are_compared_under_the_same_requests(short):
    done = simulate(short, "--law", "late_share", "--law", "static", "--seeds", "2", "--json")
    data = json.loads(done.stdout)
    assert set(data) == {"late_share", "static"}
    for ours, theirs in zip(data["late_share"], data["static"], strict=True):
        counts = [[m["arrivals"] for m in r["models"]] for r in (ours, theirs)]
        assert counts[0] == counts[1]
        assert ours["core_seconds"] < theirs["core_seconds"] <= 12 * 30 * 1.001
        for model in ours["models"]:
            ended = model["answered"] + model["rejected"] + model["failed"]
            assert 0 <= model["arrivals"] - ended <= 20  # still in the system at the end
    first, second = data["late_share"]
    assert first["core_seconds"] != second["core_seconds"]


def test_a_law_of_a_preset_has_its_gains_from_the_command_line_too(short):
    text = "preset: paper\ncontrol: {law: LAW}\n" + short.read_text()
    found = []
    for law, options in (("paper", ()), ("late_share", ("--law", "paper"))):
        file = short.with_name(f"{law}.yaml")
        file.write_text(text.replace("LAW", law))
        found.append(json.loads(simulate(file, *options, "--json").stdout)["paper"])
    assert found[0] == found[1]


def test_a_dry_run_applies_nothing(short):
    dry = short.with_name("dry.yaml")
    dry.write_text("control: {dry_run: true}\n" + short.read_text())
    (result,) = json.loads(simulate(dry, "--json").stdout)["late_share"]
    config = schema.load(dry)
    cores = sum(e.spec.cores for e in placement.executables(config) if e.controlled)
    assert result["core_seconds"] == pytest.approx(30 * cores, rel=0.01)


def test_a_run_in_which_nothing_was_answered_has_no_response_times(tmp_path):
    file = tmp_path / "rare.yaml"
    sla = "sla: {response_time: 0.25}"
    file.write_text(
        f"models: {{rare: {{path: a, {sla}}}, never: {{path: b, {sla}}}}}\nworkers: [{{cores: 1}}]\n"
        "plant: {duration: 5, models: {rare: {cost: 0.05, load: {profile: 0.1}},"
        " never: {cost: 0.05}}}\n"
    )
    runs = json.loads(simulate(file, "--seeds", "4", "--json").stdout)["late_share"]
    rare, never = zip(*(run["models"] for run in runs), strict=True)
    assert {m["mean"] for m in never} == {m["worst"] for m in never} == {None}
    means = [m["mean"] for m in rare if m["answered"]]
    assert 0 < len(means) < 4
    rows = simulate(file, "--seeds", "4").stdout.splitlines()
    (cells,) = [row.split("│") for row in rows if "rare" in row]
    assert float(cells[4]) == pytest.approx(sum(means) / len(means), abs=5e-4)
    (cells,) = [row.split("│") for row in rows if "never" in row]
    assert [cell.strip() for cell in cells[4:8]] == ["–"] * 4


def test_planned_devices_are_simulated_and_a_model_with_variants_has_a_quality():
    file = EXAMPLE.with_name("variants.yaml")
    ((result,),) = json.loads(simulate(file, "--json").stdout).values()
    (model,) = result["models"]
    assert model["on_gpu"] == model["answered"] > 1000
    assert 0.5 < model["quality"] <= 1
    shown = simulate(file).stdout
    assert ("quality" in shown, "core-s" in shown) == (True, False)
    assert "quality" not in simulate(file.with_name("simulate.yaml"), "--law", "static").stdout


@pytest.mark.long
def test_the_example_keeps_its_promises_with_half_the_cores_of_other_laws():
    laws = ("late_share", "rules", "usage")
    options = [o for law in laws for o in ("--law", law)]
    data = json.loads(simulate(EXAMPLE, *options, "--json").stdout)
    ours, *others = (data[law][0]["core_seconds"] for law in laws)
    assert ours < min(others) / 2
    for model in data["late_share"][0]["models"]:
        broken = model["late"] + model["rejected"] + model["failed"]
        assert broken <= 0.02 * model["arrivals"], model["model"]


def test_the_same_command_prints_the_same(short):
    assert simulate(short, "--json").stdout == simulate(short, "--json").stdout


def test_progress_is_shown_on_a_terminal_and_nowhere_else(roma, short):
    quiet = roma("simulate", short, "--json")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "roma", "simulate", str(short), "--json", "--seeds", "2"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(terminal)
        told = b""
        # EIO: the other end was closed.
        with contextlib.suppress(OSError):
            while part := os.read(main, 4096):
                told += part
        document = json.loads(process.stdout.read())
    os.close(main)
    assert len(document["late_share"]) == 2
    assert b"simulate" in told
    assert re.search(rb"\d+%", told)


def test_the_table_names_every_model_and_law(short):
    shown = simulate(short, "--law", "rules").stdout
    assert all(name in shown for name in ("thumbnails", "detector", "reports", "rules", "core-s"))


def test_a_directory_that_takes_no_record_is_named_before_anything_is_simulated(short, monkeypatch):
    monkeypatch.setattr(simulate_command, "Simulation", None)
    assert refused(short, "--record", "/proc").startswith("--record = /proc: cannot be written: ")


def test_a_record_can_be_identified(short, tmp_path):
    simulate(short, "--record", str(tmp_path / "record"))
    file = tmp_path / "record/detector@a.csv"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert list(rows[0]) == ["time", "applied", "response_time", "throughput"]
    assert len(rows) >= 25
    done = CliRunner().invoke(app, ["design", "identify", str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert {"k", "b", "warnings"} <= set(json.loads(done.stdout)[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("plant:", "plant_:", "plant_"),
        ("cost: 0.4\n", "cost: 0\n", r"plant.models.reports.cost = 0"),
        ("gpu_time: 0.08\n", "gpu_noise: 0.1\n", r"plant.models.reports.gpu_time: missing"),
        ("load: {on_off: [6, 20, 40]}", "load: {}", r"plant.models.reports.load.given = none"),
        ("duration: 30", "duration: -1", r"plant.duration = -1"),
        ("[6, 20, 40]", "[6, 0.000001, 1]", r"plant.models.reports.load.on_off.1 = "),
        ("{on_off: [6, 20, 40]}", "{profile: '20-'}", r"load.profile = 20-: must be rates"),
        ("{on_off: [6, 20, 40]}", "{profile: '1..2'}", r"load.profile = 1..2: must be rates"),
        ("{on_off: [6, 20, 40]}", "{profile: 1e9}", "must be at most 1e+08"),
        ("{on_off: [6, 20, 40]}", '{trace: "\\0"}', "a path cannot contain NUL"),
        ("{on_off: [6, 20, 40]}", "{trace: /dev/zero}", "must be a regular file"),
    ],
)
def test_faults_in_the_plant_are_named(short, old, new, message):
    text = short.read_text()
    assert old in text
    short.write_text(text.replace(old, new))
    assert message in refused(short)


def test_a_single_rate_needs_no_quotes(short):
    text = short.read_text().replace("{on_off: [6, 20, 40]}", "{profile: 2}")
    short.write_text(text)
    (result,) = json.loads(simulate(short, "--json").stdout)["late_share"]
    assert 35 <= result["models"][2]["arrivals"] <= 90


def test_a_file_without_a_plant_says_what_is_missing():
    assert "plant: missing" in refused(EXAMPLE.parent / "roma.yaml")


def test_an_unknown_law_is_named_before_anything_is_simulated(short):
    line = refused(short, "--law", "static", "--law", "bogus")
    assert line.startswith("--law = bogus: must be one of captain, ")


def test_a_record_of_executables_without_controlled_cores_is_refused(tmp_path):
    line = refused(EXAMPLE.with_name("variants.yaml"), "--record", str(tmp_path / "record"))
    assert line.startswith(f"--record = {tmp_path / 'record'}: must be absent")


def test_a_law_whose_defaults_do_not_fit_the_file_is_named(short):
    """Other laws keep 0.1 cores for an idle model."""
    text = short.read_text().replace("cpu: {initial: 0.5, threads: 1}", "cpu: {max: 0.05}")
    short.write_text(text)
    assert simulate(short, "--json").exit_code == 0
    bound = "models.thumbnails.cpu.max = 0.05: must be ≥ cpu.min (0.1)"
    assert refused(short, "--law", "rules") == f"--law = rules: {bound}"
