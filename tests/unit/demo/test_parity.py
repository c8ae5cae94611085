"""The experiment `parity`, where the demo has no quotas, or answers nothing."""

from dataclasses import replace

import pytest

from roma.domain.errors import ActuationNotPermitted, RomaError
from roma.lab.experiments import parity
from roma.lab.experiments.lab import Lab
from roma.tools.demo import run as demo
from roma.tools.load import LoadReport
from roma.tools.load.report import Recorder
from tests.unit.demo.test_demo_verdict import CONTROLLED


def test_without_the_right_to_set_quotas_nothing_is_run(monkeypatch):
    def refuse():
        raise ActuationNotPermitted("no right to create groups")

    monkeypatch.setattr(parity, "find_hierarchy", refuse)
    monkeypatch.setattr(demo, "run_once", lambda *_: pytest.fail("it runs"))
    with pytest.raises(ActuationNotPermitted):
        parity.PARITY.run(Lab([1]))


def test_a_model_of_which_nothing_was_answered_is_named():
    nothing = LoadReport.of([Recorder("digits", 0.25)], elapsed=10, planned=1)
    with pytest.raises(RomaError, match="digits: nothing was answered"):
        parity.observed(replace(CONTROLLED, report=nothing))
