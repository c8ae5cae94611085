"""The gateway against nginx: both as a 2-hop proxy on core 0, load and echo backend on core 1.

The gateway has everything on: queue, scheduler, deadlines, statistics. Throughput varies with the
machine's neighbours, CPU time per request much less. `bench.beside` compares commits.
"""

import contextlib
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.openloop import Spread, measure, predicts
from bench.programs import Cost, Served, cost, resident, wrk
from bench.proxies import (
    BODY,
    CLIENT,
    SOCKET,
    bare,
    echo,
    gateway,
    needs,
    nginx,
    scratch,
    wrk_script,
)
from bench.tables import new_table

SECONDS = 3
ROUNDS = 5
CONNECTIONS = (16, 64)
RATE = 1000.0
"""Req/s at which the latency added by a proxy is measured."""

LOAD = 0.8
"""Share of its peak at which the response time under load is measured."""

CLIENTS = 512
"""Number of clients at that load, each with pauses between requests: Python cannot send so much."""

NGINX, COMPILED = "nginx, one worker", "gateway, compiled"
MOUNTED = "aiohttp endpoint, compiled"
SOCKETS = ", Unix socket behind"
BARE = "bare proxy (bench/bare.py)"
Rounds = list[dict[tuple[str, int], tuple[Served, Cost]]]


def run() -> None:
    """Print throughput, CPU time per request and latency, beside nginx's."""
    needs("gateway", "nginx", "wrk")
    with scratch() as directory, contextlib.ExitStack() as stack:
        direct, pid = stack.enter_context(echo(directory))
        ports, pids = {"echo alone": direct}, {"echo alone": pid}
        by_socket = directory / SOCKET
        proxies = {
            NGINX: nginx(directory, direct),
            NGINX + SOCKETS: nginx(directory, by_socket),
            BARE: bare(directory, direct),
            "gateway": gateway(directory, "interpreted", backend=direct),
            COMPILED: gateway(directory, backend=direct),
            COMPILED + SOCKETS: gateway(directory, backend=by_socket),
            MOUNTED: gateway(directory, backend=direct, command="bench.mounted"),
        }
        for name, proxy in proxies.items():
            ports[name], pids[name] = stack.enter_context(proxy)
        for traces in (False, True):
            _throughput(wrk_script(directory, traces=traces), ports, pids, traces=traces)
        _latency(direct, {name: port for name, port in ports.items() if port != direct})
        _under_load(directory, ports)


def _throughput(script: Path, ports: dict[str, int], pids: dict[str, int], *, traces: bool) -> None:
    rounds: Rounds = []
    heads = "a new trace in each head" if traces else "one head"
    for _ in range(ROUNDS):
        # Round by round, so that a drift of the machine affects all; shares are taken per round.
        measured = {}
        for c in CONNECTIONS:
            for name, port in ports.items():
                before = cost(pids[name])
                served = wrk(script, f"http://127.0.0.1:{port}", c, SECONDS, CLIENT)
                measured[name, c] = served, cost(pids[name]).since(before).per(served.requests)
        rounds.append(measured)
    columns = ["", *(f"{c} connections" for c in CONNECTIONS)]
    spread = f"median of {ROUNDS} × {SECONDS} s"
    rates = new_table(f"2-hop proxy, {heads}, req/s ({spread}), share of nginx", *columns)
    costs = new_table(f"CPU µs per request, {heads}: user + system, share of nginx", *columns)
    memory = Table(title="resident memory after the load")
    for name in ports:
        rates.add_row(name, *(_rate(rounds, name, c) for c in CONNECTIONS))
        if name != "echo alone":
            costs.add_row(name, *(_cost(rounds, name, c) for c in CONNECTIONS))
            memory.add_row(name, f"{resident(pids[name]):.0f} MiB")
    console = Console()
    console.print(
        rates, f"aim: compiled ≥ {0.85 if traces else 0.9} of nginx, aiohttp ≥ 0.25", costs, memory
    )


def _rate(rounds: Rounds, name: str, connections: int) -> str:
    key, nginx_key = (name, connections), (NGINX, connections)
    rate = median(r[key][0].rate for r in rounds)
    share = median(r[key][0].rate / r[nginx_key][0].rate for r in rounds)
    return f"{rate:,.0f} ({share:.2f})"


def _cost(rounds: Rounds, name: str, connections: int) -> str:
    key, nginx_key = (name, connections), (NGINX, connections)
    user, system = (median(r[key][1][i] for r in rounds) for i in (0, 1))
    share = median(r[key][1].total / r[nginx_key][1].total for r in rounds)
    return f"{user:.1f} + {system:.1f} ({share:.2f})"


def _latency(direct: int, ports: dict[str, int]) -> None:
    title = f"latency added to the direct backend at {RATE:,.0f} req/s, ms"
    table = new_table(title, "", "p50", "p99")
    added: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    for _ in range(ROUNDS):
        base = _predicts(direct, RATE, SECONDS)
        for name, port in ports.items():
            through = _predicts(port, RATE, SECONDS)
            added[name].append((through["p50"] - base["p50"], through["p99"] - base["p99"]))
    for name, pairs in added.items():
        table.add_row(name, *(f"{1000 * median(p[i] for p in pairs):.3f}" for i in (0, 1)))
    Console().print(table, "aim: p50 ≤ 0.3, p99 ≤ 2")


def _under_load(directory: Path, ports: dict[str, int]) -> None:
    table = new_table(
        f"response time at {LOAD:.0%} of its peak, ms ({CLIENTS} clients, exponential "
        "pauses); nginx at the gateway's rate",
        *("", "req/s", "served", "p50", "p99"),
    )
    names = (COMPILED, NGINX, "gateway")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    rate = 0.0
    for _ in range(ROUNDS):
        for name in names:
            url = f"http://127.0.0.1:{ports[name]}"
            if name != NGINX:  # just before: the machine's speed drifts within minutes
                peak = wrk(wrk_script(directory), url, CONNECTIONS[-1], SECONDS, CLIENT).rate
                rate = LOAD * peak
            pausing = wrk_script(directory, think=CLIENTS / rate)
            served = wrk(pausing, url, CLIENTS, SECONDS, CLIENT)
            found[name].append((rate, served.rate, served.p50, served.p99))
    for name in names:
        rate, done, *times = (median(v) for v in zip(*found[name], strict=True))
        spread = (f"{1000 * t:.2f}" for t in times)
        table.add_row(name, f"{rate:,.0f}", f"{done:,.0f}", *spread)
    Console().print(table, "aim: p99 ≤ 10")


def _predicts(port: int, rate: float, seconds: float) -> Spread:
    report = measure(port, [predicts("m", BODY.decode(), rate)], seconds, core=CLIENT)["m"]
    assert report["200"]["count"] == report["all"]["count"], report
    return report["200"]
