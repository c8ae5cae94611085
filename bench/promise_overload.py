"""Overload, live: a stand-in with known slots, and TensorFlow.

Capacity is the rate that the same server answers in a closed loop, through the same gateway, in the
same round. An answer counts if it came within the promise by the client's clock; refused, failed
and abandoned requests do not count. The last ones are answered up to one promise after the load has
ended, so that time is included when the capacity is compared.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import deployed, standin
from bench.builds import ROOT, is_compiled
from bench.deployed import REST, Served
from bench.openloop import in_time, measure
from bench.proxies import BODY, CLIENT, gateway, scratch
from bench.target import Target, photos
from roma.lab.experiments.base import Cell, Check, Column, Table
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.promise import KEPT, LOADS
from roma.tools.demo import models

ROUNDS = 3
SEED = 3000
"""Arrivals of round r and load i are those of SEED + 100 · r + i: no rule was chosen on them."""

WARM = 3
"""Seconds of a closed loop before anything is counted; wrk takes whole ones."""

SLOTS, SERVICE, SERVICES = 8, 0.020, 5.0
"""The stand-in: concurrent requests, seconds of each, and its promise in services."""

MODEL, SLA = "photos", 0.1
"""The demo's larger model and its promise in seconds. A request has the most photographs, at least
one, with which it takes at most 1/SERVICES of the promise."""

_CONFIG = """
models: {{m: {{sla: {{response_time: {sla}}}}}}}
workers:
  - {{backend: static, cores: {slots}, executables: [{{url: "{url}", model: m}}]}}
gateway: {{port: {port}, admin_port: {admin}}}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Offered load, in capacities, and the least part of the capacity that must be in time.

    Clients hang up after `patience` promises.
    """

    times: float
    least: float
    patience: float = math.inf


STANDIN = (
    *(Load(times, KEPT) for times in LOADS),
    *(Load(times, 0.8, 1.0) for times in (1.5, 2.0, 10.0)),
)
TENSORFLOW = tuple(Load(times, 0.85) for times in (1.3, 2.0, 3.0))


@dataclass(frozen=True, slots=True)
class Round:
    """Figures of one round: capacity in req/s; by load, its part that was in time.

    `lags` is the lateness of the client itself, by load: the 99th percentile in seconds.
    """

    capacity: float
    kept: tuple[float, ...]
    lags: tuple[float, ...]


def round_of(
    target: Target, directory: Path, loads: Sequence[Load], seconds: float, seed: int
) -> Round:
    """Measure the capacity, then offer each load for `seconds`."""
    # Twice as many clients as slots: whenever one is answered, another already waits.
    clients = 2 * target.slots
    target.closed(directory, clients, WARM)
    capacity, _ = target.closed(directory, clients, seconds)
    kept, lags = [], []
    for i, load in enumerate(loads):
        report = measure(
            target.port,
            [target.stream(load.times * capacity)],
            seconds,
            sla=target.sla,
            patience=load.patience * target.sla,
            core=target.core,
            seed=seed + i,
        )
        kept.append(in_time(report[target.model]) / (seconds + target.sla) / capacity)
        lags.append(report["client"]["lag"]["p99"])
    return Round(capacity, tuple(kept), tuple(lags))


def on_standin(seconds: float) -> tuple[Table, list[Check]]:
    """Return the results of a stand-in's gateway, and the most requests it had at once."""
    build = "compiled" if is_compiled(ROOT) else "interpreted"
    sla = SERVICES * SERVICE
    with scratch() as directory, standin.running(SLOTS, SERVICE, CLIENT) as backend:
        values = {"backend": backend, "sla": sla, "slots": SLOTS}
        with gateway(directory, build, config=_CONFIG, ready="/readyz", **values) as (port, _):
            target = Target(port, "m", BODY.decode(), SLOTS, sla, CLIENT)
            rounds = _rounds(lambda s: round_of(target, directory, STANDIN, seconds, s))
            most = standin.most(backend)
    note = (
        f"A stand-in, {SLOTS} requests wide, {1000 * SERVICE:g} ms each; promise "
        f"{1000 * sla:g} ms; at most {most} requests at once (aim: ≤ {SLOTS})"
    )
    table, checks = tabled("stand-in", STANDIN, rounds, seconds, note)
    claim = f"stand-in of {SLOTS} slots: {most} requests at once at most (≤ {SLOTS})"
    return table, [*checks, Check(claim, most <= SLOTS)]


def on_tensorflow(seconds: float) -> tuple[Table, list[Check]]:
    """Return the results of the gateway with a real model that has a core alone."""
    path = models.prepare(ROOT / ".cache")[MODEL].path
    with (
        scratch() as directory,
        deployed.deployed(directory, {MODEL: Served(path, SLA)}) as running,
    ):
        one = Target(running.port, MODEL, photos(1), 1, SLA, REST)
        one.closed(directory, 1, WARM)
        _, service = one.closed(directory, 1, WARM)
        target, count = one, 1
        for _ in range(2):  # several in one request take less each
            count = max(1, int(count * SLA / SERVICES / service))
            target = replace(one, body=photos(count))
            _, service = target.closed(directory, 1, WARM)
        rounds = _rounds(lambda s: round_of(target, directory, TENSORFLOW, seconds, s))
    note = (
        f"{MODEL}, {count} photographs a request, quotas by the default law; promise "
        f"{1000 * SLA:g} ms, {SLA / service:.1f} × the {1000 * service:.1f} ms of a request alone"
    )
    return tabled("TensorFlow", TENSORFLOW, rounds, seconds, note)


def _rounds(one: Callable[[int], Round]) -> list[Round]:
    return [one(SEED + 100 * r) for r in range(ROUNDS)]


def tabled(
    server: str,
    loads: Sequence[Load],
    rounds: Sequence[Round],
    seconds: float,
    note: str,
) -> tuple[Table, list[Check]]:
    """Return the table of rounds, and its claims."""
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for i, load in enumerate(loads):
        mean, half = interval([r.kept[i] for r in rounds])
        clients = "wait" if load.patience == math.inf else f"hang up at {load.patience:g} ×"
        lag = 1000 * max(r.lags[i] for r in rounds)
        rows.append((f"{load.times:g} ×", clients, mean, half, f"≥ {load.least:.0%}", lag))
        closing = "" if load.patience == math.inf else f", clients that {clients} the promise"
        claim = f"{server}, {load.times:g} × the capacity{closing}: {mean:.1%} in time"
        checks.append(Check(f"{claim} (≥ {load.least:.0%})", mean >= load.least))
    columns = (
        Column("offered"),
        Column("clients"),
        Column("in time", ".1%"),
        Column("±", ".1%"),
        Column("aim"),
        Column("client's lag p99, ms", ".1f"),
    )
    capacity, half = interval([r.capacity for r in rounds])
    spread = "" if half is None else f" ± {half:.1f}"
    note = (
        f"{note}. Capacity {capacity:.1f}{spread} req/s; {len(rounds)} rounds, {seconds:g} s a load"
    )
    title = f"Answered in time, of the capacity: {server}"
    return Table(f"promise-live-{server.lower()}", title, columns, rows, note), checks
