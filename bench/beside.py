"""This checkout compared with another one: CPU time of both compiled builds, measured in turns.

`python -m bench --beside CLONE [gateway] [decisions] [ticks]`. CLONE is a directory that holds a
checkout of the project, usually of an older commit, with its own `.venv` and `build/compiled`:
`make wheel` there makes both. Each side runs its own code in its own environment.

Figures are CPU times of a process, per request, decision or tick, not wall-clock times. A virtual
machine's speed can change by a fifth within seconds, so rounds are short: one side for a second,
then the other, with alternating order. Each round has a ratio, ours to theirs. Exit status: 0, 1 if
a figure's median ratio is above AIM, 2 if something that is needed is missing.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple, NoReturn

from rich.console import Console

from bench.builds import COMPILED, ROOT, environment, interpreter
from bench.programs import cost, pinned, wrk
from bench.proxies import CLIENT, PROXY, echo, gateway, needs, scratch, wrk_script
from bench.tables import new_table

ROUNDS = 31
"""Odd, so that a figure's median is one of its rounds."""

AIM = 1.03
"""Upper bound on the median ratio of every figure."""

SECONDS = 1
"""Seconds of load on a gateway in each turn."""

PACKAGES = ("controllers", "dispatcher", "roma", "supervisor")
"""Sources of the compiled build."""

_SCRIPT = """
import gc, sys, time
from bench import decisions, ticks

try:
    from roma.config.control import DEFAULT_LAW as LAW
except ImportError:  # a checkout from before 0.2
    from roma import config

    LAW = getattr(config, "DEFAULT_LAW", "adaptive")

def us(models, waiting, count=20_000):
    def seconds(n):
        decisions.DECISIONS, start = n, time.process_time()
        decisions.decision_us("roma", models, waiting)
        return time.process_time() - start
    return (seconds(count + 1) - seconds(1)) / count * 1e6

time.perf_counter = time.process_time
gc.disable()  # when it runs depends on all that was made before
for _ in sys.stdin:
    gc.collect()
    print(eval(sys.argv[1]), flush=True)
"""
"""A program that prints the cost of the call in its argument for every line it reads. The
benchmarks are those of the checkout that it runs in, since they fit its interfaces. A decision's
cost includes the arrival that refills the queue; a clock around each decision would take a tenth of
it."""

_TICK = "ticks.tick_ms(LAW, {cores})"
Measure = Callable[[], float]


class Figure(NamedTuple):
    """A cost, with its unit in the name, and the function that starts measuring a checkout."""

    name: str
    start: Callable[[Path], contextlib.AbstractContextManager[Measure]]


class Round(NamedTuple):
    """A figure of both sides."""

    ours: float
    theirs: float


def run(arguments: Sequence[str]) -> None:
    """Take CLONE and names; print their figures, all if none is named; exit with the status."""
    if not arguments:
        _fail("--beside needs CLONE, the directory of another checkout")
    clone, names = Path(arguments[0]).resolve(), arguments[1:]
    for name in names:
        if name not in FIGURES:
            _fail(f"{name}: must be one of {', '.join(FIGURES)}")
    _check(clone)
    if not names or "gateway" in names:
        needs("gateway", "nginx", "wrk")
    title = f"CPU time, compiled, here and in {clone}: medians of {ROUNDS} rounds"
    columns = ("", "ours", "theirs", "ratio", "quartiles")
    table = new_table(title, *columns, caption=f"aim: ratio ≤ {AIM}")
    is_above = False
    for figure in (f for name in names or FIGURES for f in FIGURES[name]):
        rounds = compare(figure, clone)
        costs = (f"{median(side):.2f}" for side in zip(*rounds, strict=True))
        low, middle, high = quantiles([r.ours / r.theirs for r in rounds], method="inclusive")
        table.add_row(figure.name, *costs, f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
        is_above |= middle > AIM
    Console().print(table)
    sys.exit(is_above)


def compare(figure: Figure, clone: Path) -> list[Round]:
    """Measure a figure on both sides, round by round."""
    rounds = []
    with figure.start(ROOT) as ours, figure.start(clone) as theirs:
        for i in range(ROUNDS):
            if i % 2 == 0:
                rounds.append(Round(ours=ours(), theirs=theirs()))
            else:
                rounds.append(Round(theirs=theirs(), ours=ours()))
    return rounds


@contextlib.contextmanager
def _gateway(root: Path, connections: int) -> Iterator[Measure]:
    """Start a gateway on a core; yield a function that returns its µs per request."""
    with (
        scratch() as directory,
        echo(directory) as (backend, _),
        gateway(directory, backend=backend, root=root) as (port, pid),
    ):
        script, url = wrk_script(directory), f"http://127.0.0.1:{port}"

        def measure() -> float:
            before = cost(pid)
            served = wrk(script, url, connections, SECONDS, CLIENT)
            return cost(pid).since(before).per(served.requests).total

        measure()  # warms it up
        yield measure


@contextlib.contextmanager
def _script(root: Path, call: str) -> Iterator[Measure]:
    """Start the script on the same core; yield a function that returns the cost of a call."""
    argv = pinned([interpreter(root), "-c", _SCRIPT, call], PROXY)
    pipe, env = subprocess.PIPE, environment("compiled", root)
    with subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, env=env) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def measure() -> float:
            with contextlib.suppress(BrokenPipeError):  # it has exited
                asked.write(b"\n")
            printed = answers.readline()
            return float(printed) if printed else _fail(f"{root} cannot measure {call}")

        yield measure


FIGURES = {
    "gateway": [
        Figure("request, 16 connections, µs", partial(_gateway, connections=16)),
        Figure("request, 64 connections, µs", partial(_gateway, connections=64)),
    ],
    "decisions": [
        Figure("decision, 10 models, 10 waiting, µs", partial(_script, call="us(10, 10)")),
        Figure("decision, 10 models, 4,000 waiting, µs", partial(_script, call="us(10, 4000)")),
        Figure("decision, 4,000 models and waiting, µs", partial(_script, call="us(4000, 4000)")),
    ],
    "ticks": [
        Figure("tick, 200 models, ms", partial(_script, call=_TICK.format(cores=1000))),
        Figure("tick, 200 models, shortage, ms", partial(_script, call=_TICK.format(cores=20))),
    ],
}


def _check(clone: Path) -> None:
    """Exit if something is missing, or if the build is not of the present sources."""
    if not clone.is_dir():
        _fail(f"{clone} is missing: run `git clone {ROOT} {clone}`, then `make wheel` in it")
    built = COMPILED / ".built"
    for root, needed in ((clone, Path(".venv/bin/python")), (clone, built), (ROOT, built)):
        if not (root / needed).exists():
            _fail(f"{root / needed} is missing: run `make wheel` in {root}")
    for root in (clone, ROOT):
        sources = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
        if any(path.stat().st_mtime > (root / built).stat().st_mtime for path in sources):
            _fail(f"{root / COMPILED} is older than the sources: run `make wheel` in {root}")


def _fail(message: str) -> NoReturn:
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(2)
