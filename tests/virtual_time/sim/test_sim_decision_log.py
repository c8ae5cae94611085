"""A simulated run tells what a live one tells, and what it tells can be checked: law by law."""

from dataclasses import replace

import orjson
import pytest

from controllers.registry import LAWS
from roma.lab.sim.scenario import ExecutorFault, SupervisorFault
from roma.lab.sim.simulation import Simulation
from roma.telemetry.decision_log import DecisionLog
from tests.support.decision_log import decisions, lines, replayed
from tests.virtual_time.sim.test_simulation import golden, scenario

DURATION = 60.0
FAULTS = (ExecutorFault(21.01, "m@w", 3.0), SupervisorFault(30.0, "w", 5.0))


def busy(law="pi", **changes):
    """Return one model with a load that its worker is short of for a while, and faults."""
    changes = {"load": {"profile": "10-70-20", "step": 20}, "overhead": 0.001, **changes}
    run_of = scenario(
        law=law, duration=DURATION, sla={"response_time": 0.5, "statistic": "p95"}, **changes
    )
    return replace(run_of, faults=FAULTS)


def told(run_of, directory):
    """Simulate; return the result and the lines of each file, as a reader finds them."""
    story = DecisionLog(directory, fresh=True)
    result = Simulation(run_of, decision_log=story.write).run()
    names = [f.name.removesuffix(".jsonl") for f in sorted(directory.glob("*.jsonl"))]
    return result, {name: lines(directory, name) for name in names}


@pytest.mark.parametrize("law", LAWS)
def test_the_recorded_measurements_give_each_recorded_demand_again(law, tmp_path):
    run_of = busy(law)
    told(run_of, tmp_path)
    (story,) = decisions(tmp_path, "w").values()
    recorded, again = replayed(run_of.config.control, story)
    assert recorded == again  # floats and all, through JSON
    assert len(recorded) > 40  # of 60 s the supervisor was dead for 5, the executable for 3
    assert sum(d.fresh for d in story) >= 3  # at the start, and after each of the two


def test_a_replay_under_other_gains_gives_other_demands(tmp_path):
    run_of = busy("pi")
    told(run_of, tmp_path)
    (story,) = decisions(tmp_path, "w").values()
    other = run_of.config.control.model_copy(update={"gains": {"K": 0.9}})
    recorded, again = replayed(other, story)
    assert recorded != again


def test_telling_changes_nothing(tmp_path):
    trace, silent = [], []
    result = Simulation(
        busy(), trace=lambda t, c: trace.append((t, c)), decision_log=DecisionLog(tmp_path).write
    ).run()
    assert result == Simulation(busy(), trace=lambda t, c: silent.append((t, c))).run()
    assert trace == silent


def test_every_decision_is_told_once_and_completely(tmp_path):
    _, lines = told(busy(), tmp_path)
    records = [orjson.loads(line) for line in lines["decisions-w"]]
    ticks = [float(t) for t in range(60) if not 30 <= t < 35]
    # The tick at 29 s died with its supervisor before it was written, as it does for real.
    ticks.remove(29.0)
    assert [r["at"] for r in records] == [r["time"] for r in records] == ticks
    assert {(r["worker"], r["law"], r["executable"]) for r in records} == {("w", "pi", "m@w")}
    assert {r["period"] for r in records} == {1.0}
    assert all(r["observed"] == r["applied"] for r in records[:-1])
    assert records[-1]["observed"] is None  # nobody read it back: the run was over


def test_the_seconds_add_up_to_the_result(tmp_path):
    result, lines = told(busy(), tmp_path)
    (model,) = result.models
    seconds = [orjson.loads(line) for line in lines["models"]]
    assert [s["at"] for s in seconds] == [float(t) for t in range(1, 61)]
    assert sum(s["arrivals"] for s in seconds) == model.arrivals
    assert sum(s["answered_cpu"] + s["answered_gpu"] for s in seconds) == model.answered
    assert sum(sum(s["rejected"].values()) for s in seconds) == model.rejected > 0
    assert sum(s["failed"] for s in seconds) == model.failed > 0
    refusals = [r for s in seconds for r in s["refusals"]]
    assert refusals
    assert all(s["at"] - 1 < r["at"] <= s["at"] for s in seconds for r in s["refusals"])


def test_a_run_of_broken_seconds_is_told_to_its_end(tmp_path):
    _, lines = told(replace(busy(), duration=10.25), tmp_path)
    last = orjson.loads(lines["models"][-1])
    assert (last["at"], last["seconds"]) == (10.25, 0.25)


def test_a_story_is_begun_anew_each_time(tmp_path):
    (tmp_path / "models+1.jsonl").write_text("what an earlier run had rotated away\n")
    _, first = told(golden("rules"), tmp_path)
    _, second = told(golden("rules"), tmp_path)
    assert first == second
    assert not (tmp_path / "models+1.jsonl").exists()
