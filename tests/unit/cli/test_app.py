"""The table of commands: every entry has its module, old names have one clear line."""

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from roma.cli import extras
from roma.cli.app import COMMANDS, app
from roma.config import renamed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_entry_of_the_table_is_a_command(name):
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert re.search(rf"Usage: \S+ {name} ", done.output)
    assert "-completion" not in done.output  # that is for the whole program


def test_help_lists_every_command_and_imports_none():
    code = (
        "import sys\nfrom roma.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.startswith('roma.cli.') and m.endswith('_command')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f" {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("group", [[], ["config"]])
def test_a_misspelt_command_names_the_one_that_was_meant(group):
    typed, meant = ("confgi", "config") if not group else ("chekc", "check")
    done = CliRunner().invoke(app, [*group, typed])
    assert done.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in done.output


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("worker", "--port", "0"), "roma worker: is called roma device since 0.2"),
        (
            ("simulate", "examples/simulate.yaml", "--story", "x"),
            "--story: is called --decision-log since 0.2",
        ),
        (
            ("experiment", "run", next(iter(renamed.EXPERIMENTS))),
            r"experiment = \w+: is called clairvoyant-bound since 0\.2",
        ),
    ],
)
def test_an_old_name_has_one_line_that_names_the_new_one(roma, arguments, line):
    done = roma(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(line, done.stderr.strip())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["design", "plant"], "roma design needs control: pip install '{}[design]'"),
        (["experiment", "list"], "roma experiment needs scipy: pip install '{}[design]'"),
        (["experiment", "run", "x"], "roma experiment needs scipy: pip install '{}[design]'"),
        (["qos", "train", "x"], "roma qos train needs tensorflow: pip install '{}[serving]'"),
    ],
)
def test_without_its_extra_a_command_says_what_to_install(roma, monkeypatch, arguments, line):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    done = roma(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == line.format("roma-control-plane") + "\n"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ("--model", "b=/two", "--model", "a=/three"),
            "--model = a=/three: must have another name than a=/one",
        ),
        # It listens on every interface only if told to.
        (("--host", ""), "--host = '': must be an address, such as 127.0.0.1 or 0.0.0.0"),
    ],
)
def test_serve_model_refuses_in_one_line(roma, options, line):
    done = roma("serve-model", "--model", "a=/one", *options)
    assert (done.returncode, done.stderr) == (2, f"{line}\n")


@pytest.mark.parametrize("arguments", ["config schema", "keys list KEYS", "--version", "--help"])
def test_a_full_standard_output_is_one_line(tmp_path, arguments):
    done = shell(f"{arguments} > /dev/full", tmp_path)
    full = "standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, full)


def test_a_closed_standard_output_or_error_takes_nothing_and_breaks_nothing(tmp_path):
    done = shell("keys list KEYS >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert shell("keys list /nowhere 2>&-", tmp_path).returncode == 2


def test_a_standard_error_that_nobody_reads_changes_nothing(tmp_path):
    assert shell("keys list /nowhere 2>/dev/full", tmp_path).returncode == 2
    reason = tmp_path / "reason"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "roma", "serve-model", f"--model=m={tmp_path}"],
        env=os.environ | {"ROMA_FAULT_FILE": str(reason)},
        stderr=write,
        check=False,
    )
    os.close(write)
    assert done.returncode == 2
    assert "holds no version" in reason.read_text()


def test_a_reader_that_has_read_enough_is_no_error(tmp_path):
    done = shell("config schema | head -c 1", tmp_path)
    assert (done.stdout, done.stderr) == ("{", "")


def test_what_is_rendered_is_whole_though_nobody_reads_what_was_written(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(
        "models: {m: {path: m, sla: {response_time: 1}}}\n"
        "workers: [{name: w, backend: docker, cores: 1}]\n"
    )
    done = shell(f"render compose {file} --out {tmp_path} > /dev/full", tmp_path)
    full = "standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, full)
    assert (tmp_path / "secrets" / "keys" / "keys.yaml").exists()


def test_characters_that_the_encoding_lacks_are_replaced(tmp_path):
    done = shell("keys list KEYS", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "m?dels" in done.stdout


def test_files_are_in_utf_8_whatever_the_encoding_of_the_system(tmp_path):
    file, other = tmp_path / "roma.yaml", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    file.write_text(
        "models: {m: {sla: {response_time: 1}, kubernetes: {hostPath: /modèles}}}  # für uns\n"
        "workers: [{name: w, backend: kubernetes, node: w, cores: 1}]\n",
        encoding="utf-8",
    )
    line = f"render kubernetes {file} --out {tmp_path}"
    done = shell(line, tmp_path, PYTHONUTF8="0", **other)
    assert (done.returncode, done.stderr) == (0, "")
    assert "path: /modèles" in (tmp_path / "base" / "models.yaml").read_text(encoding="utf-8")


def shell(line, folder, **env):
    (folder / "keys.yaml").write_text("keys: {a: {certificate: mödels, models: '*'}}\n")
    line = f"{sys.executable} -m roma {line.replace('KEYS', str(folder / 'keys.yaml'))}"
    environment = os.environ | env
    return subprocess.run(
        ["sh", "-c", line], env=environment, capture_output=True, text=True, check=False
    )


def test_the_version_is_the_distributions():
    done = CliRunner().invoke(app, ["--version"])
    assert done.output.startswith("roma 0.")


def test_a_supervisor_of_several_workers_asks_for_the_name_of_one(roma, tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(
        "models: {m: {path: m, sla: {response_time: 1}}}\nworkers:\n"
        "- {name: a, cores: 1}\n- {name: b, cores: 1, base_port: 8700}\n"
    )
    done = roma("supervisor", str(file))
    assert (done.returncode, done.stderr) == (2, "worker: missing; must be one of a, b\n")
