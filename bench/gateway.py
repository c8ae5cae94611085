"""The gateway against nginx: both as a 2-hop proxy on core 0, load and echo backend on core 1.

Needs `nginx` and `wrk` (Debian packages nginx-light and wrk) and two cores. The backend is an
nginx that answers every predict with 16 floats; the gateway has everything on: queue, scheduler,
deadlines, statistics.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.builds import environment
from roma.load import Stream, run_load
from roma.workload.arrivals import Profile, Step, paced

SECONDS = 3
ROUNDS = 5
CONNECTIONS = (16, 64)
LATENCY_RATE = 1000.0
BODY = b'{"instances": [[' + b", ".join(b"%d.5" % i for i in range(16)) + b"]]}"

_COMMON = """
daemon off; worker_processes 1; pid {dir}/{name}.pid; error_log {dir}/{name}.log error;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_buffer_size 64k;
  client_body_temp_path {dir}/{name}-body; proxy_temp_path {dir}/{name}-proxy;
  {server}
}}
"""
_ECHO = """
server {{ listen 127.0.0.1:{port} backlog=4096; default_type application/json;
  location = /v1/models/m {{ return 200
    '{{"model_version_status":[{{"version":"1","state":"AVAILABLE"}}]}}'; }}
  location / {{ return 200 '{{"predictions": [[{floats}]]}}'; }} }}
"""
_PROXY = """
upstream echo {{ server 127.0.0.1:{backend}; keepalive 128; }}
server {{ listen 127.0.0.1:{port} backlog=4096;
  location / {{ proxy_pass http://echo; proxy_http_version 1.1;
                proxy_set_header Connection ""; }} }}
"""
_WRK = """
wrk.method = "POST"
wrk.path = "/v1/models/m:predict"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{body}'
"""
_ROMA = """
models: {{m: {{sla: {{response_time: 10}}, cpu: {{max: 128, initial: 128}}}}}}
workers:
  - backend: static
    cores: 256
    executables: [{{url: "http://127.0.0.1:{backend}", model: m}}]
gateway: {{port: {port}, admin_port: {admin}}}
"""
_ON_ASYNCIO = """
import asyncio, sys
from pathlib import Path
from dispatcher.live import app
from roma import config
file = Path(sys.argv[1])
asyncio.run(app.run(config.load(file), file))
"""


def run() -> None:
    """Print throughput as a share of nginx's, and the latency the gateway adds."""
    missing = [tool for tool in ("nginx", "wrk", "taskset") if shutil.which(tool) is None]
    if missing or len(os.sched_getaffinity(0)) < 2:
        sys.exit(f"gateway bench: needs two cores and {', '.join(missing) or 'nothing else'}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        backend, proxy, *others = _free_ports(8)
        echo = _ECHO.format(port=backend, floats=", ".join(f"{i}.5" for i in range(16)))
        stack.enter_context(_nginx(directory, "echo", echo, core=1))
        stack.enter_context(
            _nginx(directory, "proxy", _PROXY.format(port=proxy, backend=backend), core=0)
        )
        commands = {
            "gateway": ("interpreted", ["-m", "roma", "dispatcher"]),
            "gateway, compiled": ("compiled", ["-m", "roma", "dispatcher"]),
            "gateway without uvloop": ("interpreted", ["-c", _ON_ASYNCIO]),
        }
        proxies, pids = {"nginx": proxy}, {}
        for name, (build, command) in commands.items():
            proxies[name], admin = others.pop(), others.pop()
            file = directory / f"{proxies[name]}.yaml"
            file.write_text(_ROMA.format(backend=backend, port=proxies[name], admin=admin))
            argv = [sys.executable, *command, str(file)]
            pids[name] = stack.enter_context(_program(argv, core=0, env=environment(build)))
        for port in (backend, *proxies.values()):
            _until_ready(f"http://127.0.0.1:{port}/v1/models/m")
        script = directory / "post.lua"
        script.write_text(_WRK.format(body=BODY.decode()))
        _throughput(script, {"echo alone": backend, **proxies}, pids["gateway"])
        _latency(backend, proxies)


def _throughput(script: Path, ports: dict[str, int], gateway_pid: int) -> None:
    table = Table(title=f"2-hop proxy, req/s (median of {ROUNDS} × {SECONDS} s) and share of nginx")
    table.add_column("")
    for connections in CONNECTIONS:
        table.add_column(f"{connections} connections", justify="right")
    # Round by round, so that a drift of the machine meets all of them; the share is per round.
    rounds = [
        {(name, c): _wrk(script, port, c) for c in CONNECTIONS for name, port in ports.items()}
        for _ in range(ROUNDS)
    ]
    for name in ports:
        cells = []
        for c in CONNECTIONS:
            rate = median(r[name, c] for r in rounds)
            share = median(r[name, c] / r["nginx", c] for r in rounds)
            cells.append(f"{rate:,.0f} ({share:.2f})")
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    rss = Path(f"/proc/{gateway_pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+)", rss)
    assert resident is not None
    console.print(f"gateway resident memory after the load: {int(resident[1]) / 1024:.0f} MiB")


def _latency(backend: int, ports: dict[str, int]) -> None:
    table = Table(title=f"latency added to the direct backend at {LATENCY_RATE:.0f} req/s, ms")
    table.add_column("")
    for share in ("p50", "p99"):
        table.add_column(share, justify="right")
    added: dict[str, dict[str, list[float]]] = {n: {"p50": [], "p99": []} for n in ports}
    for _ in range(ROUNDS):
        direct = _percentiles(backend)
        for name, port in ports.items():
            through = _percentiles(port)
            for share, values in added[name].items():
                values.append((through[share] - direct[share]) * 1000)
    for name, shares in added.items():
        table.add_row(name, *(f"{median(values):.3f}" for values in shares.values()))
    Console().print(table)


def _percentiles(port: int) -> dict[str, float]:
    arrivals = paced(Profile((Step(LATENCY_RATE, SECONDS),)))
    report = asyncio.run(run_load([Stream("m", arrivals, [BODY])], f"http://127.0.0.1:{port}"))
    assert report.total.response_time is not None
    assert report.total.answered == report.total.sent
    return dict(report.total.response_time.percentiles)


def _wrk(script: Path, port: int, connections: int) -> float:
    options = ["-t1", f"-c{connections}", f"-d{SECONDS}s", "-s", str(script)]
    output = subprocess.run(
        ["taskset", "-c", "1", "wrk", *options, f"http://127.0.0.1:{port}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if "Non-2xx" in output:
        sys.exit(f"gateway bench: wrong answers from port {port}:\n{output}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", output)
    assert found is not None, output
    return float(found[1])


@contextlib.contextmanager
def _nginx(directory: Path, name: str, server: str, core: int) -> Iterator[int]:
    config = directory / f"{name}.conf"
    config.write_text(_COMMON.format(dir=directory, name=name, server=server))
    with _program(["nginx", "-c", str(config), "-p", str(directory)], core) as pid:
        yield pid


@contextlib.contextmanager
def _program(argv: list[str], core: int, env: dict[str, str] | None = None) -> Iterator[int]:
    pinned = ["taskset", "-c", str(core), *argv]
    process = subprocess.Popen(pinned, stderr=subprocess.DEVNULL, env=env)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _until_ready(url: str, limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(url, timeout=1).status == 200:
                return
        if time.monotonic() > deadline:
            sys.exit(f"gateway bench: {url} did not answer within {limit:g} s")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports
