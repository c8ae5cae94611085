"""Variants under a load that steps, live: `fixed`, `qos` and `qos-opt`, one after the other.

    python -m bench variants [--seconds 15] [--out DIRECTORY] [--page DOCUMENT]

Two variants of a model (`bench.readers`) on a real `roma device`, behind a real gateway. The device
has a core alone; gateway and open-loop client share the other one. Rates and deadlines follow from
batch times that are measured first, so a slow machine gets less load; the usage of both cores by
other programs stands beside the results. Every policy gets the same pictures at the same moments.
Quality is counted here, by the client's clock: κ of the variant that answered times V of the
response time, 0 for refused requests.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import yaml
from rich.console import Console

from bench import readers
from bench.builds import ROOT, environment, is_compiled
from bench.programs import cost, pinned, program, until_listening
from bench.proxies import gateway, needs, scratch
from bench.readers import BATCHES, LARGE, SMALL
from dispatcher.state.utility import linear, value
from roma.lab.experiments import output
from roma.lab.experiments.base import Column, Output, Picture, Table
from roma.tools.demo.ports import free_ports
from roma.tools.load import RequestEnd, RequestResult, Stream
from roma.tools.load.client import HEADERS
from roma.tools.load.errors import NoAnswerError
from roma.tools.load.generator import LoadRun
from roma.tools.load.outcomes import HttpAnswer
from roma.tools.load.report import Distribution
from roma.workload.arrivals import Profile, RateStep, poisson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("fixed", "qos", "qos-opt")
LOADS = (0.5, 0.8, 1.1, 1.6, 1.1, 0.5)
"""Loads, as multiples of what the large variant serves in batches of `REFERENCE`."""
REFERENCE = 8

SECONDS = 15.0
SEED = 1
WARM_UP = 5.0
"""Seconds at the first load that are not counted; `qos-opt` computes its values meanwhile."""

SOFT, HARD = 1.5, 2.0
"""Soft deadline, by the large variant's batches of 16; hard one, by the soft one."""
JUDGED = 16

MODEL = "digits"
WORKER, REST = 0, 1
"""Cores."""
START_LIMIT = 120.0
"""Seconds until a device has measured its models, on a machine that does other things too."""

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting common to all policies: seconds, requests per second, parts of 1.

    `accuracy` is measured, of held-out pictures; `times` are seconds by variant and batch size.
    """

    accuracy: Mapping[str, float]
    times: Mapping[str, Mapping[int, float]]
    loads: tuple[float, ...]
    seconds: float

    @property
    def kappa(self) -> dict[str, float]:
        """κ: each variant's accuracy, as a part of the best one's."""
        best = max(self.accuracy.values())
        return {name: found / best for name, found in self.accuracy.items()}

    @property
    def reference(self) -> float:
        """Requests per second that are load 1."""
        return REFERENCE / self.times[LARGE][REFERENCE]

    @property
    def soft(self) -> float:
        """The soft deadline, rounded to the value in roma.yaml."""
        return round(SOFT * self.times[LARGE][JUDGED], 3)

    @property
    def hard(self) -> float:
        """The hard deadline."""
        return HARD * self.soft

    @property
    def profile(self) -> Profile:
        """The load."""
        return Profile(tuple(RateStep(x * self.reference, self.seconds) for x in self.loads))


@dataclass(frozen=True, slots=True)
class Told:
    """Outcome of a request due at `intended`, in seconds of the run.

    `status` is 0 where there was no answer; `variant` is empty unless there was a good one.
    """

    intended: float
    seconds: float
    status: int
    variant: str = ""
    is_right: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A policy; `others` is the number of cores that other programs used meanwhile."""

    policy: str
    told: Sequence[Told]
    others: float


def quality(told: Told, setting: Setting) -> float:
    """Return Q of an outcome: κ·V by the client's own clock, 0 for a refused request."""
    if not told.variant:
        return 0.0
    return setting.kappa[told.variant] * value(linear, told.seconds, setting.soft, setting.hard)


def during(told: Sequence[Told], begin: float, end: float) -> list[Told]:
    """Return the requests that were due in a part of the run."""
    return [t for t in told if begin <= t.intended < end]


def row(told: Sequence[Told], setting: Setting) -> dict[str, float | int | None]:
    """Return a row of the table; None where nothing was answered."""
    answered = [t for t in told if t.variant]
    spread = Distribution.of([t.seconds for t in answered])

    def share(count: int) -> float | None:
        return count / len(answered) if answered else None

    return {
        "requests": len(told),
        "quality": sum(quality(t, setting) for t in told) / len(told) if told else None,
        "small": share(sum(t.variant == SMALL for t in answered)),
        "refused": 1 - len(answered) / len(told) if told else None,
        "late": share(sum(t.seconds > setting.soft for t in answered)),
        **{p: spread.percentiles[p] if spread else None for p in ("p50", "p95", "p99")},
        "right": share(sum(t.is_right for t in answered)),
    }


def read(result: RequestResult, digits: Sequence[int]) -> Told:
    """Return the outcome in a result of `Client`; request n asked for the n-th digit, cycled."""
    if result.outcome is not RequestEnd.ANSWERED:
        return Told(result.intended, result.response_time, result.status or 0)
    variant, _, body = result.answer.partition(b"\n")
    scores = orjson.loads(body)["predictions"][0]
    is_right = scores.index(max(scores)) == digits[result.index % len(digits)]
    return Told(result.intended, result.response_time, 200, variant.decode(), is_right)


class Client:
    """Sends predict calls; prefixes an answer's body with a line that names the variant."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        """Send one request; raises NoAnswerError."""
        url = f"{self._url}/v1/models/{model}:predict"
        try:
            async with self._session.post(url, data=body) as answer:
                who = answer.headers.get("X-Roma-Variant", "")
                return HttpAnswer(answer.status, f"{who}\n".encode() + await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError("disconnected") from error


def run(argv: Sequence[str] = ()) -> None:
    """Print the table of all policies; write numbers and picture where asked to."""
    parser = argparse.ArgumentParser("python -m bench variants")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load")
    parser.add_argument("--out", type=Path, help="folder for numbers, tables and picture")
    parser.add_argument("--page", type=Path, help="document with places for tables and picture")
    options = parser.parse_args(argv)
    needs("variants")
    folder, accuracy = prepared(ROOT / ".cache" / "variants")
    seconds = _child("times", folder, core=WORKER)
    times = {name: {int(b): t for b, t in of.items()} for name, of in seconds.items()}
    setting = Setting(accuracy, times, LOADS, options.seconds)
    runs = measured(folder, setting, POLICIES, warm_up=WARM_UP)
    picture = Picture("qos-live", partial(_draw, runs=runs, setting=setting), (10.0, 6.5))
    found = Output((_overall(runs, setting), _by_load(runs, setting)), (picture,))
    output.show(found, Console(width=140))
    if options.out is not None:
        output.save(found, options.out, vector=False)
        numbers = json.dumps(_numbers(runs, setting), indent=1, ensure_ascii=False)
        (options.out / "qos-live.json").write_text(f"{numbers}\n")
    if options.page is not None:
        output.fill(options.page, "qos-live", found)


def prepared(folder: Path) -> tuple[Path, dict[str, float]]:
    """Return the directory of the variants, and their accuracies; build them unless they exist."""
    facts = folder / hashlib.sha256(Path(readers.__file__).read_bytes()).hexdigest()[:16]
    if not (facts / readers.FACTS).exists():  # written last
        shutil.rmtree(folder, ignore_errors=True)
        facts.mkdir(parents=True)
        _child("build", facts)
    return facts, json.loads((facts / readers.FACTS).read_bytes())


def measured(
    folder: Path, setting: Setting, policies: Sequence[str], *, warm_up: float
) -> list[Run]:
    """Run the load once for each policy."""
    pictures, digits = readers.held_out()
    bodies = [orjson.dumps({"instances": [picture]}) for picture in pictures]
    first = setting.profile.steps[0].rate
    warm = poisson(Profile((RateStep(first, warm_up),)), seed=SEED + 1)
    arrivals = poisson(setting.profile, seed=SEED)
    runs = []
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {REST})
    try:
        for policy in policies:
            with _plant(folder, setting, policy) as (port, pids):
                url = f"http://127.0.0.1:{port}"
                asyncio.run(_sent(url, Stream(MODEL, warm, bodies)))
                busy, own, begun = _busy(), _own(pids), time.monotonic()
                results = asyncio.run(_sent(url, Stream(MODEL, arrivals, bodies)))
                others = _busy() - busy - (_own(pids) - own)
                others = max(0.0, others) / (time.monotonic() - begun)
            told = sorted((read(r, digits) for r in results), key=lambda t: t.intended)
            assert len(told) == len(arrivals), (len(told), len(arrivals))
            runs.append(Run(policy, told, others))
    finally:
        os.sched_setaffinity(0, before)
    return runs


async def _sent(url: str, stream: Stream) -> list[RequestResult]:
    results: list[RequestResult] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:
        await LoadRun([stream], Client(session, url), on_result=results.append).run()
    return results


@contextlib.contextmanager
def _plant(folder: Path, setting: Setting, policy: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Run device and gateway; yield the gateway's port and the process ids of both."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "roma", "device", "--models", str(folder), "--port", f"{port}"]
    argv += ["--batches", ",".join(map(str, BATCHES))]
    config: dict[str, Any] = {
        "models": {
            MODEL: {
                "sla": {
                    "response_time": setting.soft,
                    "deadline": setting.hard,
                    "statistic": "each",
                },
                "variants": {name: {"accuracy": k} for name, k in setting.kappa.items()},
            }
        },
        "workers": [
            {
                "backend": "static",
                "cores": 2,
                "executables": [{"actions": f"127.0.0.1:{port}", "device": "gpu"}],
            }
        ],
        "scheduling": {"gpu": policy},
    }
    # `gateway` formats its ports into this text.
    text = yaml.safe_dump(config).replace("{", "{{").replace("}", "}}")
    text += "gateway: {{port: {port}, admin_port: {admin}}}\n"
    build = "compiled" if is_compiled(ROOT) else "interpreted"
    with scratch() as directory:
        log = directory / "worker.log"
        with program(argv, WORKER, environment("interpreted") | _CPU, log=log) as worker:
            until_listening(port, START_LIMIT)
            with gateway(directory, build, config=text, ready="/readyz", core=REST) as (at, pid):
                yield at, (worker, pid)


_CPU = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def _child(act: str, folder: Path, core: int | None = None) -> Any:
    """Run a command of `bench.readers` in a process of its own: TensorFlow stays there."""
    argv = [sys.executable, "-m", "bench.readers", act, str(folder)]
    done = subprocess.run(
        pinned(argv, core),
        check=False,
        capture_output=True,
        text=True,
        env=environment("interpreted") | _CPU,
        timeout=600,
    )
    if done.returncode:
        sys.exit(f"bench: bench.readers {act}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _busy() -> float:
    """Return the CPU seconds that both cores have spent on anything, stolen ones included."""
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in (f"cpu{WORKER}", f"cpu{REST}"):
            user, nice, system, _, _, irq, soft, steal = map(int, fields[:8])
            total += user + nice + system + irq + soft + steal
    return total * _TICK


def _own(pids: Sequence[int]) -> float:
    return sum(cost(pid).total for pid in pids) + time.process_time()


_COLUMNS = (
    Column("requests", "d"),
    Column("quality", ".3f"),
    Column("small", ".1%"),
    Column("refused", ".2%"),
    Column("late", ".1%"),
    *(Column(f"{p}, ms", ".0f") for p in ("p50", "p95", "p99")),
    Column("right", ".2%"),
)


def _cells(told: Sequence[Told], setting: Setting) -> tuple[float | int | None, ...]:
    found = row(told, setting)
    for p in ("p50", "p95", "p99"):
        seconds = found[p]
        found[p] = None if seconds is None else 1e3 * seconds
    return tuple(found.values())


def _overall(runs: Sequence[Run], setting: Setting) -> Table:
    told = [
        f"{name}: reads {setting.accuracy[name]:.1%} right, κ {setting.kappa[name]:.3f}, ms "
        + ", ".join(f"B{b} {1e3 * t:.1f}" for b, t in of.items())
        for name, of in setting.times.items()
    ]
    told.append(
        f"load 1: {setting.reference:.0f} req/s; soft deadline {1e3 * setting.soft:.0f} ms, hard "
        f"{1e3 * setting.hard:.0f} ms; others: cores that other programs used"
    )
    return Table(
        "qos-live",
        "variants live: loads "
        + ", ".join(f"{x:g}" for x in setting.loads)
        + f" for {setting.seconds:g} s each",
        (Column("policy"), *_COLUMNS, Column("others", ".2f")),
        [(r.policy, *_cells(r.told, setting), r.others) for r in runs],
        "\n".join(told),
    )


def _by_load(runs: Sequence[Run], setting: Setting) -> Table:
    rows = []
    for i, load in enumerate(setting.loads):
        begin = i * setting.seconds
        for r in runs:
            part = during(r.told, begin, begin + setting.seconds)
            rows.append((f"{load:g}, from {begin:g} s", r.policy, *_cells(part, setting)))
    return Table(
        "qos-live-loads",
        "the same by load",
        (Column("load"), Column("policy"), *_COLUMNS),
        rows,
        "small, late (after the soft deadline), right: of the answered; percentiles likewise",
    )


def _numbers(runs: Sequence[Run], setting: Setting) -> dict[str, Any]:
    def one(r: Run) -> dict[str, Any]:
        seconds = setting.seconds
        parts = [during(r.told, i * seconds, (i + 1) * seconds) for i in range(len(setting.loads))]
        return {
            "others": r.others,
            "all": row(r.told, setting),
            "loads": [row(part, setting) for part in parts],
            "seconds": [row(part, setting) for part in _each_second(r.told, setting)],
        }

    derived = {"kappa": setting.kappa, "soft": setting.soft, "hard": setting.hard}
    return {
        "setting": asdict(setting) | derived | {"reference": setting.reference, "seed": SEED},
        "gateway": "compiled" if is_compiled(ROOT) else "interpreted",
        "policies": {r.policy: one(r) for r in runs},
    }


def _each_second(told: Sequence[Told], setting: Setting) -> list[list[Told]]:
    parts: list[list[Told]] = [[] for _ in range(round(setting.profile.duration))]
    for t in told:
        parts[min(int(t.intended), len(parts) - 1)].append(t)
    return parts


def _draw(figure: "Figure", runs: Sequence[Run], setting: Setting) -> None:
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 1))
    for i, r in enumerate(runs):
        rows = [row(part, setting) for part in _each_second(r.told, setting)]
        middle = [second + 0.5 for second in range(len(rows))]
        for axis, name in zip(axes, ("quality", "small"), strict=False):
            values = [float("nan") if x[name] is None else x[name] for x in rows]
            axis.plot(middle, values, color=f"C{i}", linewidth=1.2, label=r.policy)
    axes[0].axhline(setting.kappa[SMALL], color="grey", linewidth=0.8, linestyle=":")
    axes[0].set_ylabel("quality, mean of a second")
    axes[0].legend(ncols=len(runs), fontsize=8, loc="lower left")
    axes[1].set_ylabel("share of the small")
    edges = [i * setting.seconds for i in range(len(setting.loads) + 1)]
    axes[2].stairs([s.rate for s in setting.profile.steps], edges, color="black", baseline=None)
    counts = [len(part) for part in _each_second(runs[0].told, setting)]
    axes[2].plot([s + 0.5 for s in range(len(counts))], counts, color="grey", linewidth=0.8)
    axes[2].set_ylabel("req/s")
    axes[2].set_xlabel("seconds; dotted: κ of the small variant")
    axes[2].set_xlim(0, edges[-1])
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", linewidth=0.3)
