"""The gateway under `clockwork`, live: devices over the wire, requests over HTTP.

Each device is a `roma device` that waits the times of Clockwork's Table 1 instead of computing. The
compiled gateway has a core alone; devices and the open-loop client share the other one, which is
the limit of a machine with two cores. Aim: 99.9 % of the admitted requests within the SLO.
`bench.gpu_planned` does the same with a GPU.
"""

import contextlib
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from bench.builds import environment
from bench.openloop import Report, measure, predicts
from bench.programs import cost, program, until_listening
from bench.proxies import CLIENT, gateway, needs, scratch
from bench.tables import new_table
from roma.cli.console import wide_console
from roma.tools.demo.ports import free_ports

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


@dataclass(frozen=True, slots=True)
class Plant:
    """Devices, models and promise: `worker` are the arguments of a `roma device`, except its port.

    `core` is where devices run, None for all; `start` is the seconds that they may take to start.
    """

    worker: Sequence[str]
    models: Sequence[str]
    slo: float
    body: str = '{"instances": [1.0]}'
    devices: int = 1
    core: int | None = None
    start: float = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """A load: shares of the requests, seconds, and the usage of the gateway's core.

    `errors` are the times of the slowest 1 in 100, 1,000 and 10,000 INFERs beyond their prediction:
    a bound in seconds, of the metric's histogram.
    """

    in_time: float
    refused: float
    median: float
    slow: float
    longest: float
    busy: float
    errors: dict[float, float] = field(default_factory=dict)


def run(rates: tuple[int, ...] = RATES, seconds: float = SECONDS) -> None:
    """Print outcomes of the admitted requests by rate, and the highest rate that keeps the aim."""
    needs("planned")
    argv = ["--runtime", "emulated", "--emulate", EMULATED]
    plant = Plant(argv, MODELS, SLO, devices=DEVICES, core=CLIENT)
    title = f"{DEVICES} emulated devices, {len(MODELS)} models, SLO {SLO * 1e3:.0f} ms"
    wide_console().print(sweep(plant, title, rates, seconds))


def sweep(plant: Plant, title: str, rates: Sequence[float], seconds: float) -> Table:
    """Return a table by rate, of one gateway and its devices."""
    table = new_table(
        f"clockwork live: {title}",
        *("req/s", "in time", "refused", "p50", "worst p99", "max"),
        *("over p99", "p99.9", "p99.99", "gateway"),
        words=0,
    )
    best = 0.0
    with scratch() as directory, _run(directory, plant) as running:
        for rate in rates:
            found = _measured(running, plant, rate, seconds)
            table.add_row(
                f"{rate:g}",
                f"{found.in_time:.2%}",
                f"{found.refused:.2%}",
                *(f"{1e3 * t:.1f}" for t in (found.median, found.slow, found.longest)),
                *(f"≤ {1e3 * t:g}" for t in found.errors.values()),
                f"{found.busy:.0%}",
            )
            if found.in_time >= AIM:
                best = max(best, rate)
    table.caption = (
        f"highest rate with {AIM:.1%} of the admitted in time: {best:g} req/s; times in ms; worst: "
        "of the models; over: what INFERs took beyond their prediction; gateway: of a core"
    )
    return table


@dataclass(frozen=True, slots=True)
class _Running:
    """A running gateway: its port, process id and directory."""

    port: int
    pid: int
    directory: Path

    def errors(self) -> dict[float, float]:
        """Return the number of INFERs by upper bound, in seconds, beyond their prediction."""
        (config,) = self.directory.glob("*.yaml")
        admin = config.read_text().rpartition("admin_port: ")[2].split("}")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as answer:
            return _errors(answer.read().decode())


def _measured(running: _Running, plant: Plant, rate: float, seconds: float) -> Found:
    each = rate / len(plant.models)
    streams = [predicts(model, plant.body, each) for model in plant.models]
    measure(running.port, streams, 3.0, sla=plant.slo, core=CLIENT)  # loads the models in demand
    before, known = cost(running.pid), running.errors()
    report = measure(running.port, streams, seconds, sla=plant.slo, core=CLIENT)
    busy = cost(running.pid).since(before).total / seconds
    counts = {bound: number - known.get(bound, 0.0) for bound, number in running.errors().items()}
    return _found(plant.models, report, busy, counts)


def _found(models: Sequence[str], report: Report, busy: float, counts: dict[float, float]) -> Found:
    answers = [report[m]["200"] for m in models if "200" in report[m]]
    everything = sum(report[m]["all"]["count"] for m in models)
    answered = sum(a["count"] for a in answers)
    in_time = answered - sum(a["late"] for a in answers)
    refused = sum(report[m][s]["count"] for m in models for s in ("429", "504") if s in report[m])
    assert answered + refused == everything, {m: sorted(report[m]) for m in models}
    total = counts[max(counts)]
    return Found(
        in_time / max(1, answered),
        refused / everything,
        sum(a["p50"] * a["count"] for a in answers) / max(1, answered),
        max((a["p99"] for a in answers), default=0.0),
        max((a["max"] for a in answers), default=0.0),
        busy,
        {q: min(b for b in counts if counts[b] >= q * total) for q in (0.99, 0.999, 0.9999)},
    )


def _errors(metrics: str) -> dict[float, float]:
    counts: dict[float, float] = {}
    before = 0.0
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.labels.get("action") != "infer":
                continue
            if sample.name == "roma_device_underrun_seconds_count":
                before += sample.value
            elif sample.name == "roma_device_overrun_seconds_bucket":
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
    return {0.0: before, **{bound: before + count for bound, count in sorted(counts.items())}}


@contextlib.contextmanager
def _run(directory: Path, plant: Plant) -> Iterator[_Running]:
    """Run the devices and a gateway."""
    ports = free_ports(plant.devices)
    config = _HEAD + "".join(_MODEL.format(name=m, slo=plant.slo) for m in plant.models) + _WORKERS
    config += "".join(_EXECUTABLE.format(port=port) for port in ports) + _TAIL
    with contextlib.ExitStack() as stack:
        for port in ports:
            argv = [sys.executable, "-m", "roma", "device", *plant.worker, "--port", f"{port}"]
            stack.enter_context(program(argv, plant.core, environment("interpreted")))
        for port in ports:
            until_listening(port, plant.start)
        running = gateway(directory, config=config, ready="/readyz")
        yield _Running(*stack.enter_context(running), directory)
