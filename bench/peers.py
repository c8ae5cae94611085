"""The same trivial model behind this gateway and in other serving systems, on both cores.

The others live in an environment of their own (`make peers`), since their pins clash with ours. One
system runs at a time, shares the cores with wrk, and takes turns with the gateway, so that a drift
of the machine affects both; each is set up as its documentation recommends. CPU time is that of all
processes of a system together, and the steadier measure.
"""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from bench.builds import ROOT, environment
from bench.programs import cost, paused, program, until, until_ready, wrk
from bench.proxies import BODY, STATUS, TARGET, gateway, needs, scratch, wrk_script
from bench.tables import new_table
from roma.tools.demo.ports import free_ports

SECONDS = 3
ROUNDS = 3
CONNECTIONS = (16, 64)
BIN = ROOT / ".venv-peers" / "bin"
ECHOES = ROOT / "bench" / "echoes"
START_LIMIT = 120.0

HIGH_THROUGHPUT = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""Ray's own settings: docs.ray.io, "Enable High Throughput on Ray Serve"."""

_SAVED_MODEL = """
import sys, tensorflow as tf
class Echo(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32, name="x")])
    def __call__(self, x):
        return {"predictions": tf.identity(x)}
echo = Echo()
tf.saved_model.save(echo, sys.argv[1], signatures=echo.__call__)
"""

Running = contextlib.AbstractContextManager[tuple[int, tuple[int, ...]]]
"""A system that serves; yields its port and its processes."""


class System(NamedTuple):
    """A system to compare; `aim` is the factor by which the gateway is to be faster."""

    name: str
    start: Callable[[Path], Running]
    target: str
    aim: str = ""


class Found(NamedTuple):
    """Requests per second and CPU microseconds per request."""

    rate: float
    cost: float


Rounds = list[tuple[Found, Found]]
"""Pairs of results, of the gateway and of a system, in turns."""


def run() -> None:
    """Print requests per second of each system, and the gateway's as a multiple."""
    needs("peers", "wrk")
    if not (BIN / "mosec").exists():
        sys.exit("peers bench: the other systems are missing: make peers")
    systems = (
        System("gateway, TCP behind it", _by_tcp, TARGET),
        System("gateway, two processes", _two_processes, TARGET),
        System("gateway + SavedModel", _embedded, TARGET),
        System(f"Mosec {_version('mosec')}", lambda d: _mosec(d, 1), "/inference", "≥ 2"),
        System("… in batches of 16", lambda d: _mosec(d, 16), "/inference", "≥ 2"),
        System(f"BentoML {_version('bentoml')}", _bentoml, "/predict", "≥ 10"),
        System(f"Ray Serve {_version('ray')}", lambda d: _ray(d, {}), "/", "≥ 10"),
        System("… high throughput", lambda d: _ray(d, HIGH_THROUGHPUT), "/", "≥ 10"),
    )
    found: dict[str, list[Rounds]] = {}
    with scratch() as directory, _plain(directory) as ours:
        for system in systems:
            found[system.name] = _measured(system, directory, ours)
    for connections, which in zip(CONNECTIONS, zip(*found.values(), strict=True), strict=True):
        _print(connections, systems, which)


def _print(connections: int, systems: tuple[System, ...], found: tuple[Rounds, ...]) -> None:
    table = new_table(
        f"echo of 16 floats, {connections} connections (medians of {ROUNDS} × {SECONDS} s)",
        *("", "req/s", "gateway's", "×", "CPU µs", "gateway's", "×", "aim"),
        caption="×: of what the gateway with a Python echo behind it does in the same round",
    )
    for system, rounds in zip(systems, found, strict=True):
        ours, theirs = zip(*rounds, strict=True)
        table.add_row(
            system.name,
            f"{median(f.rate for f in theirs):,.0f}",
            f"{median(f.rate for f in ours):,.0f}",
            f"{median(o.rate / t.rate for o, t in rounds):.1f}",
            f"{median(f.cost for f in theirs):,.0f}",
            f"{median(f.cost for f in ours):,.0f}",
            f"{median(t.cost / o.cost for o, t in rounds):.1f}",
            system.aim,
        )
    Console().print(table)


def _version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    argv = [str(BIN / "python"), "-c", code]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def _measured(system: System, directory: Path, ours: tuple[int, tuple[int, ...]]) -> list[Rounds]:
    """Return the results at each number of connections."""
    script, theirs = wrk_script(directory), wrk_script(directory, target=system.target)
    with system.start(directory) as (port, pids):
        url = f"http://127.0.0.1:{port}"
        _until_answering(system.name, url + system.target)
        wrk(theirs, url, CONNECTIONS[0], 1, None)
        found: list[Rounds] = [[] for _ in CONNECTIONS]
        for connections, rounds in zip(CONNECTIONS, found, strict=True):
            for _ in range(ROUNDS):
                with paused(pids):
                    us = _one(script, f"http://127.0.0.1:{ours[0]}", connections, ours[1])
                rounds.append((us, _one(theirs, url, connections, pids)))
        return found


def _one(script: Path, url: str, connections: int, pids: tuple[int, ...]) -> Found:
    before = [cost(pid) for pid in pids]
    served = wrk(script, url, connections, SECONDS, None)
    used = sum(cost(pid).since(b).total for pid, b in zip(pids, before, strict=True))
    return Found(served.rate, used / served.requests * 1e6)


def _until_answering(name: str, url: str) -> None:
    asked = urllib.request.Request(url, BODY, {"Content-Type": "application/json"})

    def is_answering() -> bool:
        answer = urllib.request.urlopen(asked, timeout=5).read()
        if b"15.5" not in answer:
            sys.exit(f"peers bench: {name} answers {answer!r}")
        return True

    until(is_answering, START_LIMIT, f"peers bench: {name} did not answer")


def _plain(directory: Path) -> Running:
    backend = directory / "plain.sock"
    return _behind(directory, _echo(backend), backend)


def _by_tcp(directory: Path) -> Running:
    (backend,) = free_ports(1)
    return _behind(directory, _echo(backend), backend)


@contextlib.contextmanager
def _two_processes(directory: Path) -> Iterator[tuple[int, tuple[int, ...]]]:
    (second,), backend = free_ports(1), directory / "workers.sock"
    more = f", processes: 2, process_port: {second}"
    with _behind(directory, _echo(backend), backend, command="roma up", more=more) as served:
        until_ready(f"http://127.0.0.1:{second}/healthz")
        yield served


def _echo(place: int | Path) -> list[str]:
    return [sys.executable, str(ECHOES / "plain_echo.py"), f"{place}"]


def _embedded(directory: Path) -> Running:
    (backend,) = free_ports(1)
    model = directory / "echo"
    building = [sys.executable, "-c", _SAVED_MODEL, str(model / "1")]
    subprocess.run(building, check=True, capture_output=True, env=environment("compiled"))
    argv = [sys.executable, "-m", "roma", "serve-model", f"--model=m={model}", f"--port={backend}"]
    return _behind(directory, argv, backend)


@contextlib.contextmanager
def _behind(
    directory: Path, argv: list[str], backend: int | Path, **options: str
) -> Iterator[tuple[int, tuple[int, ...]]]:
    with contextlib.ExitStack() as stack:
        model_server = stack.enter_context(program(argv, env=environment("compiled")))
        if isinstance(backend, int):  # else the gateway's own readiness is used
            until_ready(f"http://127.0.0.1:{backend}{STATUS}", START_LIMIT)
        port, pid = stack.enter_context(gateway(directory, backend=backend, core=None, **options))
        yield port, (pid, model_server)


def _mosec(directory: Path, batch: int) -> Running:
    (port,) = free_ports(1)
    argv = [str(BIN / "python"), str(ECHOES / "mosec_echo.py"), f"{batch}", "--port", f"{port}"]
    return _alone(directory, [*argv, "--address", "127.0.0.1", "--log-level", "error"], port)


def _bentoml(directory: Path) -> Running:
    (port,) = free_ports(1)
    argv = [str(BIN / "bentoml"), "serve", "bentoml_echo:Echo", "--working-dir", str(ECHOES)]
    env = {"BENTOML_DO_NOT_TRACK": "1", "BENTOML_HOME": str(directory / "bentoml")}
    return _alone(directory, [*argv, "--host", "127.0.0.1", "--port", f"{port}"], port, env)


def _ray(directory: Path, env: dict[str, str]) -> Running:
    (port,) = free_ports(1)
    argv = [str(BIN / "python"), str(ECHOES / "ray_echo.py"), f"{port}"]
    env = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(directory), **env}
    return _alone(directory, argv, port, env)


@contextlib.contextmanager
def _alone(
    directory: Path, argv: list[str], port: int, env: dict[str, str] | None = None
) -> Iterator[tuple[int, tuple[int, ...]]]:
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with program(argv, env={**kept, **path, **(env or {})}, log=directory / "peer.log") as pid:
        yield port, (pid,)
