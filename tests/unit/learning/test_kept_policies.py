"""The policies that are kept with the paper's setting."""

import pytest

from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.learned import QosRl
from roma.config.scheduling import QualityConfig
from roma.lab.experiments.qos.jobs import learned, task
from roma.lab.experiments.qos.runs import Trial, run
from roma.lab.experiments.qos.setting import CLUSTER, SINGLE, TESTS, TRAINING, offer
from roma.lab.learning.training import empty

TYPES = {SINGLE: [("p2", 1)], CLUSTER: [("g2", 5), ("p2", 5)]}


@pytest.mark.parametrize("kinds", [SINGLE, CLUSTER])
def test_they_are_for_the_devices_of_the_setting(kinds):
    found, blank = learned(kinds), empty(task(kinds, TRAINING, None), TYPES[kinds])
    assert (found.variants, found.devices, found.actions) == (
        blank.variants,
        blank.devices,
        blank.actions,
    )
    assert {found.type_of(offer(kind)) for kind in kinds} == set(range(len(TYPES[kinds])))
    assert found.training.score > found.training.teacher


@pytest.mark.long
@pytest.mark.parametrize(("kinds", "rate", "seconds"), [(SINGLE, 28, 600), (CLUSTER, 230, 60)])
def test_they_beat_the_heuristics_under_load(kinds, rate, seconds):
    def quality(kind, **options):
        part, quality = TESTS[1], QualityConfig()
        return run(Trial(kind, quality, kinds, part, 5, seconds=seconds, rate=rate, **options)).mean

    ours = quality(QosRl, learned=learned(kinds))
    assert ours > quality(Qos) + 0.01
    assert ours > quality(Fixed) + 0.01
