"""Production's `step()` in a python-control loop with the plant; no second control law is written.

Two discrete blocks and their interconnection, period T:

    fluid queue   u_C, u_G, r_i ► response (window mean), age, queue, completions
    law           measurement, R° ► cores, in force in the next period

The law's output is a state, so there is no algebraic loop, and the loop has the one period of dead
time that a real one always has. The queue is eq. 4 itself, not its linearisation.
"""

from dataclasses import dataclass
from typing import Any

import control
import numpy as np

from controllers import registry
from controllers.base import Law
from controllers.design.plant import OperatingPoint, Sampling, sampled
from controllers.design.robustness import Controller
from controllers.design.vector import decode, encode
from controllers.late_share import LateShareState
from controllers.measurement import Measurement
from controllers.pi import PiState
from controllers.rate import RequestRate
from controllers.shaping import MAX_GAP
from roma.domain.errors import ConfigError
from roma.domain.model import MEAN_ALPHA

STATES: dict[str, Any] = {
    "pi": PiState(),
    "late_share": LateShareState(RequestRate()),
}
"""Laws whose state is numbers, which python-control can carry in a vector."""

BUDGET = 0.02
"""Share of the requests that may be late, the default budget."""

SUBSTEPS = 100
"""Points of a window at which the response is sampled; midpoints are exact on straight lines."""

MEASURED = ["response", "age", "queue", "arrivals", "by_cpu", "by_gpu"]


@dataclass(frozen=True, slots=True)
class LoopScenario:
    """A run: the law, and the inputs that step at `at` seconds.

    `set_point` in s, `rate` in req/s and `gpus` are added to the operating point. `dead_time` is in
    periods and at least 1: each beyond the first delays response and age by a period. `age` gives
    the law the age of the oldest request, as in production; without it the measurement is the
    window mean alone, which is what the linear theory covers.
    """

    law: str = "pi"
    gains: tuple[tuple[str, float | str], ...] = ()
    set_point: float = 0.0
    rate: float = 0.0
    gpus: float = 0.0
    at: float = 20.0
    seconds: float = 120.0
    dead_time: int = 1
    age: bool = True
    most_cores: float = 6.0


@dataclass(frozen=True, slots=True)
class LoopResponse:
    """The response of a run, one entry per period: s, s, s and cores."""

    scenario: LoopScenario
    time: Any
    response: Any
    set_point: Any
    cores: Any

    @property
    def final_error(self) -> float:
        """τ - R° in s, the mean of the last ten periods."""
        return float(np.mean((self.response - self.set_point)[-10:]))

    @property
    def swing(self) -> float:
        """Peak to peak of τ in s over the last thirty periods: 0 once everything is at rest.

        Of a short run they are fewer: the step itself is no swing.
        """
        return float(np.ptp(self.response[self.time > self.scenario.at][-30:]))

    @property
    def worst(self) -> float:
        """The slowest window mean, in s."""
        return float(np.max(self.response))

    @property
    def settled_after(self) -> float | None:
        """Seconds from the step until τ stays within 5 % of R°; None if it does not."""
        outside = np.flatnonzero(np.abs(self.response / self.set_point - 1) > 0.05)
        last = self.time[outside[-1]] if outside.size else self.scenario.at
        return None if last == self.time[-1] else max(0.0, float(last - self.scenario.at))


def fluid_queue(point: OperatingPoint, dead_time: int = 1) -> Any:
    """Return eq. 4 as a discrete python-control system; its states are the queue and past y."""
    shown = dead_time - 1
    T = point.period
    middles = (np.arange(SUBSTEPS) + 0.5) / SUBSTEPS * T

    def window(x: Any, u: Any) -> tuple[float, float, float, float, float]:
        # python-control evaluates blocks with zeros before it knows their connections.
        cores, gpus, rate = max(u[0], 1e-3), u[1], u[2]
        by_cpu, by_gpu = point.per_core * cores, point.per_gpu * gpus
        capacity = by_cpu + by_gpu
        after = max(0.0, x[0] + (rate - capacity) * T)
        served = x[0] + rate * T - after
        # A request alone in the system takes its own service time; l/ro does not apply.
        service = 1 / (point.per_core * min(cores, 1.0))
        waits = np.maximum(0.0, x[0] + (rate - capacity) * middles) / capacity
        response = float(np.mean(np.maximum(waits, service)))
        return after, response, after / capacity, served * by_cpu / capacity, served

    def update(t: float, x: Any, u: Any, params: Any) -> Any:
        after, response, age, _, _ = window(x, u)
        return [after, *[response, age, *x[1:]][: 2 * shown]]

    def output(t: float, x: Any, u: Any, params: Any) -> Any:
        after, response, age, by_cpu, served = window(x, u)
        seen = [response, age] if shown == 0 else [x[-2], x[-1]]
        return [response, *seen, after, u[2] * T, by_cpu, served - by_cpu]

    return control.nlsys(
        update,
        output,
        inputs=["cores", "gpus", "rate"],
        outputs=["now", *MEASURED],
        states=1 + 2 * shown,
        dt=T,
        name="queue",
    )


def law_block(law: Law, start: Any, point: OperatingPoint, scenario: LoopScenario) -> Any:
    """Return a production law as a discrete python-control system.

    Its states are the cores in force, whether the law has started, and the law's own numbers.
    """

    def update(t: float, x: Any, u: Any, params: Any) -> Any:
        response, age, queue, arrivals, by_cpu, by_gpu, set_point = (float(v) for v in u)
        sla = set_point / MEAN_ALPHA
        measurement = Measurement(
            response_time=response,
            oldest_age=age if scenario.age else 0.0,
            arrivals=arrivals,
            completed_gpu=by_gpu,
            completed_here=by_cpu,
            completed_cpu=by_cpu,
            failed=0.0,
            shed=0.0,
            waiting=max(0, round(queue) - 1),
            in_flight=1,
            usage=by_cpu / point.per_core,
            applied=float(x[0]),
            sla=sla,
            set_point=set_point,
            deadline=60.0,
            violations=by_cpu + by_gpu if response > sla else 0.0,
            budget=BUDGET,
        )
        state = decode(start, x[2:]) if x[1] else None
        demand, state = law(state, measurement, dt=point.period, lo=0.1, hi=scenario.most_cores)
        return [x[0] if demand.cores is None else demand.cores, 1.0, *encode(state)]

    return control.nlsys(
        update,
        lambda t, x, u, params: [x[0]],
        inputs=[*MEASURED, "set_point"],
        outputs=["cores"],
        states=2 + len(encode(start)),
        dt=point.period,
        name="law",
    )


def closed(point: OperatingPoint, scenario: LoopScenario) -> tuple[Any, list[float]]:
    """Return law and queue connected, and the state in which they are in equilibrium.

    Its inputs are gpus, rate, set_point and a dither added to the cores; its outputs are the
    response, the cores that the law put in force, and what the cores completed.
    """
    if scenario.law not in STATES:
        raise ConfigError(f"law = {scenario.law}: must be one of {', '.join(STATES)}")
    if scenario.dead_time < 1:
        raise ConfigError(f"dead_time = {scenario.dead_time}: must be >= 1 period")
    if point.period > MAX_GAP:
        why = "laws hold after a longer one"
        raise ConfigError(f"period = {point.period:g}: must be <= {MAX_GAP:g} s: {why}")
    start = STATES[scenario.law]
    law = registry.build(scenario.law, dict(scenario.gains))
    blocks = [fluid_queue(point, scenario.dead_time), law_block(law, start, point, scenario)]
    wires = [["queue.cores", "law.cores"]] + [[f"law.{x}", f"queue.{x}"] for x in MEASURED]
    loop = control.interconnect(
        blocks,
        connections=wires,
        inplist=["queue.gpus", "queue.rate", "law.set_point", "queue.cores"],
        inputs=["gpus", "rate", "set_point", "dither"],
        outlist=["queue.now", "law.cores", "queue.by_cpu"],
        outputs=["response", "cores", "completed"],
    )
    past = [point.response_time] * (2 * scenario.dead_time - 2)
    return loop, [point.queue, *past, point.cores, 0.0, *encode(start)]


def main(point: OperatingPoint, scenario: LoopScenario) -> LoopResponse:
    """Run one scenario from equilibrium at the operating point; virtual time throughout."""
    for name, value in (
        ("set_point", point.response_time + scenario.set_point),
        ("rate", point.throughput + scenario.rate),
        ("gpus", 1 + scenario.gpus),
    ):
        if not 0 < value < np.inf:
            step = getattr(scenario, name)
            raise ConfigError(f"{name} = {step:g}: the step must be finite and leave something")
    loop, begin = closed(point, scenario)
    time = np.arange(0.0, scenario.seconds, point.period)
    step = (time >= scenario.at).astype(float)
    set_point = point.response_time + scenario.set_point * step
    rate = point.throughput + scenario.rate * step
    inputs = [scenario.gpus * step, rate, set_point, 0 * step]
    run = control.input_output_response(loop, time, inputs, begin)
    return LoopResponse(scenario, time, run.outputs[0], set_point, run.outputs[1])


def predicted(point: OperatingPoint, controller: Controller, scenario: LoopScenario) -> Any:
    """Return τ in s as the linear theory predicts it after the scenario's step of the set point."""
    plant = sampled(point, Sampling.MEAN)
    # The first dead step is in the loop, the others are between the response and its measurement.
    late = control.tf([1], [1] + [0] * (scenario.dead_time - 1), point.period)
    loop = control.feedback(controller.open_loop(plant, 1), late)
    time = np.arange(0.0, scenario.seconds, point.period)
    step = scenario.set_point * (time >= scenario.at)
    run = control.forced_response(loop, time, step)
    return point.response_time + run.outputs
