"""Clockwork's Table 1, as data."""

import math

import pytest

from roma.device.models_table import TABLE_1, offers, parse
from roma.domain.actions import ModelCapabilities
from roma.domain.errors import ConfigError

KILOBYTES = {
    "densenet169": (602, 4),
    "inceptionv3": (1073, 4),
    "mobile_pose_mobilenetv3": (590, 209),
    "resnet18": (602, 4),
    "resnet50": (602, 4),
    "resnet152": (602, 4),
}


def test_tensors_are_as_large_as_the_table_says():
    for name, (given, taken) in KILOBYTES.items():
        model = TABLE_1[name]
        assert round(4 * math.prod(model.input_shape) / 1e3) == given
        assert round(4 * math.prod(model.output_shape) / 1e3) == taken
    assert KILOBYTES.keys() == TABLE_1.keys()


def test_a_larger_batch_takes_longer_but_less_per_example():
    for model in TABLE_1.values():
        times = list(model.executions.values())
        assert times == sorted(times)
        assert model.executions[16] / 16 < model.executions[1]


def test_offers_of_copies():
    found = offers(parse("resnet50:2, resnet18:1"))
    assert list(found) == ["resnet50-0", "resnet50-1", "resnet18-0"]
    assert found["resnet50-1"] == ModelCapabilities(
        7, 0.00833, {1: 0.00261, 2: 0.00378, 4: 0.00561, 8: 0.00913, 16: 0.01567}
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("resnet51:1", "model = resnet51: must be one of densenet169,"),
        ("resnet50", "resnet50: count = : must be from 1"),
        ("resnet50:0", "resnet50: count = 0: must be from 1"),
        ("resnet50:-1", "count = -1"),
        ("", "model = : must be one of"),
    ],
)
def test_what_is_not_in_the_table_is_told(text, words):
    with pytest.raises(ConfigError, match=words):
        parse(text)
