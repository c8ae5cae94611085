"""Kernel CPU quotas through cgroup files, version 1 and 2, detected automatically.

Traps handled here: 0 does not reset a quota and less than 1 ms is refused; a burst beyond its quota
is refused, so the order of the two writes matters; version 1 splits CPU and accounting into two
hierarchies; version 2 forbids processes beside child groups and may be delegated to an ordinary
user; a group can only be removed when its last process is reaped.
"""

import contextlib
import errno
import functools
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roma.domain import units
from roma.domain.errors import ActuationError, ActuationNotPermitted
from supervisor.contention import parse_some
from supervisor.executables import Reading

log = logging.getLogger(__name__)

REMOVAL_TIMEOUT = 5.0
"""Seconds to wait for killed processes to leave a group."""


class Group(ABC):
    """Cgroup of an executable, `depth` levels below its hierarchy's root.

    `period` of the quota in seconds; `burst` is the share of the quota that a period may inherit
    from those before it, 0 where the kernel has none (before Linux 5.14).
    """

    def __init__(
        self, directories: Sequence[Path], depth: int, period: float, burst: float = 0.0
    ) -> None:
        self.directories = tuple(directories)
        self.depth = depth
        self.period = period
        self.burst = burst

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._cpu}>"

    @property
    def _cpu(self) -> Path:
        """The directory of its cpu controller."""
        return self.directories[0]

    def create(self) -> None:
        """Create the group, unlimited, with the quota period set."""
        for directory in self.directories:
            _make(directory)
        self._set_unlimited()

    def lift(self) -> None:
        """Remove the limit, if the group still exists."""
        with contextlib.suppress(ActuationError):
            self._set_unlimited()

    def add(self, pid: int) -> None:
        """Move a process (all its threads) into the group."""
        for directory in self.directories:
            _write(directory / "cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        """Return the processes in the group; empty if there is no group."""
        try:
            return [int(line) for line in _read(self._cpu / "cgroup.procs").split()]
        except ActuationError:
            return []

    def remove(self) -> None:
        """Kill whatever is left in the group and remove it, with its parents if they are empty."""
        deadline = time.monotonic() + REMOVAL_TIMEOUT
        # Version 2 lists a process of another PID namespace as 0: to kill(2), our process group.
        while (pids := [pid for pid in self.pids() if pid]) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for directory in self.directories:
            _remove_upwards(directory, self.depth)

    def set_cores(self, cores: float) -> float:
        """Write quota and burst for `cores`; return the cores the kernel reads back."""
        quota = units.quota_us(cores, self.period)
        self.lower_burst(quota)
        self._set_quota(quota)
        self.raise_burst(quota)
        bandwidth = self._bandwidth()
        if bandwidth is None:
            raise ActuationError(f"{self._cpu}: quota reads back as unlimited")
        return units.cores_from_quota(*bandwidth)

    def lower_burst(self, quota: int) -> None:
        """Lower the burst to its share of a quota of `quota` µs; call it before setting the quota.

        The kernel refuses a quota below the burst. Raises ActuationError.
        """
        burst, present = units.burst_us(quota, self.burst), self._present_burst()
        if present is not None and present > burst:
            _write(self._burst_file, str(burst))

    def raise_burst(self, quota: int) -> None:
        """Raise the burst to its share of a quota of `quota` µs, which has been set.

        Raises ActuationError.
        """
        burst, present = units.burst_us(quota, self.burst), self._present_burst()
        if present is None:
            if self.burst:
                _say_no_burst(self._burst_file.name)
        elif present < burst:
            # Each write refills the quota at once, so no write that changes nothing.
            _write(self._burst_file, str(burst))

    def _present_burst(self) -> int | None:
        """Return the burst in microseconds, None where the kernel has none."""
        try:
            return int(self._burst_file.read_text())
        except FileNotFoundError as error:
            if not self._cpu.exists():
                raise ActuationError(f"{self._cpu}: {error.strerror}") from error
            return None
        except OSError as error:
            raise ActuationError(f"{self._burst_file}: {error.strerror}") from error

    @property
    @abstractmethod
    def _burst_file(self) -> Path: ...

    @abstractmethod
    def _set_quota(self, quota: int) -> None: ...

    @abstractmethod
    def _bandwidth(self) -> tuple[int, int] | None:
        """Return quota and period in microseconds, None if unlimited."""

    @abstractmethod
    def set_weight(self, weight: float) -> None:
        """Set its weight against sibling groups; 1 is the kernel's default."""

    def read(self) -> Reading:
        """Read quota, burst, usage and throttling."""
        bandwidth, burst = self._bandwidth(), self._present_burst()
        usage, stat = self._usage()
        return Reading(
            cores=None if bandwidth is None else units.cores_from_quota(*bandwidth),
            usage=usage,
            periods=stat["nr_periods"],
            throttled=stat["nr_throttled"],
            burst=None if bandwidth is None else (burst or 0) / bandwidth[0],
            waited=self._waited(),
        )

    def _waited(self) -> float | None:
        """Return the seconds in which a task waited for a CPU; version 1 does not count them."""
        return None

    @abstractmethod
    def _usage(self) -> tuple[float, dict[str, int]]:
        """Return core-seconds used, and `cpu.stat`."""

    @abstractmethod
    def _set_unlimited(self) -> None: ...


class GroupV1(Group):
    """A group in version 1: `directories` are its cpu and cpuacct ones (often the same mount)."""

    def set_weight(self, weight: float) -> None:
        """Write `cpu.shares`, 2 at least."""
        _write(self._cpu / "cpu.shares", str(max(2, round(1024 * weight))))

    def _usage(self) -> tuple[float, dict[str, int]]:
        usage = int(_read(self.directories[-1] / "cpuacct.usage"))
        return units.seconds_from_ns(usage), _table(self._cpu / "cpu.stat")

    @property
    def _burst_file(self) -> Path:
        return self._cpu / "cpu.cfs_burst_us"

    def _set_quota(self, quota: int) -> None:
        if int(_read(self._cpu / "cpu.cfs_period_us")) != units.period_us(self.period):
            self._set_unlimited()  # another program made the group
        _write(self._cpu / "cpu.cfs_quota_us", str(quota))

    def _bandwidth(self) -> tuple[int, int] | None:
        quota = int(_read(self._cpu / "cpu.cfs_quota_us"))
        return None if quota < 0 else (quota, int(_read(self._cpu / "cpu.cfs_period_us")))

    def _set_unlimited(self) -> None:
        # The quota first: the kernel refuses a period that does not fit the present quota.
        _write(self._cpu / "cpu.cfs_quota_us", "-1")
        _write(self._cpu / "cpu.cfs_period_us", str(units.period_us(self.period)))


class GroupV2(Group):
    """A group in version 2, which has one hierarchy: `directories` has one member."""

    def set_weight(self, weight: float) -> None:
        """Write `cpu.weight`, 1 at least."""
        _write(self._cpu / "cpu.weight", str(max(1, round(100 * weight))))

    def _usage(self) -> tuple[float, dict[str, int]]:
        stat = _table(self._cpu / "cpu.stat")
        return units.seconds_from_us(stat["usage_usec"]), stat

    def _waited(self) -> float | None:
        return pressure(self._cpu / "cpu.pressure")

    @property
    def _burst_file(self) -> Path:
        return self._cpu / "cpu.max.burst"

    def _set_quota(self, quota: int) -> None:
        _write(self._cpu / "cpu.max", f"{quota} {units.period_us(self.period)}")

    def _bandwidth(self) -> tuple[int, int] | None:
        quota, period = _read(self._cpu / "cpu.max").split()
        return None if quota == "max" else (int(quota), int(period))

    def _set_unlimited(self) -> None:
        _write(self._cpu / "cpu.max", f"max {units.period_us(self.period)}")


SELF = "roma.self"
"""Group into which our own processes move if they would be in the way (version 2)."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A cgroup hierarchy in which groups can be created.

    `roots` are (cpu, cpuacct) in version 1, one in version 2.

    `crowded`: the root holds processes, ours among them, which must move before it can pass the cpu
    controller down ("no internal processes", cgroups(7)).
    """

    version: int
    roots: tuple[Path, ...]
    crowded: bool = False

    def group(self, path: str, period: float, burst: float = 0.0) -> Group:
        """Return the group at `path` below the roots (not created yet); see `Group`."""
        directories, depth = [root / path for root in self.roots], len(Path(path).parts)
        kind = GroupV1 if self.version == 1 else GroupV2
        return kind(directories, depth, period, burst)

    def limit(self) -> float | None:
        """Return the cores that our own group may use, None if nothing limits it."""
        return self.group(".", period=0.1).read().cores

    def prepare(self, path: str) -> None:
        """Create the parents of `path`; in version 2 enable the cpu controller below them."""
        parts = Path(path).parts[:-1]
        for root in self.roots:
            directory = root
            if self.crowded:
                _move_processes(root, root / SELF)
            if self.version == 2:
                _enable_cpu(directory)
            for part in parts:
                directory /= part
                _make(directory)
                if self.version == 2:
                    _enable_cpu(directory)


def find_hierarchy(
    *, mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")
) -> Hierarchy:
    """Return the hierarchy in which this process may set quotas.

    Raises `ActuationNotPermitted` with the reason: no cpu controller, or no right to write. A
    subtree of version 2 that was delegated to an ordinary user is permitted.
    """
    mounted = container_hierarchy(mountinfo=mountinfo)
    roots = _own_roots(mounted, own)
    if mounted.version == 2:
        root, crowded = _delegated(mounted.roots[0], roots[0])
        return Hierarchy(2, (root,), crowded)
    for root in roots:
        if not os.access(root, os.W_OK):
            raise ActuationNotPermitted(f"{root}: no right to create groups")
    return Hierarchy(1, roots)


def container_hierarchy(
    root: Path | None = None, *, mountinfo: Path = Path("/proc/self/mountinfo")
) -> Hierarchy:
    """Return the host's hierarchy, in which a container engine creates its groups, for reading.

    `root` is the host's mount point, if it differs from this process' own. Raises
    ActuationNotPermitted if there is none.
    """
    if root is not None:
        if (root / "cgroup.controllers").exists():
            return Hierarchy(2, (root,))
        return Hierarchy(1, (root / "cpu", root / "cpuacct"))
    mounts = _mounts(mountinfo)
    cpu, accounting = (
        next((m for f, o, m in mounts if f == "cgroup" and name in o), None)
        for name in ("cpu", "cpuacct")
    )
    if cpu is not None:
        if accounting is None:
            raise ActuationNotPermitted(f"{cpu}: the cpuacct controller is not mounted")
        return Hierarchy(1, (cpu, accounting))
    for fstype, _, mount in mounts:
        if fstype == "cgroup2" and "cpu" in _controllers(mount):
            return Hierarchy(2, (mount,))
    raise ActuationNotPermitted("no cgroup hierarchy with a cpu controller is mounted")


def own_group(
    *, mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")
) -> Group:
    """Return the group of this process, for reading; raise ActuationNotPermitted without one."""
    mounted = container_hierarchy(mountinfo=mountinfo)
    return Hierarchy(mounted.version, _own_roots(mounted, own)).group(".", period=0.1)


def container_group(
    hierarchy: Hierarchy, container: str, period: float, burst: float = 0.0
) -> Group | None:
    """Return the group of a container by its full id; None while it has none.

    Engines name it `docker/ID`, under systemd `docker-ID.scope` in a slice; a deployment's own
    `cgroup-parent` may precede either.
    """
    root = hierarchy.roots[0]
    try:
        for pattern in (f"docker/{container}", f"*/*{container}*", f"*/*/*{container}*"):
            for found in root.glob(pattern):
                return hierarchy.group(str(found.relative_to(root)), period, burst)
    except OSError:  # some group went while it was looked into: the next call looks again
        return None
    return None


def pressure(file: Path) -> float | None:
    """Return the seconds in which some task waited for a CPU, by a file of the kernel's PSI."""
    try:
        return parse_some(file.read_text())
    except OSError:  # no PSI, or switched off (psi=0)
        return None


def _mounts(mountinfo: Path) -> list[tuple[str, set[str], Path]]:
    """Return (filesystem type, super options, mount point) of every cgroup mount; proc(5)."""
    found = []
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        fstype, _, options = after.split(" ", 2)
        if fstype in ("cgroup", "cgroup2"):
            found.append((fstype, set(options.split(",")), Path(before.split(" ")[4])))
    return found


def _own_paths(own: Path) -> dict[str, str]:
    """Return this process' cgroup path by controller; "" is version 2; cgroups(7)."""
    paths = {}
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _own_roots(mounted: Hierarchy, own: Path) -> tuple[Path, ...]:
    """Return this process' own group below each of a hierarchy's mount points."""
    mine, names = _own_paths(own), ("cpu", "cpuacct") if mounted.version == 1 else ("",)
    return tuple(
        _below(root, mine.get(name, "/")) for root, name in zip(mounted.roots, names, strict=True)
    )


def _below(mount: Path, own: str) -> Path:
    """Return our own group below a mount; in a container the mount itself is our group."""
    path = mount / own.lstrip("/")
    if path.name == SELF:  # a child of a launcher that has moved
        path = path.parent
    return path if path.is_dir() else mount


def _controllers(directory: Path) -> list[str]:
    try:
        return _read(directory / "cgroup.controllers").split()
    except ActuationError:
        return []


def _delegated(mount: Path, start: Path) -> tuple[Path, bool]:
    """Return the nearest ancestor of our group that can hold child groups, and if it is crowded.

    That is the real root, or one without processes, or our own group if it was delegated to us
    together with our process (systemd's `Delegate=yes`, a container): then processes can move.
    """
    for candidate in (start, *start.parents):
        writable = os.access(candidate, os.W_OK) and os.access(
            candidate / "cgroup.subtree_control", os.W_OK
        )
        if writable and "cpu" in _controllers(candidate):
            # Only the real root has no type; inside a cgroup namespace the mount is no root.
            is_root = not (candidate / "cgroup.type").exists()
            if is_root or not _read(candidate / "cgroup.procs").strip():
                return candidate, False
            ours = candidate == start and not os.access(candidate.parent, os.W_OK)
            if ours or candidate == mount:
                return candidate, True
        if candidate == mount:
            break
    raise ActuationNotPermitted(
        f"{start}: no group up to {mount} is writable and passes the cpu controller down"
    )


def _move_processes(source: Path, target: Path) -> None:
    _make(target)
    for pid in _read(source / "cgroup.procs").split():
        # A process may have exited; one that cannot move makes the kernel refuse the controller.
        with contextlib.suppress(ActuationError):
            _write(target / "cgroup.procs", pid)


def _enable_cpu(directory: Path) -> None:
    control = directory / "cgroup.subtree_control"
    if "cpu" not in _read(control).split():
        _write(control, "+cpu")


def _remove_upwards(directory: Path, levels: int) -> None:
    """Remove a group and those of its parents that are now empty, up to `levels` in all."""
    for group in (directory, *directory.parents)[:levels]:
        try:
            group.rmdir()
        except (FileNotFoundError, NotADirectoryError):  # one of the kernel's files has this name
            continue
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return  # still in use, or a parent with other groups
            raise


@functools.cache
def _say_no_burst(file: str) -> None:
    """Log it once per program, not once per executable and second."""
    log.warning("this kernel has no %s: what a quota period leaves unused is lost", file)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ActuationError(f"{directory}: cannot be made: {error.strerror}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ActuationError(f"{path}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ActuationError(f"{path}: writing {text}: {error.strerror}") from error


def _table(path: Path) -> dict[str, int]:
    """Read a file of `name number` lines; names the kernel leaves out read as 0."""
    table = {"nr_periods": 0, "nr_throttled": 0, "usage_usec": 0}
    for line in _read(path).splitlines():
        name, _, number = line.partition(" ")
        table[name] = int(number)
    return table
