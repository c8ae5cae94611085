"""`roma init`: the file that it writes passes `config check` and serves."""

import contextlib
import shutil
import socket
import subprocess
import sys

import pytest
import yaml

from roma.config import schema


def roma(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "roma", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def written(demo_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    done = roma("init", str(demo_models["digits"]), "--seconds", "0.2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_dozen_lines_with_the_measured_cost(written):
    text = (written / "roma.yaml").read_text()
    assert len(text.splitlines()) == 12
    model = yaml.safe_load(text)["models"]["digits"]
    assert 0.0001 < model["profile"]["cost"] < 1.0
    assert model["sla"]["response_time"] >= model["profile"]["cost"]


def test_the_file_is_a_configuration_without_a_fault(written):
    assert schema.load(written / "roma.yaml").models["digits"].profile is not None
    done = roma("config", "check", "roma.yaml", cwd=written)
    assert (done.returncode, "cannot be served" in done.stdout) == (0, False)


def test_a_file_that_exists_is_kept(written, demo_models):
    before = (written / "roma.yaml").read_text()
    done = roma("init", str(demo_models["digits"]), cwd=written)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "out = roma.yaml: exists already: name another one",
    )
    assert (written / "roma.yaml").read_text() == before


def test_a_name_that_is_a_number_and_a_path_with_a_comment_in_it(demo_models, tmp_path):
    shutil.copytree(demo_models["digits"], tmp_path / "my #1" / "7")
    done = roma("init", "my #1/7", "--seconds", "0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (model,) = schema.load(tmp_path / "roma.yaml").models.items()
    assert (model[0], model[1].path) == ("7", tmp_path / "my #1" / "7")


def test_a_file_elsewhere_leads_to_the_model(demo_models, tmp_path):
    shutil.copytree(demo_models["digits"], tmp_path / "digits")
    (tmp_path / "conf").mkdir()
    done = roma("init", "digits", "--seconds", "0.2", "--out", "conf/roma.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = schema.load(tmp_path / "conf" / "roma.yaml").models["digits"]
    assert found.path == tmp_path / "digits"


def test_a_deployment_that_runs_here_is_left_alone(demo_models, tmp_path):
    """Its first model server has the first of the default ports."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody has it already
            taken.bind(("127.0.0.1", 8600))
            taken.listen()
        done = roma("init", str(demo_models["digits"]), "--seconds", "0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_missing_is_named_before_anything_is_measured(demo_models, tmp_path):
    done = roma("init", str(demo_models["digits"]), "--out", "conf/roma.yaml", cwd=tmp_path)
    why = f"{tmp_path}/conf is no directory"
    assert (done.returncode, done.stderr.strip()) == (
        2,
        f"out = conf/roma.yaml: cannot be written: {why}",
    )


def test_links_in_a_circle_are_named_before_anything_is_measured(demo_models, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    done = roma("init", str(demo_models["digits"]), "--out", "loop", cwd=tmp_path)
    why = "out = loop: cannot be written: its links form a circle"
    assert (done.returncode, done.stderr.strip()) == (2, why)
    done = roma("init", "loop", cwd=tmp_path)
    why = f"models.loop.path = {tmp_path}/loop: Too many levels of symbolic links"
    assert (done.returncode, done.stderr.strip()) == (2, why)


def test_a_folder_without_a_version_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "wine").mkdir()
    done = roma("init", "wine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("models.wine.path = ")
    assert not (tmp_path / "roma.yaml").exists()
