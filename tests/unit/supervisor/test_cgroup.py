"""Quotas in the real kernel (version 1 or 2, whichever is here), and in a tree of files as both."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roma.domain.errors import ActuationError, ActuationNotPermitted
from supervisor import cgroups
from supervisor.actuators.cgroup import CgroupActuator
from supervisor.actuators.recording import RecordingActuator
from supervisor.cgroups import Hierarchy, container_group, find_hierarchy

BURN = "while True: pass"


@pytest.fixture
def group():
    """A group in the real kernel; CI must be allowed to make one."""
    hierarchy = find_hierarchy()
    path = f"roma-test-{os.getpid()}/worker/model"
    hierarchy.prepare(path)
    group = hierarchy.group(path, 0.05)
    group.create()
    yield group
    group.remove()
    assert not any(d.exists() for d in group.directories)
    assert not any(d.parent.parent.exists() for d in group.directories)


def test_a_new_group_is_unlimited(group):
    assert group.read().cores is None


@pytest.mark.parametrize("cores", [0.02, 0.1, 0.333, 1.0, 1.5, 7.25])
def test_a_quota_reads_back(group, cores):
    assert group.set_cores(cores) == pytest.approx(cores, abs=0.001)
    assert group.read().cores == pytest.approx(cores, abs=0.001)


def test_less_than_a_millisecond_becomes_a_millisecond_never_zero_or_unlimited(group):
    assert group.set_cores(0.0001) == pytest.approx(0.001 / 0.05)


def test_a_group_that_another_program_made_gets_the_period_too(group):
    """`backend: static`: its period is the kernel's, or what a former roma.yaml said."""
    group.set_cores(2.0)
    for period in (0.1, 0.02):
        other = type(group)(group.directories, group.depth, period)
        assert other.set_cores(1.5) == pytest.approx(1.5)
        assert other.read().cores == pytest.approx(1.5)


def bursting(group, share):
    """The same group with a burst; the kernel's own file says what it has."""
    made = type(group)(group.directories, group.depth, group.period, share)
    name = {"GroupV1": "cpu.cfs_burst_us", "GroupV2": "cpu.max.burst"}[type(group).__name__]
    return made, lambda: int((group.directories[0] / name).read_text())


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_burst_follows_the_quota_up_and_down(group, share):
    bursting_group, burst = bursting(group, share)
    for cores in (0.5, 0.1, 0.02, 3.0, 0.7):
        bursting_group.set_cores(cores)
        assert burst() == pytest.approx(share * cores * 50_000, abs=1)
        assert bursting_group.read().burst == pytest.approx(share, abs=0.001)


def test_a_burst_that_is_beyond_the_new_quota_is_lowered_first(group):
    """The kernel says EINVAL otherwise: whoever set it, and whatever share is wanted now."""
    bursting_group, burst = bursting(group, 1.0)
    bursting_group.set_cores(2.0)
    with pytest.raises(OSError, match="Invalid argument"):
        (group.directories[0] / _quota_file(group)).write_text("5000")
    group.set_cores(0.1)  # without burst
    assert burst() == 0
    bursting_group.set_cores(2.0)
    bursting_group.lift()
    assert bursting_group.set_cores(0.1) == pytest.approx(0.1)
    assert burst() == 5_000


def _quota_file(group):
    return {"GroupV1": "cpu.cfs_quota_us", "GroupV2": "cpu.max"}[type(group).__name__]


def test_a_quota_really_limits_and_is_seen_as_usage_and_throttling(group):
    group.set_cores(0.2)
    process = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        group.add(process.pid)
        assert group.pids() == [process.pid]
        before, start = group.read(), time.monotonic()
        while group.read().periods < before.periods + 30:
            time.sleep(0.05)
        after, elapsed = group.read(), time.monotonic() - start
        assert (after.usage - before.usage) / elapsed < 0.4  # it would use a whole core
        assert after.throttled > before.throttled
    finally:
        process.kill()
        process.wait()


def test_removing_a_group_kills_what_is_left_in_it(group):
    process = subprocess.Popen([sys.executable, "-c", BURN])
    group.add(process.pid)
    process_gone = subprocess.Popen([sys.executable, "-c", ""])
    process_gone.wait()
    with pytest.raises(ActuationError, match=r"cgroup\.procs: writing"):
        group.add(process_gone.pid)
    os.kill(process.pid, 9)
    process.wait()
    group.remove()
    assert group.pids() == []


async def test_the_actuator_reports_each_executable_apart(group):
    missing = find_hierarchy().group("roma-test-missing/x", 0.05)
    actuator = CgroupActuator({"here": group, "gone": missing})
    result = await actuator.apply({"here": 0.5, "gone": 0.5})
    assert result["here"] == pytest.approx(0.5)
    assert isinstance(result["gone"], ActuationError)
    readings = await actuator.read()
    assert readings["here"].cores == pytest.approx(0.5)
    assert readings["gone"] is None


async def test_dry_run_reads_the_world_and_changes_nothing(group, caplog):
    caplog.set_level("INFO")
    group.set_cores(0.5)
    dry = RecordingActuator(CgroupActuator({"m": group}))
    assert await dry.apply({"m": 1.0}) == {}
    assert caplog.messages == ["not applied: m would get 1.00 cores"]
    assert (await dry.read())["m"].cores == pytest.approx(0.5)


async def test_dry_run_keeps_nothing_of_what_is_gone(group):
    dry = RecordingActuator(CgroupActuator({"m": group}))
    await dry.apply({"m": 1.0, "gone": 1.0})
    await dry.read()
    assert dry._logged == {"m": 1.0}


def test_a_container_whose_group_goes_during_the_search_has_none(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("cpu")
    (tmp_path / "system.slice/docker-c0ffee.scope").mkdir(parents=True)
    hierarchy = Hierarchy(2, (tmp_path,))
    assert container_group(hierarchy, "c0ffee", 0.1) is not None

    def vanish(*_):
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(Path, "glob", vanish)
    assert container_group(hierarchy, "c0ffee", 0.1) is None


# Both versions, as trees of files


def test_removing_a_group_spares_the_processes_of_other_pid_namespaces(tmp_path, monkeypatch):
    procs, killed = v2_tree(tmp_path, "m", procs="0\n42\n") / "cgroup.procs", []

    def kill(pid, _):
        killed.append(pid)
        procs.write_text("0\n" if pid else "")

    monkeypatch.setattr(os, "kill", kill)
    Hierarchy(2, (tmp_path,)).group("m", 0.1).remove()
    assert killed == [42]


def v2_tree(root, path, *, controllers="cpu memory", procs="", subtree="", is_root=False):
    directory = root / path if path else root
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers)
    (directory / "cgroup.subtree_control").write_text(subtree)
    (directory / "cgroup.procs").write_text(procs)
    if not is_root:
        (directory / "cgroup.type").write_text("domain\n")
    return directory


def found_by(tmp_path, mounts, own):
    """Return the hierarchy of a process with these mounts and groups."""
    mountinfo, cgroup = tmp_path / "mountinfo", tmp_path / "cgroup"
    lines = [f"30 20 0:26 / {m} rw - {fs} {fs} {opts}\n" for fs, opts, m in mounts]
    mountinfo.write_text("".join(lines))
    cgroup.write_text(own)
    return find_hierarchy(mountinfo=mountinfo, own=cgroup)


def test_version_2_writes_cpu_max_and_reads_cpu_stat(tmp_path):
    hierarchy = Hierarchy(2, (v2_tree(tmp_path, ""),))
    v2_tree(tmp_path, "roma")
    hierarchy.prepare("roma/m")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    group = hierarchy.group("roma/m", 0.1)
    group.create()
    assert (tmp_path / "roma/m/cpu.max").read_text() == "max 100000"
    assert group.set_cores(0.25) == 0.25
    assert (tmp_path / "roma/m/cpu.max").read_text() == "25000 100000"
    (tmp_path / "roma/m/cpu.stat").write_text("usage_usec 1500000\nnr_periods 10\nnr_throttled 4\n")
    seen = group.read()
    assert (seen.cores, seen.usage, seen.periods, seen.throttled) == (0.25, 1.5, 10, 4)


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (1, {"quota": "cpu.cfs_quota_us", "burst": "cpu.cfs_burst_us"}),
        (2, {"quota": "cpu.max", "burst": "cpu.max.burst"}),
    ],
)
def test_both_versions_write_quota_and_burst_in_the_order_that_the_kernel_takes(
    tmp_path, monkeypatch, version, files
):
    written = []
    monkeypatch.setattr(cgroups, "_write", lambda path, text: written.append((path.name, text)))
    (tmp_path / "m").mkdir()
    (tmp_path / "m/cpu.cfs_period_us").write_text("100000")
    group = Hierarchy(version, (tmp_path,)).group("m", 0.1, burst=1.0)

    def set_from(present, cores):
        """Files that hold one state, and what is written to reach another."""
        (tmp_path / "m" / files["quota"]).write_text("1 100000" if version == 2 else "1")
        (tmp_path / "m" / files["burst"]).write_text(str(present))
        written.clear()
        group.set_cores(cores)
        return [name for name, _ in written]

    assert set_from(50_000, 0.2) == [files["burst"], files["quota"]]
    assert set_from(10_000, 0.2) == [files["quota"], files["burst"]]
    assert set_from(20_000, 0.2) == [files["quota"]]


def test_a_kernel_without_burst_is_named_once_and_quotas_move(tmp_path, caplog):
    cgroups._say_no_burst.cache_clear()
    v2_tree(tmp_path, "")
    for name in ("a", "b"):
        group = Hierarchy(2, (tmp_path,)).group(name, 0.1, burst=1.0)
        group.create()
        assert group.set_cores(0.25) == 0.25
        assert group.set_cores(0.5) == 0.5
        (tmp_path / name / "cpu.stat").write_text("")
        assert group.read().burst == 0.0
    said = [r.message for r in caplog.records]
    assert said == ["this kernel has no cpu.max.burst: what a quota period leaves unused is lost"]


def test_version_1_uses_the_cpu_and_the_cpuacct_hierarchy(tmp_path):
    cpu, acct = tmp_path / "cpu", tmp_path / "cpuacct"
    (cpu / "docker/abc").mkdir(parents=True)
    (acct / "docker/abc").mkdir(parents=True)
    mounts = [("cgroup", "rw,cpu", cpu), ("cgroup", "rw,cpuacct", acct)]
    own = "2:cpuacct:/docker/abc\n1:cpu:/docker/abc\n0::/\n"
    found = found_by(tmp_path, mounts, own)
    assert found == Hierarchy(1, (cpu / "docker/abc", acct / "docker/abc"))


@pytest.mark.parametrize("path", ["roma/tasks", "tasks/m"])
def test_a_name_that_the_kernel_has_taken_is_an_error_and_no_group(tmp_path, path):
    """Version 1 has a file `tasks` in each group, 2 has `cpu.max`: a model may be called so."""
    roots = tmp_path / "cpu", tmp_path / "cpuacct"
    for root in roots:
        (root / "roma").mkdir(parents=True)
        for taken in (root / "tasks", root / "roma" / "tasks"):
            taken.touch()
    hierarchy = Hierarchy(1, roots)
    group = hierarchy.group(path, 0.1)

    def make():
        hierarchy.prepare(path)
        group.create()

    with pytest.raises(ActuationError, match="tasks: cannot be made: File exists"):
        make()
    group.remove()
    assert all((root / "tasks").is_file() for root in roots)


def test_version_1_without_accounting_is_named(tmp_path):
    with pytest.raises(ActuationNotPermitted, match="the cpuacct controller is not mounted"):
        found_by(tmp_path, [("cgroup", "rw,cpu", tmp_path)], "1:cpu:/\n")


def test_a_delegated_subtree_of_an_ordinary_user_is_permitted(tmp_path):
    mount = tmp_path / "cgroup2"
    v2_tree(mount, "", subtree="cpu")
    delegated = v2_tree(mount, "user.slice/user-1000.slice/user@1000.service", subtree="cpu")
    v2_tree(mount, "user.slice")
    v2_tree(mount, "user.slice/user-1000.slice")
    v2_tree(mount, "user.slice/user-1000.slice/user@1000.service/shell.scope", procs="4242\n")
    own = "0::/user.slice/user-1000.slice/user@1000.service/shell.scope\n"
    found = found_by(tmp_path, [("cgroup2", "rw", mount)], own)
    assert found == Hierarchy(2, (delegated,))


def test_a_container_with_its_own_namespace_moves_its_processes_out_of_the_way(tmp_path):
    mount = v2_tree(tmp_path / "cgroup2", "", procs="1\n17\n")
    hierarchy = found_by(tmp_path, [("cgroup2", "rw", mount)], "0::/\n")
    assert hierarchy == Hierarchy(2, (mount,), crowded=True)
    v2_tree(mount, "roma")
    hierarchy.prepare("roma/m")
    assert (mount / "roma.self/cgroup.procs").read_text() == "17"  # one pid per write
    assert (mount / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_real_root_may_hold_processes(tmp_path):
    mount = v2_tree(tmp_path / "cgroup2", "", procs="1\n", is_root=True)
    found = found_by(tmp_path, [("cgroup2", "rw", mount)], "0::/\n")
    assert found == Hierarchy(2, (mount,))


def test_a_child_of_a_launcher_that_moved_finds_the_same_place(tmp_path):
    mount = v2_tree(tmp_path / "cgroup2", "")
    v2_tree(mount, "roma.self", procs="17\n")
    assert found_by(tmp_path, [("cgroup2", "rw", mount)], "0::/roma.self\n").roots == (mount,)


def test_without_a_cpu_controller_the_reason_is_named(tmp_path):
    mount = tmp_path / "cgroup2"
    v2_tree(mount, "", controllers="hugetlb")
    with pytest.raises(ActuationNotPermitted, match="no cgroup hierarchy with a cpu controller"):
        found_by(tmp_path, [("cgroup2", "rw", mount)], "0::/\n")


def test_without_a_writable_group_the_reason_is_named(tmp_path):
    mount = tmp_path / "cgroup2"
    v2_tree(mount, "", controllers="memory")
    v2_tree(mount, "app", controllers="cpu", procs="1\n")
    (mount / "cgroup.controllers").write_text("cpu")
    for directory in (mount, mount / "app"):
        (directory / "cgroup.subtree_control").unlink()
    with pytest.raises(ActuationNotPermitted, match="writable and passes the cpu controller down"):
        found_by(tmp_path, [("cgroup2", "rw", mount)], "0::/app\n")
