"""Proxies between a client and a model server: an nginx or a gateway, each on one core.

Needs `nginx` and `wrk` (Debian packages nginx-light and wrk) and two cores. The trivial backend is
an nginx that answers every predict with 16 floats.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.builds import ROOT, environment, interpreter
from bench.programs import program, until_listening, until_ready
from roma.tools.demo.ports import free_ports

PROXY, CLIENT = 0, 1
"""Cores: the measured program has one alone; load and backend share the other."""

SOCKET = "echo.sock"
"""Socket, in the scratch directory, on which the trivial backend also listens."""

BODY = b'{"instances": [[' + b", ".join(b"%d.5" % i for i in range(16)) + b"]]}"
STATUS = "/v1/models/m"
TARGET = f"{STATUS}:predict"

_NGINX = """
daemon off; worker_processes 1; pid {dir}/{name}.pid; error_log {dir}/{name}.log error;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_buffer_size 64k;
  client_body_temp_path {dir}/{name}-body; proxy_temp_path {dir}/{name}-proxy;
  {server}
}}
"""
_ECHO = """
server {{ listen 127.0.0.1:{port} backlog=4096; listen unix:{socket} backlog=4096;
  default_type application/json;
  location = /v1/models/m {{ return 200
    '{{"model_version_status":[{{"version":"1","state":"AVAILABLE"}}]}}'; }}
  location / {{ return 200 '{{"predictions": [[{floats}]]}}'; }} }}
"""
_PROXY = """
upstream echo {{ server {backend}; keepalive 128; }}
server {{ listen 127.0.0.1:{port} backlog=4096;
  location / {{ proxy_pass http://echo; proxy_http_version 1.1;
                proxy_set_header Connection ""; }} }}
"""
_WRK = """
wrk.method = "POST"
wrk.path = "{target}"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{body}'
"""
_THINK = """
local mean = {mean:.3f}
function delay() return math.floor(0.5 - mean * math.log(1 - math.random())) end
"""
_TRACES = """
local before, after = ...
local count, random, format = 0, math.random, string.format
function init() before, after = wrk.format():match("^(.-\\r\\n)(.*)$") end
function request()
  count = count + 1
  return format("%straceparent: 00-%016x%016x-%016x-01\\r\\nX-Request-Id: %08x-%08x\\r\\n%s",
    before, random(2^40), count, random(2^40), random(2^31), count, after)
end
"""
_ROMA = """
models: {{m: {{sla: {{response_time: 10}}, cpu: {{max: 128, initial: 128}}}}}}
workers:
  - backend: static
    cores: 256
    executables: [{{url: "{url}", model: m}}]
gateway: {{port: {port}, admin_port: {admin}{more}}}
control: {{port: {control}}}
"""


def needs(name: str, *tools: str) -> None:
    """Exit if a tool or the second core is missing."""
    missing = [tool for tool in (*tools, "taskset") if shutil.which(tool) is None]
    if missing or len(os.sched_getaffinity(0)) < 2:
        sys.exit(f"{name} bench: needs two cores and {', '.join(missing) or 'nothing else'}")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory for configurations and logs, removed at the end."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # nginx's workers are another user
        yield Path(directory)


@contextlib.contextmanager
def echo(directory: Path, core: int | None = CLIENT) -> Iterator[tuple[int, int]]:
    """Run the trivial backend, which listens on SOCKET too; yield its port and process id."""
    (port,) = free_ports(1)
    socket = directory / SOCKET
    server = _ECHO.format(port=port, socket=socket, floats=", ".join(f"{i}.5" for i in range(16)))
    with _nginx(directory, "echo", server, core) as pid:
        until_ready(f"http://127.0.0.1:{port}{STATUS}")
        yield port, pid


@contextlib.contextmanager
def nginx(directory: Path, backend: int | Path) -> Iterator[tuple[int, int]]:
    """Run nginx as a proxy; yield its port and process id."""
    (port,) = free_ports(1)
    where = f"unix:{backend}" if isinstance(backend, Path) else f"127.0.0.1:{backend}"
    server = _PROXY.format(port=port, backend=where)
    with _nginx(directory, f"proxy-{port}", server, PROXY) as pid:
        until_ready(f"http://127.0.0.1:{port}{STATUS}")
        yield port, pid


@contextlib.contextmanager
def bare(directory: Path, backend: int) -> Iterator[tuple[int, int]]:
    """Run the proxy that does nothing else; yield its port and process id."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "bench.bare", str(port), str(backend)]
    log = directory / "bare.log"
    with program(argv, PROXY, environment("interpreted"), log=log) as pid:
        until_listening(port)
        yield port, pid


@contextlib.contextmanager
def gateway(
    directory: Path,
    build: str = "compiled",
    *,
    backend: int | Path = 0,
    config: str = _ROMA,
    ready: str = STATUS,
    root: Path = ROOT,
    core: int | None = PROXY,
    command: str = "roma dispatcher",
    more: str = "",
    **values: object,
) -> Iterator[tuple[int, int]]:
    """Run a gateway by `python -m command FILE`; yield its port and process id.

    `backend` is its port or socket. `config` is a roma.yaml with placeholders for `port`, `admin`,
    `control`, `backend`, its `url` and `values`; `more` are further keys of `gateway`.
    """
    port, admin, control = free_ports(3)
    file = directory / f"{port}.yaml"
    url = f"unix://{backend}" if isinstance(backend, Path) else f"http://127.0.0.1:{backend}"
    ports = {"port": port, "admin": admin, "control": control}
    file.write_text(config.format(**ports, backend=backend, url=url, more=more, **values))
    argv = [interpreter(root), "-m", *command.split(), str(file)]
    log = directory / f"{port}.log"
    with program(argv, core, environment(build, root), log=log) as pid:
        until_ready(f"http://127.0.0.1:{port}{ready}")
        yield port, pid


def wrk_script(
    directory: Path,
    *,
    target: str = TARGET,
    body: bytes = BODY,
    think: float | None = None,
    traces: bool = False,
) -> Path:
    """Write wrk's script: send as fast as possible, or after pauses of so many seconds on average.

    The pauses are exponential, in whole milliseconds. With `traces`, each request has a traceparent
    and an X-Request-Id of its own.
    """
    kind = "-traces" * traces + "-think" * (think is not None)
    script = directory / f"{target.replace('/', '_')}{kind}.lua"
    more = _TRACES if traces else ""
    if think is not None:
        more += _THINK.format(mean=1000 * think)
    script.write_text(_WRK.format(target=target, body=body.decode()) + more)
    return script


def _nginx(
    directory: Path, name: str, server: str, core: int | None
) -> contextlib.AbstractContextManager[int]:
    config = directory / f"{name}.conf"
    config.write_text(_NGINX.format(dir=directory, name=name, server=server))
    return program(["nginx", "-c", str(config), "-p", str(directory)], core)
