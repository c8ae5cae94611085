"""`roma design`: every command, its faults in one line, and a document that shows what it prints."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/control.md"
BLOCKS = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.fixture
def design(roma, monkeypatch):
    """Run `roma design …`; return exit status, standard output and standard error."""
    # Rich asks the environment how wide a table may be.
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        done = roma("design", *arguments)
        return done.returncode, done.stdout, done.stderr

    return run


def test_help_does_not_import_python_control():
    code = (
        "import sys, roma.cli; print(sorted({'control', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_plant_as_json(design):
    status, out, _ = design("plant", "--json")
    assert status == 0
    assert json.loads(out)["mean"] == pytest.approx({"k": -0.22971, "b": -0.24378}, abs=1e-5)


def test_from_a_record_to_gains_to_a_closed_loop(design, tmp_path):
    from controllers.design import excite
    from controllers.design.plant import OperatingPoint

    run = excite.example(OperatingPoint())
    lines = zip(run.time, run.applied, run.response, run.throughput, strict=True)
    record = tmp_path / "run.csv"
    rows = [",".join(str(float(x)) for x in line) for line in lines]
    record.write_text("\n".join(["time,applied,response_time,throughput", *rows]))
    status, out, _ = design("identify", str(record), "--json", "--least-response", "0.15")
    assert status == 0
    best = json.loads(out)[0]
    assert best["dead_time"] == 0
    assert best["per_core"] == pytest.approx(10, rel=0.15)
    gains = tmp_path / "gains.yaml"
    arguments = ["--record", str(record), "--least-response", "0.15", "--out", str(gains)]
    status, out, err = design("tune", *arguments)
    assert (status, err) == (0, "")
    provenance = yaml.safe_load(gains.read_text())["provenance"]
    assert provenance["plant"]["from"] == str(record)
    assert provenance["plant"]["k"] == pytest.approx(-0.23, rel=0.15)
    status, out, _ = design("closed-loop", "--gains", str(gains), "--gpus", "1", "--json")
    assert json.loads(out)["gpus +1"]["cores"][-1] == pytest.approx(2.5, abs=0.01)
    status, out, _ = design("robustness", "--gains", str(gains), "--json")
    assert [verdict["stable"] for verdict in json.loads(out)] == [True] * 4


@pytest.mark.long
def test_pictures_are_small_and_those_of_the_document(design, tmp_path):
    status, out, _ = design("figures", "--out", str(tmp_path))
    drawn = {Path(line) for line in out.split()}
    assert status == 0
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert all(2_000 < path.stat().st_size < 80_000 for path in drawn)
    shown = set(re.findall(r"\(figures/(\w+\.png)\)", DOCUMENT.read_text()))
    kept = {path.name for path in (ROOT / "docs/figures").glob("*.png")}
    assert {path.name for path in drawn} == shown == kept


def test_every_axis_has_a_unit():
    from controllers.design import excite, figures, identify, plant, tune
    from controllers.design.plant import OperatingPoint, Sampling

    point = OperatingPoint()
    tuning = tune.main(plant.sampled(point, Sampling.MEAN), tune.TuningGoal())
    drawn = [
        figures.plant_figure(point),
        figures.poles_figure(point, tuning.controller),
        figures.robustness_figure(point, tuning.controller),
        figures.closed_loop_figure(point, figures.scenarios(tuning.gains)),
        figures.identify_figure(identify.main(excite.example(point))[0]),
    ]
    # Axes that share their scale are labelled once.
    labels = [{axes.get_xlabel(), axes.get_ylabel()} for f in drawn for axes in f.axes]
    units = re.compile(r"\((s|s/core|cores|rad/s|°|dB|×|dimensionless)\)$")
    assert all(units.search(label) for both in labels for label in both if label)
    assert all(any(both) for both in labels)


def test_json_is_alone_on_standard_output_beside_a_picture(design, tmp_path):
    status, out, err = design("identify", "--dead-time", "0", "--json", "--out", str(tmp_path))
    assert status == 0
    assert json.loads(out)[0]["dead_time"] == 0
    assert err.startswith(f"{tmp_path}/identify.png\n")


@pytest.mark.long
def test_pictures_of_single_commands(design, tmp_path):
    assert design("identify", "--out", str(tmp_path))[0] == 0
    assert design("closed-loop", "--out", str(tmp_path))[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"identify.png", "closed_loop.png"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plant --throughput -1", "throughput = -1.0: must be from 1e-06 to 1e+06"),
        ("plant --throughput 1e300", "throughput = 1e+300: must be from 1e-06 to 1e+06"),
        ("plant --per-core 1e-300", "per_core = 1e-300: must be from 1e-06 to 1e+06"),
        ("tune --dead-time 1000", "dead_time = 1000: must be from 0 to 20 periods"),
        (
            "closed-loop --set-point inf",
            "set_point = inf: the step must be finite and leave something",
        ),
        ("tune --q 0.5", "q = 0.5: must be >= 0.7 (--allow-fast to try a faster loop)"),
        ("tune --k -1", "--k and --b: both must be given, or none"),
        ("tune --k -1 --b 0.5 --per-core 0", "per_core = 0.0: must be from 1e-06 to 1e+06"),
        (
            "tune --k -1 --b 0.5 --record run.csv",
            "--k and --b: must be absent with --record, whose plant is fitted",
        ),
        ("tune --error rtt", "--error = rtt: must be one of rt, inverse, log"),
        ("tune --sampling euler", "--sampling = euler: must be one of backward, mean, zoh"),
        ("robustness --K 1", "--K and --a: both must be given, or none"),
        ("robustness --K 1 --a 1.5", "control.gains.a = 1.5: input should be less than 1"),
        (
            "robustness --gains g.yaml --K 1 --a 0.5",
            "--K and --a: must be absent with --gains: g.yaml has them",
        ),
        ("closed-loop --period 100", "--seconds = 120: must be at least 40 periods of 100 s"),
        (
            "closed-loop --period 4 --seconds 200",
            "period = 4: must be <= 3 s: laws hold after a longer one",
        ),
        (
            "tune --out /proc/x/y",
            "/proc/x/y: cannot be written: No such file or directory",
        ),
        (
            "closed-loop --law late_share --K 1 --a 0.5",
            "--K and --a: must be absent with --law late_share: they are gains of pi",
        ),
        ("closed-loop --law rules", "law = rules: must be one of pi, late_share"),
    ],
)
def test_faults_are_one_line(design, arguments, message):
    assert design(*shlex.split(arguments)) == (2, "", f"{message}\n")


def test_a_file_of_gains_has_one_law(design, tmp_path):
    file = tmp_path / "gains.yaml"
    file.write_text("law: late_share\ngains: {step: 0.1}\n")
    assert design("closed-loop", "--gains", str(file))[1].startswith("late_share {")
    fault = f"--law = pi: must be late_share, the law of {file}\n"
    assert design("closed-loop", "--law", "pi", "--gains", str(file)) == (2, "", fault)


def test_the_document_has_commands_to_check():
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0].removeprefix("$ "))
def test_the_document_shows_what_the_command_prints(design, block):
    command, *shown = block.rstrip().split("\n")
    words = shlex.split(command.removeprefix("$ "))
    assert words[:2] == ["roma", "design"]
    status, out, err = design(*words[2:])
    printed = [line.rstrip() for line in (out + err).split("\n") if line.strip()]
    assert [line.rstrip() for line in shown if line.strip()] == printed
    assert status in (0, 2)
