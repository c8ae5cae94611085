"""Which changes of a roma.yaml a running deployment takes over, and which it refuses."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from dispatcher.live.reloading import Reloading
from roma.config import schema
from roma.config.diff import compare
from roma.config.reload import ConfigWatch
from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError
from roma.security import api_keys

FILE = """
models:
  a: {path: /m/a, sla: {response_time: 0.5}}
  b: {path: /m/b, sla: {response_time: 0.5}}
workers:
  - {name: w, backend: docker, cores: 4, gpus: 1}
"""
NEW = "  c: {path: /m/c, sla: {response_time: 1}}\nworkers:"


def changed(*replacements, text=FILE):
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return compare(schema.parse(FILE), schema.parse(text))


def test_nothing_changed():
    assert changed() == changed(("cores: 4", "cores: 4.0"))
    assert not changed().added
    assert not changed().removed


def test_a_model_that_comes_moves_no_other():
    assert changed(("workers:", NEW)).added == ("c",)


def test_the_last_model_goes():
    assert changed(("  b: {path: /m/b, sla: {response_time: 0.5}}\n", "")).removed == ("b",)


def test_another_model_goes_if_the_others_keep_their_ports():
    gone = ("  a: {path: /m/a, sla: {response_time: 0.5}}\n", "")
    with pytest.raises(ConfigError) as error:
        changed(gone)
    assert str(error.value) == (
        "models.b would move from b@w at http://127.0.0.1:8602 "
        "to b@w at http://127.0.0.1:8601: takes a restart"
    )
    change = changed(gone, ("path: /m/b,", "path: /m/b, slot: 1,"), ("workers:", NEW))
    assert (change.added, change.removed) == (("c",), ("a",))


def test_every_key_that_takes_a_restart_is_named():
    with pytest.raises(ConfigError) as error:
        changed(("cores: 4", "cores: 5"), ("path: /m/a", "path: /m/other"))
    assert str(error.value).splitlines() == [
        "workers.0.cores changed: takes a restart",
        "models.a.path changed: takes a restart",
    ]


def test_two_models_cannot_have_one_slot():
    text = FILE.replace("path: /m/a,", "path: /m/a, slot: 3,")
    text = text.replace("path: /m/b,", "path: /m/b, slot: 3,")
    with pytest.raises(ConfigError, match=r"models\.a\.slot = 3: must be of one model only"):
        schema.parse(text)


def test_slots_leave_room_for_those_that_are_written():
    text = FILE.replace("path: /m/b,", "path: /m/b, slot: 0,").replace("workers:", NEW)
    assert schema.parse(text).slots == {"a": 1, "b": 0, "c": 2}


def test_the_gateways_limits_hold_from_now_on_and_its_ports_take_a_restart():
    assert not changed().limits
    assert changed(("workers:", "gateway: {limits: {body_timeout: 5}}\nworkers:")).limits
    assert changed(("workers:", "gateway: {max_body_bytes: 5000}\nworkers:")).limits
    with pytest.raises(ConfigError) as error:
        changed(("workers:", "gateway: {port: 9999, limits: {body_timeout: 5}}\nworkers:"))
    assert str(error.value) == "gateway.port changed: takes a restart"


@pytest.mark.parametrize("kind", ["", ", backend: docker, docker: {server: roma, image: i}"])
def test_model_servers_take_no_more_than_they_were_started_for(kind):
    local = FILE.replace(", backend: docker, cores: 4, gpus: 1", f", cores: 4{kind}")
    local += "gateway: {}\n"
    small, large = ("gateway: {}", "gateway: {max_body_bytes: 2000}"), ("2000}", "4000}")
    started = schema.parse(local.replace(*small))
    grown = schema.parse(local.replace(*small).replace(*large))
    with pytest.raises(ConfigError, match=r"= 4000: the model servers were started for at most 20"):
        compare(started, grown, servers=started)
    assert compare(grown, started, servers=started).limits
    # A program that was started again meanwhile has nothing to do with it.
    assert compare(started, grown).limits
    other = [schema.parse(FILE + gateway) for gateway in (small[1], small[1].replace(*large))]
    assert compare(*other, servers=other[0]).limits  # TensorFlow Serving is started with no limit


def test_the_grpc_port_takes_no_more_than_it_was_opened_for():
    def parsed(body, head=32768):
        gateway = (
            f"gateway: {{grpc_port: 9, max_body_bytes: {body}, limits: {{head_bytes: {head}}}}}"
        )
        return schema.parse(FILE + gateway)

    started, less = parsed(5000), parsed(2000, 2000)
    assert compare(started, less).limits
    assert compare(less, started, started).limits  # what was made less may become as it was
    with pytest.raises(ConfigError) as error:
        compare(less, parsed(6000, 40000), started)
    assert str(error.value).splitlines() == [
        "gateway.max_body_bytes = 6000: the gRPC port was opened for at most 5000: takes a restart",
        "gateway.limits.head_bytes = 40000: the gRPC port was opened for at most 32768:"
        " takes a restart",
    ]


TWO = """
models:
  a: {path: /m/a, sla: {response_time: 0.5}, replicas: 1}
  b: {path: /m/b, sla: {response_time: 0.5}}
workers:
  - {name: v, cores: 4}
  - {name: w, cores: 4, base_port: 8700}
"""


def scaled(replicas, text=TWO):
    more = text.replace("replicas: 1}\n  b", f"replicas: {replicas}}}\n  b")
    assert more != text
    return schema.parse(text), schema.parse(more)


def test_replicas_come_and_go_where_no_other_moves():
    one, two = scaled(2)
    for change in (compare(one, two), compare(two, one)):
        assert (change.scaled, change.added, change.removed, change.is_any) == (
            ("a",),
            (),
            (),
            True,
        )
    assert not compare(two, two).is_any


def test_a_model_that_other_replicas_would_move_is_named():
    text = TWO.replace("0.5}}\nworkers", "0.5}, replicas: 1}\nworkers")
    with pytest.raises(ConfigError) as error:
        compare(*scaled(2, text))
    assert str(error.value) == (
        "models.b would move from b@w at http://127.0.0.1:8701 "
        "to b@v at http://127.0.0.1:8601: takes a restart"
    )


def test_workers_that_are_given_are_replicas_that_come_and_go():
    on = {
        workers: schema.parse(TWO.replace("replicas: 1}", f"workers: [{workers}]}}"))
        for workers in ("v", "w", "v, w")
    }
    one = schema.parse(TWO)
    assert compare(one, on["v"]).scaled == compare(on["v"], on["v, w"]).scaled == ("a",)
    assert compare(on["v, w"], on["w"]).scaled == ("a",)
    assert not compare(on["v"], on["v"]).is_any
    # Until the new replica is loaded nothing would serve the model.
    with pytest.raises(ConfigError, match=r"^models\.a would move from a@v at .* to a@w at"):
        compare(on["v"], on["w"])


def test_a_watch_reads_again_when_told_and_says_once_that_the_file_is_gone(tmp_path, caplog):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE)
    watch = ConfigWatch(file, schema.load(file))
    assert watch.look() is None
    seen = file.stat()
    file.write_text(FILE.replace("b:", "c:"))
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # as a clock without nanoseconds would
    assert watch.look() is None
    new = watch.look(again=True)
    assert new is not None
    assert list(new.models) == ["a", "c"]
    file.unlink()
    assert [watch.look(), watch.look()] == [None, None]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{file}: nothing is changed: {file}: cannot be read: ")


def test_what_could_not_be_read_is_tried_again_and_said_once(tmp_path, caplog):
    """Another file that it names may have been the reason."""
    file, profile = tmp_path / "roma.yaml", tmp_path / "profile.yaml"
    file.write_text(FILE)
    watch = ConfigWatch(file, schema.load(file))
    assert watch.look() is None
    file.write_text(f"profile: profile.yaml\n{FILE.replace('workers:', NEW)}")
    assert [watch.look(), watch.look()] == [None, None]
    machine = "machine: {cpu: x, cores: 2, measured: today}"
    profile.write_text(f"{machine}\nmodels: {{c: {{cost: 0.1}}}}")
    new = watch.look()
    assert new is not None
    assert "c" in new.models
    assert watch.look() is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_nothing_but_a_file_is_read_again(tmp_path, caplog, make):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE)
    watch = ConfigWatch(file, schema.load(file))
    file.unlink()
    make(file)
    assert watch.look() is None
    assert caplog.messages == [f"{file}: nothing is changed: {file}: not a regular file"]


async def test_a_dispatcher_reads_nothing_but_a_file_again(tmp_path):
    file = tmp_path / "roma.yaml"
    os.mkfifo(file)
    end = os.open(file, os.O_RDWR)
    try:
        async with asyncio.timeout(10):  # only bounds a failing test
            with pytest.raises(ConfigError, match=f"^{file}: not a regular file$"):
                await Reloading(file, lambda read: read, None, None).take_over()
    finally:
        os.close(end)


def test_files_of_a_volume_whose_directory_is_swapped_are_followed(tmp_path):
    """As Kubernetes mounts ConfigMaps and Secrets: the directory of the old files is removed."""

    def fill(number, text, keys):
        directory = tmp_path / f"..{number}"
        directory.mkdir()
        (directory / "roma.yaml").write_text(text)
        (directory / "keys.yaml").write_text(keys)
        (tmp_path / "..new").symlink_to(directory.name)
        (tmp_path / "..new").replace(tmp_path / "..data")

    text = FILE.replace("/m/", "m/") + "gateway: {keys: keys.yaml}\n"
    key = "  abcdefgh: {hash: 'sha256:%s', models: '*'}\n" % ("0" * 64)
    fill(1, text, f"keys:\n{key}")
    for name in ("roma.yaml", "keys.yaml"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    file = tmp_path / "roma.yaml"
    config = schema.load(file)
    watch, path = ConfigWatch(file, config), config.gateway.keys
    keys = Watched([path], lambda: api_keys.load(path))
    assert list(keys.value.keys) == ["abcdefgh"]
    fill(2, text.replace("workers:", NEW), "keys: {}\n")
    shutil.rmtree(tmp_path / "..1")
    assert list(watch.look().models) == ["a", "b", "c"]
    assert keys.look()
    assert not keys.value.keys


@pytest.mark.parametrize(("target", "kept"), [("v2", True), ("releases/v2", False)])
def test_a_link_to_a_directory_stays_only_beside_it(tmp_path, target, kept):
    directory = tmp_path / target
    directory.mkdir(parents=True)
    (tmp_path / "now").symlink_to(target)
    (directory / "roma.yaml").write_text(FILE.replace("/m/", "../m/"))
    config = schema.load(tmp_path / "now" / "roma.yaml")
    base = tmp_path / "now" if kept else directory
    assert config.models["a"].path == base / "../m/a"
    # An engine shortens a path as text.
    assert os.path.normpath(base / "../m/a") == os.path.realpath(base / "../m/a")
