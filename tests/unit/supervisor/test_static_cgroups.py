"""Cgroups that others made, of executables of backend `static`."""

import contextlib
import os
import shutil

import pytest

from roma.config import schema
from roma.config.sources import Sources
from roma.domain.errors import TakenError
from supervisor.cgroups import Hierarchy
from supervisor.claims import Claims
from supervisor.live import actuation
from tests.unit.supervisor.test_claims import held

CONFIG = """
models: {m: {sla: {response_time: 1}}}
workers:
  - backend: static
    cores: 2
    executables: [{url: 'http://x:1', model: m, cgroup: system.slice/m.service}]
"""


@pytest.fixture
def mount(tmp_path, monkeypatch):
    """Let this program be in a group of its own below a mount of version 2."""
    monkeypatch.setattr(actuation, "container_hierarchy", lambda: Hierarchy(2, (tmp_path,)))
    own = Hierarchy(2, (tmp_path / "system.slice",))
    monkeypatch.setattr(actuation, "find_hierarchy", lambda: own)
    return tmp_path


def group_at(directory, quota="100000"):
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").touch()
    (directory / "cpu.max").write_text(f"{quota} 100000\n")
    (directory / "cpu.max.burst").write_text("0\n")
    (directory / "cpu.stat").write_text("usage_usec 0\nnr_periods 0\nnr_throttled 0\n")


async def reads(actuator, times=1):
    return [(await actuator.read())["m.0@local"] for _ in range(times)][-1]


@pytest.fixture
def claims():
    with contextlib.closing(Claims()) as claims:
        yield claims


@pytest.fixture
async def actuator(mount, claims):
    config = schema.parse(CONFIG)
    context = actuation.ActuationContext(claims, Sources(config))
    async with actuation.actuation(config, config.workers[0], context) as (found, mode):
        assert mode() == "control"
        yield found


async def test_it_is_found_below_the_mount_wherever_the_supervisor_runs(mount, actuator):
    group_at(mount / "system.slice" / "m.service")
    assert (await reads(actuator)).cores == 1.0
    assert await actuator.apply({"m.0@local": 0.5}) == {"m.0@local": 0.5}


async def test_one_that_cannot_be_read_is_named_with_the_reason_once(mount, actuator, caplog):
    group = mount / "system.slice" / "m.service"
    said = (
        f"executable m.0@local: its CPU use is unknown: {group}/cpu.max: No such file or directory"
    )
    assert await reads(actuator, times=3) is None
    assert caplog.text.count(said) == 1
    group_at(group)
    assert await reads(actuator) is not None
    (group / "cpu.max").unlink()
    assert await reads(actuator, times=2) is None
    assert caplog.text.count(said) == 2


async def test_one_that_comes_later_or_again_is_claimed(mount, actuator, claims):
    """Else a second supervisor could control it, too."""
    group = mount / "system.slice" / "m.service"
    for _ in range(2):  # its service starts, and starts again
        assert await reads(actuator) is None
        group_at(group)
        assert await reads(actuator) is not None
        (descriptor,) = claims._held.values()
        assert os.path.samestat(os.fstat(descriptor), (group / "cgroup.procs").stat())
        shutil.rmtree(group)


async def test_one_that_another_supervisor_has_by_then_is_refused(mount, actuator):
    group = mount / "system.slice" / "m.service"
    assert await reads(actuator) is None
    group_at(group)
    with (
        held(group) as other,
        pytest.raises(TakenError, match=f"cgroup {group}: process {other.pid} of this host"),
    ):
        await actuator.read()
