"""Cost of silent connections that clients keep open: memory, and an active client's times."""

import contextlib
from statistics import median

from rich.console import Console

from bench.openloop import held, measure, predicts
from bench.programs import Cost, cost, resident
from bench.proxies import BODY, CLIENT, echo, gateway, needs, scratch
from bench.tables import new_table

CONNECTIONS = 10_000
RATE = 1000.0
SECONDS = 5.0
ROUNDS = 3


def run() -> None:
    """Print memory, and an active client's response times, without and with the silent ones."""
    needs("idle", "nginx")
    rounds: dict[int, list[tuple[float, float, float, float, float]]] = {0: [], CONNECTIONS: []}
    with scratch() as directory, contextlib.ExitStack() as stack:
        backend, _ = stack.enter_context(echo(directory))
        port, pid = stack.enter_context(
            gateway(directory, backend=backend, more=", limits: {idle_timeout: 3600}")
        )
        _active(port, pid)
        for _ in range(ROUNDS):
            for count, found in rounds.items():
                with held(port, count):
                    found.append((resident(pid), *_active(port, pid)))
    title = f"an active client at {RATE:,.0f} req/s (median of {ROUNDS} × {SECONDS:g} s)"
    columns = ("idle connections", "RSS, MiB", "p50, ms", "p99, ms", "max, ms", "CPU of a core")
    table = new_table(title, *columns, words=0, caption="aim: less than 300 MB")
    for count, found in rounds.items():
        # The process keeps memory that many connections once took: the first round is the true one.
        memory = found[0][0]
        _, *times, busy = (median(values) for values in zip(*found, strict=True))
        spread = (f"{1000 * t:.2f}" for t in times)
        table.add_row(f"{count:,}", f"{memory:.0f}", *spread, f"{busy:.1%}")
    Console().print(table)


def _active(port: int, pid: int) -> tuple[float, float, float, float]:
    """Return p50, p99 and max in seconds, and the share of a core that the gateway took."""
    before: Cost = cost(pid)
    found = measure(port, [predicts("m", BODY.decode(), RATE)], SECONDS, core=CLIENT)["m"]
    assert found["200"]["count"] == found["all"]["count"], found
    busy = cost(pid).since(before).total / SECONDS
    return found["200"]["p50"], found["200"]["p99"], found["200"]["max"], busy
