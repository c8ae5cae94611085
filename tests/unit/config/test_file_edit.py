"""Results of commands: written whole or not at all, also where the disk is full or is none."""

import os
import subprocess
import sys
import threading

import pytest

from roma.config import file_edit
from roma.domain.errors import ConfigError

FULL = ("prlimit", "--fsize=64")
"""No file gets larger than this, as if the disk had no more room."""


def test_a_result_replaces_the_one_before_and_keeps_its_mode(tmp_path):
    file = tmp_path / "gains.yaml"
    file_edit.output(file, "first")
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file)
    file_edit.output(link, b"second")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("second", 0o640)
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_result_is_readable_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        file_edit.output(tmp_path / "report.html", "page")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640


@pytest.mark.long
@pytest.mark.parametrize("old", ["gains: {}\n", None])
def test_a_full_disk_keeps_what_was_there(tmp_path, old):
    file = tmp_path / "gains.yaml"
    if old is not None:
        file.write_text(old)
    tune = [sys.executable, "-m", "roma", "design", "tune", "--out", str(file)]
    # Python would cut byte code short, too, and import it ever after.
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*FULL, *tune], check=False, capture_output=True, text=True, env=variables
    )
    assert done.returncode == 2
    assert done.stderr == f"{file}: cannot be written: File too large\n"
    assert [f.read_text() for f in tmp_path.iterdir()] == ([] if old is None else [old])


def test_an_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(file_edit.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        file_edit.output(tmp_path / "roma.yaml", "models: {}")
    with pytest.raises(KeyboardInterrupt):
        file_edit.write(tmp_path / "keys.yaml", "keys: {}")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_replaced_is_written_in_place(tmp_path, monkeypatch):
    def mounted(*_):
        raise OSError(16, "Device or resource busy")

    file = tmp_path / "report.html"
    file.write_text("before")
    monkeypatch.setattr(file_edit, "_replace", mounted)
    file_edit.output(file, "after")
    assert file.read_text() == "after"
    with pytest.raises(OSError, match="busy"):
        file_edit.output(tmp_path / "other", "new")


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    file_edit.output(pipe, "page")
    reader.join()
    assert read == ["page"]
    assert pipe.is_fifo()


def test_a_file_that_is_none_is_not_edited(tmp_path):
    pipe = tmp_path / "keys.yaml"
    os.mkfifo(pipe)  # reading it would wait for ever, as reading /dev/full has no end
    line = f"{pipe}: cannot be edited: must be a regular file"
    with pytest.raises(ConfigError, match=line), file_edit.alone(pipe):
        pass
