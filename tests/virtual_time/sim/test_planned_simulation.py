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
  duration: 12
  pages: 3
  models:
    a: {device: &t {pages: 2, load: 0.02, batches: {1: 0.01, 2: 0.012, 4: 0.016, 8: 0.024}}, load: {profile: 180}}
    b: {device: *t, load: {profile: 120-600, step: 6}}
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
  duration: 40
  models:
    m:
      variants:
        full: {load: 0.1, batches: {1: 0.069, 2: 0.106, 4: 0.165, 8: 0.282, 16: 0.508, 32: 0.944}}
        tiny: {load: 0.1, batches: {1: 0.042, 2: 0.056, 4: 0.063, 8: 0.088, 16: 0.146, 32: 0.244}}
      load: {profile: 10-60, step: 20}
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


@pytest.mark.parametrize(
    ("text", "old", "new", "fault"),
    [
        (
            CLOCKWORK,
            "    b: {",
            "    b: {variants: {x: *t}, ",
            "b.variants.x: must be absent: b has",
        ),
        (CLOCKWORK, "device: *t, ", "", "b.device: missing; a planned GPU runs it"),
        (QOS, "        tiny: {load", "        x: {load", "m.variants.x: must be one of full, tiny"),
        (QOS, "        tiny: {load", "        #", "m.variants.tiny: missing; a planned GPU runs"),
        (
            QOS,
            "{1: 0.069, ",
            "{",
            "m.variants.full.batches = 2, 4, 8, 16, 32: must be sizes from 1",
        ),
        (QOS, "32: 0.944", "65: 1", "m.variants.full.batches = 1, 2, 4, 8, 16, 65: must be sizes"),
    ],
)
def test_faults_of_a_plant_are_named(text, old, new, fault):
    assert old in text
    with pytest.raises(ConfigError) as caught:
        simulated(text.replace(old, new))
    assert f"plant.models.{fault}" in str(caught.value)
