"""The gateway under `clockwork`, live: emulated devices over the wire, requests over HTTP.

Each device is a `roma worker` that waits the times of Clockwork's Table 1 instead of computing. The
compiled gateway has a core alone; devices and the open-loop client share the other one, which is
where a machine of two cores ends. Aim: 99.9 % of the admitted requests within the SLO.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.builds import environment
from bench.openloop import Stream, measure
from bench.programs import cost, free_ports, program, until_listening
from bench.proxies import CLIENT, gateway, needs, scratch

DEVICES = 4
EMULATED = "resnet18:12,resnet50:12,mobile_pose_mobilenetv3:12"
MODELS = tuple(
    f"{kind}-{i}" for kind in ("resnet18", "resnet50", "mobile_pose_mobilenetv3") for i in range(12)
)
SLO = 0.1
RATES = (200, 400, 800, 1000, 1500, 2000)
SECONDS = 15.0
AIM = 0.999

_EXECUTABLE = "      - {{{{actions: 127.0.0.1:{port}, device: gpu}}}}\n"
_HEAD = """
models:
"""
_MODEL = "  {name}: {{{{sla: {{{{response_time: {slo}, statistic: each}}}}}}}}\n"
_WORKERS = """
workers:
  - backend: static
    cores: 2
    executables:
"""
_TAIL = """
scheduling: {{gpu: clockwork}}
gateway: {{port: {port}, admin_port: {admin}}}
"""


def run(rates: tuple[int, ...] = RATES, seconds: float = SECONDS) -> None:
    """Print what came of the admitted requests by rate, and the highest rate that keeps the aim."""
    needs("planned")
    title = (
        f"clockwork live: {DEVICES} emulated devices, {len(MODELS)} models, SLO {SLO * 1e3:.0f} ms"
    )
    table = Table(title=title)
    for name in (
        "req/s",
        "in time",
        "refused",
        "p50, ms",
        "p99 of the slowest model, ms",
        "max, ms",
        "gateway's core",
    ):
        table.add_column(name, justify="right")
    best = 0.0
    with scratch() as directory:
        for rate in rates:
            row, share = _measured(directory, rate, seconds)
            table.add_row(*row)
            if share >= AIM:
                best = max(best, rate)
    table.caption = f"highest rate with {AIM:.1%} of the admitted in time: {best:g} req/s"
    Console().print(table)


def _measured(directory: Path, rate: float, seconds: float) -> tuple[list[str], float]:
    streams = [
        Stream(
            name=model,
            method="POST",
            target=f"/v1/models/{model}:predict",
            body='{"instances": [1.0]}',
            rate=rate / len(MODELS),
        )
        for model in MODELS
    ]
    with _plant(directory) as (port, pid):
        measure(port, streams, 3.0, sla=SLO, core=CLIENT)  # loads what is asked for
        before = cost(pid)
        report = measure(port, streams, seconds, sla=SLO, core=CLIENT)
        busy = cost(pid).since(before).total / seconds
    answers = [report[m]["200"] for m in MODELS if "200" in report[m]]
    everything = sum(report[m]["all"]["count"] for m in MODELS)
    answered = sum(a["count"] for a in answers)
    in_time = answered - sum(a["late"] for a in answers)
    refused = sum(report[m][s]["count"] for m in MODELS for s in ("429", "504") if s in report[m])
    assert answered + refused == everything, {m: sorted(report[m]) for m in MODELS}
    share = in_time / max(1, answered)
    p50 = sum(a["p50"] * a["count"] for a in answers) / max(1, answered)
    p99 = max((a["p99"] for a in answers), default=0.0)
    worst = max((a["max"] for a in answers), default=0.0)
    return [
        f"{rate:g}",
        f"{share:.2%}",
        f"{refused / everything:.2%}",
        *(f"{1e3 * t:.1f}" for t in (p50, p99, worst)),
        f"{busy:.0%}",
    ], share


@contextlib.contextmanager
def _plant(directory: Path) -> Iterator[tuple[int, int]]:
    """Run the devices and a gateway; yield the gateway's port and process id."""
    ports = free_ports(DEVICES)
    config = _HEAD + "".join(_MODEL.format(name=m, slo=SLO) for m in MODELS) + _WORKERS
    config += "".join(_EXECUTABLE.format(port=port) for port in ports) + _TAIL
    with contextlib.ExitStack() as stack:
        for port in ports:
            argv = [sys.executable, "-m", "roma", "worker", "--runtime", "emulated"]
            argv += ["--emulate", EMULATED, "--port", f"{port}"]
            stack.enter_context(program(argv, CLIENT, environment("interpreted")))
        for port in ports:
            until_listening(port)
        yield stack.enter_context(gateway(directory, config=config, ready="/readyz"))
