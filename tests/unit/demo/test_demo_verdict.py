"""The demo's verdict: what it says of a run whose cores nobody could set or measure."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from roma.config.schema import Config
from roma.tools.demo import verdict
from roma.tools.demo.verdict import Evidence
from roma.tools.load import LoadReport, RequestEnd, RequestResult
from roma.tools.load.report import Recorder

CONFIG = Config.model_validate(
    {
        "models": {"digits": {"path": "digits", "sla": {"response_time": 0.25}}},
        "workers": [{"name": "w", "cores": 2}],
    }
)


def report():
    recorder = Recorder("digits", 0.25)
    recorder.sent = 1
    recorder.record(RequestResult("digits", 0, RequestEnd.ANSWERED, 0, 0, 0.01, 200))
    return LoadReport.of([recorder], elapsed=10, planned=1)


CONTROLLED = Evidence(
    law="late_share",
    report=report(),
    seconds=10,
    allocatable=1.4,
    core_seconds=7,
    used={"digits": 5},
    changes={"digits": 3},
    checked=1,
    correct=1,
    steal=0,
    config=CONFIG,
    profiles={},
    arrivals={},
)

OBSERVED = replace(CONTROLLED, core_seconds=0, used={}, changes={})


def rows(table):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    cells = [line.split("│")[1:-1] for line in console.export_text().splitlines()]
    return {row[0].strip(): row[1].strip() for row in cells if len(row) == 2}


def test_a_run_with_quotas_says_what_they_saved():
    found = rows(verdict.summary(CONTROLLED))
    assert found["core-seconds allocated"] == "7.0"
    assert found["core-seconds used"] == "5.0"
    assert found["saved against static-max"] == "50%"
    assert verdict.failures(CONTROLLED) == []
    assert verdict.plain(CONTROLLED)["saved"] == 0.5


def test_a_run_without_quotas_saved_nothing_and_says_why_it_failed():
    found = rows(verdict.summary(OBSERVED)) | rows(verdict.comparison([OBSERVED]))
    for row in ("allocated", "used"):
        assert found[f"core-seconds {row}"] == "-"
    assert (found["core-seconds"], found["saved against static-max"]) == ("-", "-")
    plain = verdict.plain(OBSERVED)
    assert (plain["core_seconds"], plain["used_seconds"], plain["saved"]) == (None, None, None)
    (failure,) = verdict.failures(OBSERVED)
    assert failure == "no quota was set: this process may not set CPU quotas, it only observed"


@pytest.mark.parametrize("changes", [{"digits": 0}, {"digits": 3, "photos": 0}])
def test_a_quota_that_stood_still_is_a_failure_of_its_own(changes):
    (failure,) = verdict.failures(replace(CONTROLLED, changes=changes))
    assert failure.startswith("no quota was really changed")
