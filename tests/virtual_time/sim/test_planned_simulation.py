"""`roma simulate` on planned devices: the figures of a fleet of the same setting."""

import pytest

from dispatcher.schedulers.clockwork.policy import Clockwork
from dispatcher.schedulers.qos.heuristic import Qos
from roma.config import schema
from roma.config.scheduling import QualityConfig
from roma.domain.errors import ConfigError
from roma.domain.events import Reason
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Arrival, FleetPlan
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

CLOCKWORK = """
models:
  a: {sla: {response_time: 0.1, deadline: 0.1, statistic: each}}
  b: {sla: {response_time: 0.1, deadline: 0.1, statistic: each}}
workers:
  - {backend: static, cores: 1, executables: [{actions: 'h:1', device: gpu}, {actions: 'h:2', device: gpu}]}
scheduling: {gpu: clockwork, latency: 0.001}
plant:
  duration: 30
  pages: 3
  models:
    a: {device: {pages: 2, load: 0.02, batches: {1: 0.01, 2: 0.012, 4: 0.016, 8: 0.024}}, load: {profile: 180}}
    b: {device: {pages: 2, load: 0.02, batches: {1: 0.01, 2: 0.012, 4: 0.016, 8: 0.024}}, load: {profile: 120-600, step: 15}}
"""

QOS = """
models:
  m:
    sla: {response_time: 1, deadline: 2, statistic: each}
    variants: {full: {accuracy: 1}, tiny: {accuracy: 0.5}}
workers:
  - {backend: static, cores: 1, executables: [{actions: 'h:1', device: gpu}]}
scheduling: {gpu: qos, latency: 0.001}
plant:
  duration: 60
  models:
    m:
      variants:
        full: {load: 0.1, batches: {1: 0.069, 2: 0.106, 4: 0.165, 8: 0.282, 16: 0.508, 32: 0.944}}
        tiny: {load: 0.1, batches: {1: 0.042, 2: 0.056, 4: 0.063, 8: 0.088, 16: 0.146, 32: 0.244}}
      load: {profile: 10-60, step: 30}
"""


def simulated(text, seed=7):
    scenario = from_config(schema.parse(text), seed=seed)
    return Simulation(scenario).run()


def fleet_of(text, policy, seed=7, **changes):
    """The same setting as a plan of a fleet, and the same send times."""
    config = schema.parse(text)
    scenario = from_config(config, seed=seed)
    specs = {spec.name: spec for spec in config.model_specs}
    plan = FleetPlan(
        scenario.devices,
        devices=len(config.workers[0].executables),
        pages=config.plant.pages,
        deadline=next(iter(specs.values())).deadline,
        policy=policy,
        latency=config.scheduling.latency,
        ahead=config.scheduling.ahead,
        noise=Noise(spread=0.0, stalls=0.0),
        **changes,
    )
    ends = []
    fleet = Fleet(plan, on_end=ends.append)
    for name, times in scenario.arrivals.items():
        fleet.ask(name, (Arrival(t, t + specs[name].deadline) for t in times))
    fleet.run(scenario.duration)
    return fleet, ends


@pytest.mark.parametrize("seed", [1, 7])
def test_clockwork_answers_and_refuses_what_the_fleet_does(seed):
    result = simulated(CLOCKWORK, seed)
    fleet, ends = fleet_of(CLOCKWORK, Clockwork, seed)
    assert fleet.loads > 2  # not all models fit
    for model in result.models:
        own = [end for end in ends if end.model == model.model]
        answered = [end.response for end in own if end.reason is None]
        assert model.answered == len(answered)
        assert model.on_gpu == len(answered)
        assert model.rejected == sum(end.reason is Reason.PREDICTED_LATE for end in own) + sum(
            end.reason not in (None, Reason.PREDICTED_LATE) for end in own
        )
        assert model.mean == pytest.approx(sum(answered) / len(answered))
        assert model.worst == pytest.approx(max(answered))
    assert 0 < result.rejected_share < 1
    assert result.core_seconds == 0


def test_qos_chooses_the_variants_that_the_fleet_does():
    result = simulated(QOS)
    config = schema.parse(QOS)
    (spec,) = config.model_specs
    fleet, ends = fleet_of(
        QOS, Qos, variants={"m": spec.variants}, soft=1.0, quality=QualityConfig()
    )
    (model,) = result.models
    queue = fleet.dispatcher.queues["m"]
    assert model.answered == queue.gpu.answered == sum(end.reason is None for end in ends)
    assert model.quality == pytest.approx(queue.quality / model.arrivals)
    assert min(queue.answers["full"], queue.answers["tiny"]) > 100
    assert 0.2 < model.quality < 1


def test_noise_moves_the_result_and_the_seed_fixes_it():
    noisy = CLOCKWORK.replace("  pages: 3", "  pages: 3\n  device_noise: 0.2")
    first, again, exact = simulated(noisy), simulated(noisy), simulated(CLOCKWORK)
    assert first.models == again.models
    assert first.models != exact.models


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"plant\.models\.a\.device: missing"):
        simulated(
            CLOCKWORK.replace("    a: {device: ", "    a: {variants: {a: ").replace(
                "}}, load: {profile: 180}", "}}}, load: {profile: 180}"
            )
        )
    with pytest.raises(ConfigError, match=r"plant\.models\.m\.variants\.tiny: missing"):
        simulated(QOS.replace("        tiny: {load", "        other: {load"))
