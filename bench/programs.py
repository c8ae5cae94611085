"""Programs beside the benchmark: started on a core, watched through /proc, ended by their id.

A program's cost is read from /proc/PID/stat of its whole tree, in the kernel's ticks (10 ms), so
measure it over seconds. CPU time per request is the steadier number on a machine with neighbours.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

GRACE = 15.0
"""Seconds that a program gets to exit by itself after SIGTERM."""


class Cost(NamedTuple):
    """CPU seconds in user mode and in the kernel."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Return both."""
        return self.user + self.system

    def since(self, before: "Cost") -> "Cost":
        """Return the usage after `before`."""
        return Cost(self.user - before.user, self.system - before.system)

    def per(self, requests: float) -> "Cost":
        """Return microseconds per request."""
        return Cost(self.user / requests * 1e6, self.system / requests * 1e6)


def pinned(argv: Sequence[str], core: int | None) -> Sequence[str]:
    """Return the command that runs a program on one core, if one is given."""
    return argv if core is None else ["taskset", "-c", str(core), *argv]


@contextlib.contextmanager
def program(
    argv: Sequence[str],
    core: int | None = None,
    env: dict[str, str] | None = None,
    *,
    log: Path | None = None,
) -> Iterator[int]:
    """Run a program, on one core if asked to; yield its process id, end it and its descendants."""
    with contextlib.ExitStack() as stack:
        output = subprocess.DEVNULL if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(pinned(argv, core), stdout=output, stderr=output, env=env)
        try:
            yield process.pid
        finally:
            children = _tree(process.pid)[1:]
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            _signal(children, signal.SIGKILL)
            process.kill()  # nothing, if it has exited
            process.wait()


def cost(pid: int) -> Cost:
    """Return the usage of a program and its living children so far."""
    fields = [f for f in map(_stat, _tree(pid)) if f is not None]
    user, system = (sum(int(f[i]) for f in fields) * _TICK for i in (11, 12))
    return Cost(user, system)


def resident(pid: int) -> float:
    """Return the resident memory of a program and its children, in MiB."""
    pages = sum(int(f[21]) for f in map(_stat, _tree(pid)) if f is not None)
    return pages * _PAGE / 2**20


def descendant(pid: int, *words: str) -> int:
    """Return the process that a program started with these words in its command line."""
    for one in _tree(pid)[1:]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            argv = Path(f"/proc/{one}/cmdline").read_bytes().decode().split("\0")
            if all(any(part.startswith(word) for part in argv) for word in words):
                return one
    sys.exit(f"bench: process {pid} has started no {' '.join(words)}")


def move(pid: int, core: int) -> None:
    """Restrict a process and its threads to one core; what they start later inherits it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core})


@contextlib.contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """Stop programs and their living children for a while: some work although nobody calls them."""
    stopped = [one for pid in pids for one in _tree(pid)]
    _signal(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def _signal(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third on; None if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


class Served(NamedTuple):
    """Results of wrk: requests per second, requests, and seconds at the median and the 99th."""

    rate: float
    requests: int
    p50: float
    p99: float


def wrk(script: Path, url: str, connections: int, seconds: float, core: int | None) -> Served:
    """Send as fast as answers come, over all `connections`; exit if an answer is no 2xx."""
    options = ["-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    output = subprocess.run(
        pinned(["wrk", *options], core),
        check=True,
        capture_output=True,
        text=True,
        timeout=60 + 2 * seconds,
    ).stdout
    if "Non-2xx" in output:
        sys.exit(f"bench: wrong answers from {url}:\n{output}")
    rate, requests = (
        re.search(p, output) for p in (r"Requests/sec:\s+([0-9.]+)", r"(\d+) requests in")
    )
    shares = dict(re.findall(r"^\s+(\d+)%\s+([0-9.]+(?:us|ms|s|m))$", output, re.MULTILINE))
    assert rate is not None, output
    assert requests is not None, output
    return Served(float(rate[1]), int(requests[1]), _seconds(shares["50"]), _seconds(shares["99"]))


def _seconds(text: str) -> float:
    for unit, size in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    raise AssertionError(text)


def until(is_done: Callable[[], bool], limit: float, failure: str) -> None:
    """Ask until the answer is True, as long as it is False or an OSError; exit on timeout."""
    deadline = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError):  # urllib's errors are OSErrors
            if is_done():
                return
        if time.monotonic() > deadline:
            sys.exit(f"{failure} within {limit:g} s")
        time.sleep(0.1)


def until_ready(url: str, limit: float = 20.0) -> None:
    """Wait until a GET is answered with 200; exit on timeout."""

    def is_ready() -> bool:
        return bool(urllib.request.urlopen(url, timeout=1).status == 200)

    until(is_ready, limit, f"bench: {url} did not answer")


def until_listening(port: int, limit: float = 20.0) -> None:
    """Wait until a port of this machine takes connections; exit on timeout."""

    def is_listening() -> bool:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    until(is_listening, limit, f"bench: nobody listens on port {port}")
