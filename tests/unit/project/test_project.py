"""The architecture, the documents and the command line are tested like code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controllers import registry as laws
from dispatcher.schedulers import registry as schedulers
from roma.config.control import ControlConfig
from roma.config.scheduling import SchedulingConfig

ROOT = Path(__file__).parents[3]


def test_the_vocabulary_imports_nothing_above_itself():
    """Importing a core must not drag in an event loop, a socket or TensorFlow."""
    code = (
        "import sys, dispatcher.core, supervisor.core, controllers.registry\n"
        "bad = {'aiohttp', 'tensorflow', 'torch', 'uvloop', 'dispatcher.live', 'roma.deploy'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("script", ["docs/diagrams.py", "docs/metrics.py"])
def test_what_documents_take_from_the_code_is_current(script):
    done = subprocess.run(
        [sys.executable, script, "--check"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr


def test_config_and_registries_name_the_same_policies():
    fields = SchedulingConfig.model_fields
    assert set(fields["gpu"].annotation.__args__) == set(schedulers.GPU)
    assert set(fields["cpu"].annotation.__args__) == set(schedulers.CPU)
    assert set(ControlConfig.model_fields["law"].annotation.__args__) == set(laws.LAWS)


def test_every_make_verb_that_the_documents_name_exists():
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    for document in documents:
        named = set(re.findall(r"`make ([a-z]+)", document.read_text()))
        assert named <= verbs, (document, named - verbs)


def test_every_path_that_the_documents_name_exists():
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for path in re.findall(
            r"`((?:roma|dispatcher|controllers|supervisor|tests|docs|bench|examples)/[\w./-]*)`",
            document.read_text(),
        ):
            assert (ROOT / path).exists(), (document.name, path)


def test_every_test_that_the_threat_model_names_exists():
    """A threat is answered by `file` (`part of a test's name`), below tests/."""
    text = (ROOT / "THREAT_MODEL.md").read_text()
    named = re.findall(r"`([\w/]+/test_\w+\.py)`(?: \(([^)]+)\))?", text)
    assert len(named) > 60
    files = [file for file, _ in named] + re.findall(r"`(?!tests/)(\w[\w/]*/)`", text)
    missing = [file for file in files if not (ROOT / "tests" / file).exists()]
    matrix = (ROOT / "tests/system/faults/matrix.py").read_text().replace(" ", "-")
    for file, parts in named:
        tests = (ROOT / "tests" / file).read_text() + matrix
        missing += [part for part in re.findall(r"`([\w-]+)`", parts) if part not in tests]
    assert missing == []


def test_config_check_says_ok_or_names_the_fault(roma, tmp_path):
    for example in (ROOT / "examples").glob("*.yaml"):
        assert roma("config", "check", example).returncode == 0
    bad = tmp_path / "bad.yaml"
    data = yaml.safe_load((ROOT / "examples/roma.yaml").read_text())
    data["control"] = {"gains": {"k": 1}}
    bad.write_text(yaml.safe_dump(data))
    done = roma("config", "check", bad)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"{bad}: control.gains.k = 1.0: unknown gain of law late_share (known: step)"
    )


def test_config_schema_describes_every_field(roma):
    schema = json.loads(roma("config", "schema").stdout)
    assert schema["properties"]["models"]["patternProperties"]
    sla = schema["$defs"]["SlaConfig"]["properties"]
    assert sla["response_time"]["description"] == "Seconds."


@pytest.mark.parametrize("command", ["up", "dispatcher", "supervisor", "profile"])
def test_a_missing_file_is_one_line(roma, command):
    done = roma(command, "/nowhere.yaml")
    assert done.returncode == 2
    assert done.stderr.strip() == "/nowhere.yaml: cannot be read: No such file or directory"


def test_an_unknown_worker_is_named(roma):
    done = roma("supervisor", ROOT / "examples/roma.yaml", "--worker", "mars")
    assert (done.returncode, done.stderr.strip()) == (2, "worker = mars: must be one of local")
