"""Experiments on short workloads: what they print, save and claim. Everything is virtual time."""

import csv
import json
import os
import signal
import time
from dataclasses import replace
from multiprocessing import active_children
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.domain.errors import ConfigError, RomaError
from roma.lab.experiments import (
    ablation,
    clairvoyant_bound,
    figure2,
    output,
    pareto,
    parity,
    robustness,
    systems,
    table2,
    workloads,
)
from roma.lab.experiments.base import Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clairvoyant import Infeasible
from roma.lab.experiments.lab import CaseSummary, Lab, LabCase
from roma.lab.experiments.registry import EXPERIMENTS
from roma.lab.sim.result import SimulationResult

SHORT = tuple(replace(w, duration=20.0) for w in (workloads.SKY_GNET, workloads.NOISY))


def names(table):
    return [c.name for c in table.columns]


def test_every_experiment_is_listed_under_its_name():
    assert {name: e.name for name, e in EXPERIMENTS.items()} == {name: name for name in EXPERIMENTS}
    listed = CliRunner().invoke(app, ["experiment", "list"]).stdout
    assert all(name in listed for name in EXPERIMENTS)
    as_json = json.loads(CliRunner().invoke(app, ["experiment", "list", "--json"]).stdout)
    assert [e["name"] for e in as_json] == list(EXPERIMENTS)
    assert all(set(e) == {"name", "question", "seeds"} for e in as_json)


def test_the_paper_s_figures_belong_to_systems_and_tests_that_are_run():
    run = {(w.name, s.name) for w in workloads.TABLE1 for s in table2.SYSTEMS}
    assert set(table2.PAPER) <= run
    assert len(table2.PAPER) == 3 * 5


def test_table1_is_the_paper_s():
    slas = {m.name: m.response_time for w in workloads.TABLE1 for m in w.models}
    assert slas == {"skylines": 0.38, "gnet": 0.45, "resnet": 0.54, "vgg16": 0.56}
    assert all(
        (w.workers, w.cores, w.gpus, w.duration) == (2, 6.0, 1, 300.0) for w in workloads.TABLE1
    )
    expected = {"skylines": 10_200, "gnet": 9_500}
    for model, times in workloads.SKY_GNET.arrivals(1).items():
        count = sum(t < 300 for t in times)
        assert count == pytest.approx(expected[model], rel=0.03)


def test_table2_on_short_tests():
    found = table2.compare(Lab((1,)), SHORT, "short", "Short")
    (table,) = found.tables
    assert len(table.rows) == len(SHORT) * len(table2.SYSTEMS)
    by = {(row[0], row[1]): dict(zip(names(table), row, strict=True)) for row in table.rows}
    most = by["Skylines + G.Net", "RR+max"]
    assert most["core-s"] == pytest.approx(12 * 20)
    assert by["Skylines + G.Net", "RR+min"]["core-s"] == pytest.approx(2 * 20)
    aims = [check.claim for check in found.checks if check.is_aim]
    assert aims[0].startswith("defaults, 1 s: better than ROMA on both at once")
    assert len(aims) == 1 + len(SHORT)


@pytest.mark.parametrize(("over", "holds"), [((1, 2, 3), True), ((1, 3, 2), False)])
def test_the_order_of_the_papers_systems_is_looked_at(over, holds):
    summary = CaseSummary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ())
    found = {
        ("test", system): replace(summary, windows_over=v)
        for system, v in zip(table2.ORDER, over, strict=True)
    }
    (check,) = table2._orders(found, ["test"])
    assert (check.holds, check.is_aim) == (holds, True)


@pytest.mark.long
def test_the_paper_s_claims_hold():
    lab = Lab((11,))
    cases = [
        LabCase(w, s)
        for w in workloads.TABLE1
        for s in (systems.SHIPPED, systems.RR_RULES, systems.ROMA_CODE)
    ]
    found = lab.run(cases)
    late = {s.name: 0.0 for s in (systems.SHIPPED, systems.RR_RULES, systems.ROMA_CODE)}
    cores = dict(late)
    for case, summary in zip(cases, found, strict=True):
        late[case.system.name] += summary.late_share
        cores[case.system.name] += summary.core_seconds
    ours = systems.SHIPPED.name
    assert late[ours] <= 0.25 * late["RR+rules"]
    assert cores[ours] <= 0.76 * cores["RR+rules"]
    assert late[ours] < late["ROMA (code)"]
    assert cores[ours] < cores["ROMA (code)"]


@pytest.mark.long
def test_no_law_beats_the_clairvoyant(monkeypatch):
    monkeypatch.setattr(workloads, "PARETO", SHORT)
    monkeypatch.setattr(pareto, "SCHEDULINGS", pareto.SCHEDULINGS[:1])
    found = pareto.PARETO.run(Lab((1,)))
    ours, cheapest, curves = found.tables
    *laws, bound, quick = cheapest.rows
    assert [bound[0], quick[0]] == ["clairvoyant, 1 s", "clairvoyant, 0.2 s"]
    for column in range(1, len(names(cheapest))):
        for row in laws:
            least = quick if row[0].endswith(", 0.2 s") else bound
            assert row[column] is None or row[column] >= least[column]
    settings = sum(len(f.systems) for f in pareto.families())
    assert len(curves.rows) == len(SHORT) * settings
    assert [row[:2] for row in ours.rows] == [(s.name, w.name) for s in pareto.OURS for w in SHORT]
    assert [p.name for p in found.pictures] == ["pareto"]


def test_every_law_takes_part_in_the_comparison():
    from controllers.registry import LAWS

    assert {s.law for f in pareto.families() for s in f.systems} == set(LAWS)


@pytest.mark.long
def test_the_played_bound_keeps_the_promise_and_costs_no_less_than_the_bound(monkeypatch):
    monkeypatch.setattr(workloads, "PARETO", SHORT)
    (table,) = clairvoyant_bound.CLAIRVOYANT_BOUND.run(Lab((1,))).tables
    assert [row[0] for row in table.rows] == [w.name for w in SHORT]
    for _, bound, played, _, late, ratio, ours, _, beside in table.rows:
        assert played >= bound
        assert late <= pareto.LATE
        assert ratio == pytest.approx(played / bound)
        assert beside == pytest.approx(ours / played)


def test_a_share_that_nobody_can_keep_leaves_the_plans_of_larger_ones(monkeypatch):
    bound = clairvoyant_bound.clairvoyant_bound

    def none_for_few(workload, seed, share):
        if share < pareto.LATE:
            raise Infeasible(0.01)
        return bound(workload, seed, share)

    monkeypatch.setattr(clairvoyant_bound, "clairvoyant_bound", none_for_few)
    found = clairvoyant_bound.play_bound((SHORT[0], 1))
    assert found is not None
    assert found[0] == bound(SHORT[0], 1, pareto.LATE).core_seconds
    monkeypatch.setattr(pareto, "LATE", 1.0)  # of no share
    assert clairvoyant_bound.play_bound((SHORT[0], 1)) is None


def test_a_plan_is_split_without_loss_and_within_every_worker():
    workload = workloads.ALL_APPS
    plan = {"skylines": 0.2, "gnet": 3.0, "resnet": 4.8, "vgg16": 3.0}
    shares = clairvoyant_bound.split(plan, workload)
    for model, cores in plan.items():
        assert sum(shares[model, worker] for worker in (0, 1)) == pytest.approx(cores)
    for worker in (0, 1):
        assert sum(shares[model, worker] for model in plan) <= workload.cores + 1e-9
    assert shares["gnet", 0] == pytest.approx(0.1)  # together, not one and a half on each
    assert min(shares.values()) == pytest.approx(0.1)


def test_a_plan_is_enlarged_only_where_it_has_more_than_the_minimum():
    found = clairvoyant_bound.enlarged({"m": [0.2, 1.2]}, factor=1.5, reserve=0.3, least=0.2)
    assert found == {"m": [0.2, pytest.approx(0.2 + 1.5 + 0.3)]}


def test_a_played_plan_is_what_is_allocated():
    workload = SHORT[1]
    plan = {"light": [1.0] * 10 + [2.0] * 10, "medium": [3.0] * 20}
    assert clairvoyant_bound.play(workload, plan, 1).core_seconds == pytest.approx(90.0)


@pytest.mark.long
def test_robustness_has_a_row_per_disturbance(monkeypatch):
    monkeypatch.setattr(robustness, "WORKLOADS", SHORT)
    (table,) = robustness.ROBUSTNESS.run(Lab((1,))).tables
    on_gpus = [row for row in table.rows if row[0] == SHORT[0].title]
    assert [row[1] for row in on_gpus] == [d.name for d in robustness.DISTURBANCES]
    assert all("GPU" not in row[1] for row in table.rows if row[0] == SHORT[1].title)


def test_ablation_takes_one_part_away_at_a_time(monkeypatch):
    whole, *others = ablation.WITHOUT
    for system in others:
        changed = [f for f in system_fields() if getattr(system, f) != getattr(whole, f)]
        assert len(changed) == 1, (system.name, changed)
    monkeypatch.setattr(ablation, "WORKLOADS", SHORT[:1])
    (table,) = ablation.ABLATION.run(Lab((1,))).tables
    assert len(table.rows) == len(ablation.WITHOUT)


def system_fields():
    return [f for f in systems.System.__dataclass_fields__ if f != "name"]


def test_more_seeds_are_averaged_and_processes_change_nothing():
    case = LabCase(SHORT[0], systems.RR_RULES)
    one, two = (Lab((seed,)).run([case])[0] for seed in (1, 2))
    both = Lab((1, 2)).run([case])[0]
    assert both.core_seconds == pytest.approx((one.core_seconds + two.core_seconds) / 2)
    assert both.worst == max(one.worst, two.worst)
    assert isinstance(both.results[0], SimulationResult)
    assert both.results[0] == one.results[0]


def test_figure2_draws_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(figure2, "ALL_APPS", replace(workloads.ALL_APPS, duration=20.0))
    found = figure2.FIGURE2.run(Lab((1,)))
    written = output.save(found, tmp_path)
    assert {p.name for p in written} == {
        f"roma-figure2{s}" for s in (".csv", ".md", ".png", ".svg")
    }
    assert (tmp_path / "roma-figure2.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "roma-figure2.svg").read_text()
    assert "core-s" in text
    assert "skylines" in text


def example():
    table = Table(
        "t", "A title", (Column("name"), Column("share", ".1%")), [("a", 0.25), ("b", None)], "Why."
    )
    picture = Picture("p", lambda figure: figure.subplots().plot([0, 1], [0, 1]))
    return Output((table,), (picture,), (Check("it is so", True),))


def test_tables_are_saved_raw_and_for_people(tmp_path):
    output.save(example(), tmp_path, vector=False)
    rows = list(csv.reader((tmp_path / "t.csv").read_text().splitlines()))
    assert rows == [["name", "share"], ["a", "0.25"], ["b", ""]]
    assert (tmp_path / "t.md").read_text() == (
        "**A title**\n\n| name | share |\n|---|---:|\n| a | 25.0% |\n| b | – |\n\nWhy.\n"
    )
    assert {p.name for p in tmp_path.iterdir()} == {"t.csv", "t.md", "p.png"}


PAGE = "# Words\n<!-- t -->\nold\n<!-- /t -->\nmore\n<!-- x claims -->\n<!-- /x claims -->\n"


def test_a_document_gets_tables_claims_and_pictures_where_they_belong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):
        assert output.fill(page, "x", example()) == [tmp_path / "p.png"]
        assert page.read_text() == (
            "# Words\n<!-- t -->\n| name | share |\n|---|---:|\n| a | 25.0% |\n| b | – |\n\nWhy.\n"
            "<!-- /t -->\nmore\n<!-- x claims -->\n| claim | holds |\n|---|---|\n"
            "| it is so | yes |\n<!-- /x claims -->\n"
        )
    elsewhere = tmp_path / "figures"
    assert output.fill(page, "x", example(), elsewhere) == [elsewhere / "p.png"]


@pytest.mark.parametrize(
    "text", [PAGE.replace("<!-- t -->", ""), PAGE.replace("<!-- /t -->", ""), PAGE + PAGE]
)
def test_a_document_without_one_place_for_each_is_left_as_it_is(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ConfigError, match=r"page\.md: must have one place for t: <!-- t -->"):
        output.fill(page, "x", example())
    assert page.read_text() == text


def test_the_same_picture_is_the_same_file(tmp_path):
    for name in ("one", "two"):
        output.save(example(), tmp_path / name)
    assert (tmp_path / "one/p.svg").read_text() == (tmp_path / "two/p.svg").read_text()


def test_json_has_raw_numbers():
    data = json.loads(output.to_json("x", (1, 2), example()))
    assert data == {
        "experiment": "x",
        "seeds": [1, 2],
        "tables": {"t": [{"name": "a", "share": 0.25}, {"name": "b", "share": None}]},
        "checks": [{"claim": "it is so", "holds": True, "aim": False}],
    }


def test_columns_of_one_name_are_all_in_the_json_and_the_csv(tmp_path):
    columns = tuple(Column(name) for name in ("a", "±", "b", "±", "±"))
    found = Output((Table("t", "A title", columns, [(1, 0.1, 2, 0.2, 0.3)]),))
    (row,) = json.loads(output.to_json("x", (1,), found))["tables"]["t"]
    assert row == {"a": 1, "±": 0.1, "b": 2, "± (2)": 0.2, "± (3)": 0.3}
    output.save(found, tmp_path)
    assert (tmp_path / "t.csv").read_text() == "a,±,b,± (2),± (3)\n1,0.1,2,0.2,0.3\n"


@pytest.mark.parametrize(
    ("check", "said", "verdict", "status"),
    [
        (Check("c", True), "holds: c", "yes", 0),
        (Check("c", False), "does not hold: c", "**no**", 1),
        (Check("c", True, is_aim=True), "aim reached: c", "aim reached", 0),
        (Check("c", False, is_aim=True), "aim missed: c", "aim missed", 0),
    ],
)
def test_a_claim_that_does_not_hold_is_a_failure_and_an_aim_is_not(
    monkeypatch, tmp_path, check, said, verdict, status
):
    found = Output((), checks=(check,))
    monkeypatch.setitem(EXPERIMENTS, "x", Experiment("x", "?", lambda lab: found))
    done = CliRunner().invoke(app, ["experiment", "run", "x"])
    assert (done.exit_code, said in done.stdout) == (status, True)
    page = tmp_path / "page.md"
    page.write_text("<!-- x claims -->\n<!-- /x claims -->\n")
    output.fill(page, "x", found)
    assert f"| c | {verdict} |" in page.read_text()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out = .*file: cannot be written"):
        output.save(example(), tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "experiment = nothing: must be one of roma-table2"),
        (["pareto", "--traces", "/nowhere"], "traces /nowhere: must be a directory"),
        (["x", "--out", "/dev/null"], "--out = /dev/null: cannot be written"),
    ],
)
def test_bad_options_are_named_before_anything_is_run(monkeypatch, arguments, message):
    monkeypatch.setitem(EXPERIMENTS, "x", Experiment("x", "?", lambda lab: 1 / 0))
    done = CliRunner().invoke(app, ["experiment", "run", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)


def test_a_trace_that_is_not_there_is_named_before_anything_is_run(tmp_path):
    with pytest.raises(ConfigError, match=r"diurnal\.txt: cannot be read: No such file"):
        workloads.pareto(tmp_path)


def leave_a_mark(job):
    seconds, mark = job
    time.sleep(seconds)
    mark.touch()


def test_an_interrupt_ends_what_runs(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    marks = [tmp_path / "first", tmp_path / "running"]
    with pytest.raises(KeyboardInterrupt):
        Lab((1,), on_progress=interrupt).map(leave_a_mark, list(zip((0, 3), marks, strict=True)))
    for process in active_children():
        process.join()
    assert [mark.exists() for mark in marks] == [True, False]


def be_killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_for_its_memory_ends_the_experiment_in_one_line():
    with pytest.raises(RomaError, match="a process that computes was killed: is memory short"):
        Lab((1,)).map(be_killed, [1, 2])


@pytest.mark.long
def test_a_promise_that_nobody_could_keep_is_not_called_kept(monkeypatch):
    hopeless = replace(workloads.OVERLOAD, duration=90.0)
    monkeypatch.setattr(workloads, "PARETO", (hopeless,))
    only_ours = tuple(f for f in pareto.families() if f.is_ours)
    monkeypatch.setattr(pareto, "families", lambda: only_ours)
    found = pareto.PARETO.run(Lab((1,)))
    assert found.checks == ()
    assert {row[-1] for row in found.tables[0].rows} == {None}


def test_a_demo_is_simulated_with_the_burst_that_it_had():
    loaded = Config.model_validate(
        {"models": {"m": {"path": "m", "sla": {"response_time": 0.5}}}, "workers": [{"cores": 2}]}
    )
    evidence = SimpleNamespace(config=loaded, arrivals={"m": [0.1]}, seconds=1.0)
    again = parity.again(evidence, {"m": ModelProfile(cost=0.01)}, 1)
    assert again.burst == loaded.control.cfs_burst == 1
