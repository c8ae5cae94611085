"""Whether anything controls a worker's cores: said where something should, and nowhere else."""

from dataclasses import replace

import pytest

from roma.ui.dashboard.control import STARTED, judged
from roma.ui.dashboard.rows import Worker

WORKER = Worker("w", "http://w", True, mode="control", ticks=STARTED)
SET = {"applied": 0.5, "failure": None}
UNREAD = {"applied": None, "failure": None}
REFUSED = {"applied": 0.5, "failure": "cpu.max: Permission denied"}
READ_ONLY = "observe-only: /sys/fs/cgroup: no right to create groups"


@pytest.mark.parametrize(
    ("worker", "states", "controllable", "controlled", "why"),
    [
        ({}, {"m@w": SET}, 1, 1, ""),
        ({}, {"m@w": SET, "n@w": REFUSED}, 2, 1, ""),
        ({}, {"m@w": REFUSED, "n@w": UNREAD}, 2, 0, "cpu.max: Permission denied"),
        ({}, {"m@w": UNREAD}, 1, 0, "no cgroup of its executables can be read"),
        ({"ticks": STARTED - 1}, {"m@w": UNREAD}, 1, 0, ""),
        ({"mode": READ_ONLY}, {"m@w": UNREAD}, 1, 0, READ_ONLY),
        ({"mode": READ_ONLY, "ticks": 0}, {"m@w": UNREAD}, 1, 0, READ_ONLY),
        (
            {"answers": False, "mode": "", "error": "connection refused"},
            {},
            2,
            0,
            "its supervisor does not answer: connection refused",
        ),
        ({"mode": "dry-run"}, {"m@w": UNREAD}, 0, 0, ""),
        ({}, {}, 0, 0, ""),
        ({"mode": READ_ONLY}, {}, 0, 0, ""),
    ],
    ids=[
        "all",
        "some",
        "none can be set",
        "none can be read",
        "starting",
        "no right",
        "no right, starting",
        "no supervisor",
        "dry run",
        "nothing to control",
        "nothing to control, no right",
    ],
)
def test_a_worker_is_uncontrolled_where_nothing_is_that_should_be(
    worker, states, controllable, controlled, why
):
    found = judged(replace(WORKER, **worker), states, 2)
    assert (found.controllable, found.controlled) == (controllable, controlled)
    assert found.uncontrolled == why


def test_nothing_is_amiss_where_no_supervisor_is_meant_to_be():
    silent = replace(WORKER, answers=False, mode="", error="connection refused")
    assert judged(silent, {}, 0).uncontrolled == ""
