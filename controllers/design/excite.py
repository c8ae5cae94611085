"""Runs for identification: a closed loop with dithered cores and Poisson arrivals."""

from dataclasses import replace

import control
import numpy as np

from controllers.design.closed_loop import LoopScenario, closed
from controllers.design.identify import IdentificationRun
from controllers.design.plant import OperatingPoint


def excited(
    point: OperatingPoint, scenario: LoopScenario, *, dither: float = 0.8, seed: int = 1
) -> IdentificationRun:
    """Return a run for identification: a law with ±`dither` random cores and Poisson arrivals."""
    loop, begin = closed(point, scenario)
    time = np.arange(0.0, scenario.seconds, point.period)
    random = np.random.default_rng(seed)
    moves = dither * np.repeat(random.choice([-1.0, 1.0], len(time) // 2 + 1), 2)[: len(time)]
    rate = random.poisson(point.throughput * point.period, len(time)) / point.period
    set_point = np.full(len(time), point.response_time)
    run = control.input_output_response(loop, time, [0 * rate, rate, set_point, moves], begin)
    response, cores, completed = run.outputs
    return IdentificationRun(time, cores + moves, response, completed / point.period)


def example(point: OperatingPoint, seed: int = 1) -> IdentificationRun:
    """Return 600 s of an excited run at 1 s response, in which the queue is hardly ever empty."""
    slow = replace(point, response_time=1.0)
    gains: tuple[tuple[str, float | str], ...] = (("error", "rt"), ("K", 0.5), ("a", 0.9))
    return excited(slow, LoopScenario(gains=gains, seconds=600.0, age=False), seed=seed)
