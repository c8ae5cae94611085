"""Speed of the simulator, and proof that its memory does not grow with the length of a run.

Speed is requests per second of one core's CPU time, of the sources and of the compiled build; every
figure comes from a process of its own. Memory is the peak of such a process; `python -m bench
simulation 10` goes up to ten million requests (minutes).
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.builds import BUILDS, environment
from bench.tables import new_table
from roma.config.schema import Config
from roma.lab.experiments.systems import ROMA, SHIPPED_ENGINE
from roma.lab.experiments.workloads import ALL_APPS
from roma.lab.sim.scenario import Scenario, from_config
from roma.lab.sim.simulation import Simulation

ROUNDS = 3
STEP = 11.25
"""Seconds: the demo's 90 s in eight steps."""

LOADS = {"digits": "19-19-19-19-56-56-19-19", "photos": "9.5-9.5-29-29-9.5-9.5-16-9.5"}
"""Req/s: `roma.tools.demo.plan`'s shares of 1.4 cores, lowered until the promises are kept."""

REQUESTS_PER_LAP = STEP * sum(float(rate) for text in LOADS.values() for rate in text.split("-"))


PLANTS: dict[str, tuple[str, Callable[[], Scenario]]] = {
    "demo": ("demo: two models, one worker", lambda: from_config(demo(20))),
    "roma": ("all-apps under ROMA: four models, two GPUs", lambda: ALL_APPS.scenario(ROMA, 1)),
    "defaults": ("all-apps, defaults at 1 s", lambda: ALL_APPS.scenario(SHIPPED_ENGINE, 1)),
}


def run(millions: int = 2) -> None:
    """Print requests per second of one core, and the peak memory by the length of a run."""
    title = f"simulator: requests per second of one core, best of {ROUNDS}"
    table = new_table(title, "plant", *BUILDS)
    for key, (name, _) in PLANTS.items():
        # In turns, so that a drift of the machine affects both.
        rounds = [{b: _measured(b, "speed", key) for b in BUILDS} for _ in range(ROUNDS)]
        table.add_row(name, *(f"{max(r[b] for r in rounds):,.0f}" for b in BUILDS))
    Console().print(table)
    title = "simulator: peak memory of one process, MiB"
    table = new_table(title, "million requests", *BUILDS, words=0)
    for length in (1, millions):
        peaks = [_measured(build, "peak", f"{length}") for build in BUILDS]
        table.add_row(f"{length}", *(f"{peak:.1f}" for peak in peaks))
    Console().print(table)


def demo(laps: int) -> Config:
    """Return the demo's two models on two cores, with its load repeated."""
    promises = {"digits": (0.25, 0.0045), "photos": (0.5, 0.022)}
    return Config.model_validate(
        {
            "models": {
                name: {
                    "path": name,
                    "sla": {"response_time": seconds, "statistic": "p95"},
                    "cpu": {"min": 0.1, "initial": 0.7},
                }
                for name, (seconds, _) in promises.items()
            },
            "workers": [{"cores": 2, "reserved": 0.6}],
            "plant": {
                "duration": 8 * STEP * laps,
                "models": {
                    name: {
                        "cost": cost,
                        "load": {"profile": "-".join([LOADS[name]] * laps), "step": STEP},
                    }
                    for name, (_, cost) in promises.items()
                },
            },
        }
    )


def speed(scenario: Scenario) -> float:
    """Return the requests simulated per second of CPU time."""
    simulation = Simulation(scenario)
    start = time.process_time()
    arrivals = simulation.run().arrivals
    return arrivals / (time.process_time() - start)


def peak_mib(millions: float) -> float:
    """Return the peak memory of this process after it has simulated the demo plant."""
    Simulation(from_config(demo(round(millions * 1e6 / REQUESTS_PER_LAP)))).run()
    # Not ru_maxrss: that counts the parent's pages, held between fork and exec, as ours.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _measured(build: str, what: str, of: str) -> float:
    """Return the figure that a fresh process of a build prints."""
    command = [sys.executable, "-m", "bench.simulation", what, of]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment(build)
    )
    return float(done.stdout)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["speed", key]:
            print(speed(PLANTS[key][1]()))
        case ["peak", millions]:
            print(peak_mib(float(millions)))
