"""Variants in roma.yaml: what they say, and what does not go with them."""

from pathlib import Path

import pytest

from dispatcher.assembly import build_core
from roma.config import schema
from roma.domain.variants import Variant
from tests.support.roma_yaml import faults

YAML = """
models:
  m: {{sla: {{response_time: 0.1, deadline: 0.4}}, variants: {variants}}}
  n: {{sla: {{response_time: 1}}}}
workers:
  - {{name: w, cores: 2, backend: static, executables: [{listed}]}}
scheduling: {{gpu: {policy}}}
"""
BOTH = "{small: {accuracy: 0.9}, large: {accuracy: 1}}"
GPU = "{actions: 'x:1', device: gpu}"


def text(variants=BOTH, listed=GPU, policy="qos"):
    return YAML.format(variants=variants, listed=listed, policy=policy)


@pytest.mark.parametrize("policy", ["qos", "fixed"])
def test_variants_are_in_order_and_known_by_their_own_names(policy):
    queues = build_core(schema.parse(text(policy=policy))).queues
    assert queues["m"].spec.variants == (Variant("large", 1.0), Variant("small", 0.9))
    assert queues["m"].spec.served_as == ("large", "small")
    assert queues["n"].spec.served_as == ("n",)


def test_the_example_has_two():
    found = schema.load(Path(__file__).parents[3] / "examples/variants.yaml")
    assert found.model_specs[0].served_as == ("digits-large", "digits-small")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (
            {"policy": "clockwork"},
            "scheduling.gpu = clockwork: must be one of fixed, qos, qos-opt, qos-rl where models.m has variants",
        ),
        (
            {"listed": "{url: 'http://x:1', model: m}, {url: 'http://x:2', model: n}"},
            "models.m.variants = small, large: must be absent where no executable has actions",
        ),
        (
            {"variants": "{n: {accuracy: 1}}"},
            "models.n.variants = n: must be no variant of m too",
        ),
        (
            {"variants": "{a: {accuracy: 0}}"},
            "models.m.variants.a.accuracy = 0: input should be greater than 0",
        ),
        (
            {"variants": "{a: {accuracy: 1.5}}"},
            "models.m.variants.a.accuracy = 1.5: input should be less than or equal to 1",
        ),
        (
            {"variants": "{a: {}}"},
            "models.m.variants.a.accuracy: missing",
        ),
    ],
)
def test_faults_are_one_line(changed, fault):
    assert faults(text(**changed)) == [f"roma.yaml: {fault}"]
