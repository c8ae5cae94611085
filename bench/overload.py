"""The gateway under overload: requests served, requests shed, and the effect on others.

Each model runs on a stand-in for a model server, SLOTS requests wide, SERVICE seconds each, so that
its capacity is known, and small enough that the open-loop client is never the limit. Arrivals are
Poisson; the gateway has a core alone. Promises are roma.yaml's defaults. Requests that cannot be
answered in time are to be refused: most of them at once, some when their turn comes too late.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench import standin
from bench.openloop import Report, Spread, Stream, in_time, measure, predicts
from bench.programs import cost, resident
from bench.proxies import BODY, CLIENT, gateway, needs, scratch
from bench.tables import new_table

SLOTS, SERVICE = 8, 0.020
CAPACITY = SLOTS / SERVICE
"""Req/s of one model."""

SLA = 0.25
"""SLA in seconds, with roma.yaml's default budget and deadline."""

OFFERED = (2, 10)
SECONDS = 60.0
PROBES = 50.0
"""Requests for /healthz, per second."""

BESIDE = 0.7
"""Load, as a share of its capacity, of the model whose neighbour is flooded."""

_CONFIG = """
models:
  a: &model
    sla: {{response_time: {sla}}}
    cpu: {{max: {slots}, initial: {slots}}}
  b: *model
workers:
  - backend: static
    cores: 64
    executables:
      - {{url: "http://127.0.0.1:{a}", model: a}}
      - {{url: "http://127.0.0.1:{b}", model: b}}
gateway: {{port: {port}, admin_port: {admin}}}
"""


def run(seconds: float = SECONDS) -> None:
    """Print goodput, lateness, memory and answers under 2 and 10 times the capacity.

    Then print the effect on a neighbour.
    """
    needs("overload")
    with scratch() as directory:
        title = f"one model of {CAPACITY:.0f} req/s, each promised {1000 * SLA:.0f} ms"
        loads = [f"{times} × capacity" for times in OFFERED]
        table = new_table(title, f"offered for {seconds:g} s", *loads)
        results = [_overloaded(directory, times, seconds) for times in OFFERED]
        for row in results[0]:
            table.add_row(row, *(result[row] for result in results))
        Console().print(table)
        table = new_table(
            f"model a at {BESIDE:.0%} of its capacity, beside model b, {seconds:g} s",
            *("model b", "a late or refused", "a p50, ms", "a p99, ms", "a max, ms"),
            caption="aim: the late share rises by no more than 1 point",
        )
        for name, rate in (("idle", 0.0), ("flooded 10 ×", 10 * CAPACITY)):
            table.add_row(name, *_beside(directory, rate, seconds))
        Console().print(table)


def _overloaded(directory: Path, times: float, seconds: float) -> dict[str, str]:
    """Return the figures of the table, aims included in the names."""
    with _plant(directory) as (port, pid):
        _warm(port)
        memory, before = resident(pid), cost(pid)
        flood = predicts("a", BODY.decode(), times * CAPACITY)
        probes = Stream(name="health", method="GET", target="/healthz", body="", rate=PROBES)
        report = measure(port, [flood, probes], seconds, sla=SLA, core=CLIENT)
        busy = cost(pid).since(before).total / seconds
        after = resident(pid)
    model, health = report["a"], report["health"]
    answered, everything = model["200"], model["all"]["count"]
    expired = model["504"]["count"] if "504" in model else 0
    unknown = model.keys() - {"200", "429", "504", "all"}
    assert not unknown, {status: model[status] for status in unknown}
    assert health["200"]["count"] == health["all"]["count"], health
    return {
        "goodput, of the capacity (aim: ≥ 90 %)": f"{in_time(model) / seconds / CAPACITY:.1%}",
        "late of the accepted (aim: ≤ 2 %)": f"{answered['late'] / answered['count']:.2%}",
        "accepted p50 / p99, ms": _ms(answered),
        "refused (429)": f"{model['429']['count'] / everything:.1%}",
        "— p50 / p99, ms (aim: p50 < 5)": _ms(model["429"]),
        "refused after waiting (504)": f"{expired / everything:.1%}",
        "/healthz p50 / p99, ms (aim: < 100)": _ms(health["200"]),
        "gateway's memory before → after, MiB": f"{memory:.1f} → {after:.1f}",
        "gateway's CPU, of a core": f"{busy:.0%}",
        "client's own lag p99, ms": f"{1000 * report['client']['lag']['p99']:.2f}",
    }


def _beside(directory: Path, rate: float, seconds: float) -> list[str]:
    with _plant(directory) as (port, _):
        _warm(port)
        rates = {"a": BESIDE * CAPACITY, "b": rate}
        streams = [predicts(m, BODY.decode(), r) for m, r in rates.items() if r]
        report = measure(port, streams, seconds, sla=SLA, core=CLIENT)
    model = report["a"]
    answered, everything = model["200"], model["all"]["count"]
    times = (answered["p50"], answered["p99"], answered["max"])
    return [f"{1 - in_time(model) / everything:.2%}", *(f"{1000 * t:.1f}" for t in times)]


def _warm(port: int) -> Report:
    """Let the gateway measure its models, and grow to its usual size, at half their capacity."""
    return measure(port, [predicts(m, BODY.decode(), CAPACITY / 2) for m in "ab"], 5.0, core=CLIENT)


def _ms(spread: Spread) -> str:
    return f"{1000 * spread['p50']:.1f} / {1000 * spread['p99']:.1f}"


@contextlib.contextmanager
def _plant(directory: Path) -> Iterator[tuple[int, int]]:
    """Run two stand-ins and a gateway; yield the gateway's port and process id."""
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(standin.running(SLOTS, SERVICE, CLIENT)) for _ in range(2))
        values = {"a": a, "b": b, "sla": SLA, "slots": SLOTS}
        yield stack.enter_context(gateway(directory, config=_CONFIG, ready="/readyz", **values))
