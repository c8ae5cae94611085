"""Cost of a decision of policies that choose batch size and variant: aims 1 ms, `qos` 50 µs.

Every decision of two minutes of the paper's queries on one device and on ten, at the load of its
busiest hours. The longest is reported separately: a gateway answers nobody meanwhile.
"""

import gc
import time

from rich.console import Console

from bench.tables import new_table
from roma.lab.experiments.qos.compare import Contender, contenders
from roma.lab.experiments.qos.runs import Trial, run
from roma.lab.experiments.qos.setting import CLUSTER, SINGLE, TESTS

SECONDS = 120
BUSIEST = TESTS[1]


def run_all() -> None:
    """Print µs per decision by policy."""
    title = "decision, µs: median / p99 (longest of all, ms)"
    table = new_table(title, "policy", "one device", "ten devices")
    for single, cluster in zip(contenders(SINGLE), contenders(CLUSTER), strict=True):
        cells = [
            _cell(costs(contender, kinds))
            for contender, kinds in ((single, SINGLE), (cluster, CLUSTER))
        ]
        table.add_row(single.name, *cells)
    Console().print(table)


def costs(contender: Contender, kinds: tuple[str, ...]) -> list[float]:
    """Return the seconds of every decision, the shortest first."""
    spent: list[float] = []
    policy = contender.policy
    decide = policy.decide

    def timed(*args: object) -> object:
        begun = time.perf_counter()
        decided = decide(*args)  # type: ignore[arg-type]  # with any arguments
        spent.append(time.perf_counter() - begun)
        return decided

    watched = type(policy.__name__, (policy,), {"decide": timed})
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as `dispatcher.live.app.run`
    options, learned = contender.options, contender.learned
    run(Trial(watched, options, kinds, BUSIEST, 1, seconds=SECONDS, learned=learned))
    return sorted(spent)


def _cell(spent: list[float]) -> str:
    median, high = (spent[int(q * len(spent))] * 1e6 for q in (0.5, 0.99))
    return f"{median:.0f} / {high:.0f} ({spent[-1] * 1e3:.1f})"
