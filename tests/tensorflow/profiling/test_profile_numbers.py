"""Samples to numbers, files to inputs, configurations to plans: no process and no clock."""

import pytest
import yaml

from roma.config import profile as profiles
from roma.config.profile import MachineProfile, Profiles
from roma.config.schema import parse
from roma.domain.errors import ConfigError, LaunchError
from roma.tools.load.errors import LoadInputError
from roma.tools.profiling import inputs, machine, plan, report, summary
from roma.tools.profiling.inputs import Inputs
from roma.tools.profiling.summary import MeasuredRun, RequestSample


def run(cores, batch, *samples):
    return MeasuredRun(cores, batch, [RequestSample(*s) for s in samples])


# ── summary ──────────────────────────────────────────────────────────────────────────────────


def test_a_point_is_the_mean_cost_and_the_median_response_time():
    found = summary.point(run(0.5, 2, (0.01, 0.02), (0.02, 0.03), (0.06, 0.5)))
    assert (found.cores, found.batch, found.requests) == (0.5, 2, 3)
    assert (found.cost, found.response_time) == (0.03, 0.03)


def test_numbers_have_four_digits():
    found = summary.point(run(1, 1, (0.0123456789, 0.0234567891)))
    assert (found.cost, found.response_time) == (0.01235, 0.02346)


def test_the_cost_is_the_median_over_the_points_of_batch_1():
    found = summary.model_profile(
        [
            run(0.25, 1, (0.012, 0.05)),
            run(0.5, 1, (0.010, 0.02)),
            run(1, 1, (0.009, 0.01)),
            run(1, 8, (0.070, 0.08)),
        ]
    )
    assert found.cost == 0.010
    assert [point.batch for point in found.points] == [1, 1, 1, 8]


def test_what_one_core_does_not_explain_is_overhead():
    found = summary.model_profile([run(0.1, 1, (0.010, 0.1)), run(2, 1, (0.010, 0.013))])
    assert found.parallelism == 1.0
    assert found.overhead == pytest.approx(0.003)


def test_a_request_that_keeps_three_cores_busy_has_parallelism_3_and_no_overhead():
    found = summary.model_profile([run(4, 1, (0.030, 0.010), (0.030, 0.010))])
    assert found.parallelism == pytest.approx(3.0)
    assert found.overhead == 0.0


def test_the_quota_of_a_server_that_is_not_ours_explains_its_response_time():
    # 10 core-ms at half a core last 20 ms: that is no overhead.
    assert summary.model_profile([run(0.5, 1, (0.010, 0.021))]).overhead == pytest.approx(0.001)


def test_noise_is_the_coefficient_of_variation_within_a_point_not_between_points():
    steady = [run(c, 1, (cost, 0.1), (cost, 0.1)) for c, cost in ((0.5, 0.01), (1, 0.02))]
    assert summary.model_profile(steady).noise == 0.0
    assert summary.variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
    assert summary.variation([1.0]) == 0.0
    assert summary.variation([0.0] * 99 + [1.0]) == summary.MOST_NOISE


def test_gpu_time_is_a_median():
    found = summary.model_profile([run(1, 1, (0.01, 0.01))], [0.002, 0.004, 0.009])
    assert found.gpu_time == 0.004
    assert found.gpu_noise == pytest.approx(0.7211, abs=1e-4)


def test_a_cgroup_without_cpu_time_is_not_the_servers():
    with pytest.raises(LaunchError, match="2 requests used no CPU in the cgroup"):
        summary.point(run(1, 1, (0.0, 0.01), (0.0, 0.01)))


# ── the file ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def measured():
    alone = summary.model_profile([run(0.5, 1, (0.01, 0.02), (0.02, 0.03)), run(2, 1, (0.01, 0.1))])
    both = summary.model_profile([run(2, 1, (0.00001, 0.00002))], [0.002, 0.003])
    return Profiles(
        machine=MachineProfile(cpu="Some: CPU #1", cores=2, measured="2030-01-02T03:04:05+00:00"),
        models={"a": alone, "b": both},
    )


def test_what_is_written_is_what_is_read(tmp_path, measured):
    file = tmp_path / "profile.yaml"
    file.write_text("old")
    report.write(measured, file, "roma profile\nroma.yaml")
    assert profiles.load(file) == measured
    lines = file.read_text().splitlines()
    assert lines[0] == "# Written by: roma profile roma.yaml"
    assert "    - {cores: 0.5, batch: 1, cost: 0.015, response_time: 0.025, requests: 2}" in lines
    assert "gpu_noise" in yaml.safe_load(file.read_text())["models"]["b"]
    assert "gpu_noise" not in yaml.safe_load(file.read_text())["models"]["a"]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["1e5", "08", "0x1F", "on", "2020-01-01"])
def test_a_model_may_be_named_like_a_number(tmp_path, measured, name):
    named = measured.model_copy(update={"models": {name: measured.models["a"]}})
    report.write(named, tmp_path / "profile.yaml", "roma profile")
    assert profiles.load(tmp_path / "profile.yaml") == named


def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path):
    source = tmp_path / "roma.yaml"
    for out in (source, tmp_path, tmp_path / "none" / "p.yaml"):
        with pytest.raises(ConfigError, match=f"--out = {out}: must be"):
            report.check_writable(out, source)
    report.check_writable(tmp_path / "p.yaml", source)
    (tmp_path / "loop").symlink_to("loop")
    report.check_writable(tmp_path / "loop", source)  # what is written takes its place


def test_the_tables_name_every_point_and_every_model(measured):
    points, models = report.tables(measured)
    assert (points.row_count, models.row_count) == (3, 2)


def test_a_cpu_without_a_name_has_an_architecture(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast CPU: 3 GHz\nflags\t: fpu\n")
    assert machine.cpu_name(info) == "Fast CPU: 3 GHz"
    info.write_text("processor\t: 0\nBogoMIPS\t: 50\n")
    assert machine.cpu_name(info)
    assert machine.cpu_name(tmp_path / "none") == machine.cpu_name(info)


def test_busy_is_neither_idle_nor_waiting_for_a_disk(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 9000 800 0 25 25 0 0\ncpu0 1 2 3\n")
    assert machine.busy_seconds(tmp_path) == pytest.approx(2.0)
    stat.unlink()
    assert machine.busy_seconds(tmp_path) == 0


# ── inputs ───────────────────────────────────────────────────────────────────────────────────


def metadata(**tensors):
    inputs_ = {
        name: {"dtype": dtype, "tensor_shape": {"dim": [{"size": str(s)} for s in shape]}}
        for name, (dtype, shape) in tensors.items()
    }
    return {
        "metadata": {"signature_def": {"signature_def": {"serving_default": {"inputs": inputs_}}}}
    }


def test_a_batch_repeats_instances_where_they_run_out():
    given = Inputs([1, 2, 3], {"signature_name": "s"})
    assert [yaml.safe_load(body)["instances"] for body in given.bodies(2)] == [
        [1, 2],
        [3, 1],
        [2, 3],
    ]
    assert yaml.safe_load(given.bodies(5)[0]) == {
        "signature_name": "s",
        "instances": [1, 2, 3, 1, 2],
    }
    assert len(Inputs(range(1000), {}).bodies(4)) == inputs.DIFFERENT_BODIES


def test_one_input_is_invented_bare_and_several_by_name():
    (one,) = inputs.invented("m", metadata(x=("DT_FLOAT", (-1, 2, 3)))).instances
    assert [len(row) for row in one] == [3, 3]
    assert all(0 <= value < 1 for row in one for value in row)
    (several,) = inputs.invented(
        "m", metadata(ids=("DT_INT64", (-1, -1)), on=("DT_BOOL", (-1,)))
    ).instances
    assert several == {"ids": [0], "on": False}


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (metadata(x=("DT_STRING", (-1,))), 'input "x" is DT_STRING, which cannot be guessed'),
        (metadata(x=("DT_FLOAT", (1, 8))), 'input "x" takes batches of 1 only'),
        (metadata(x=("DT_FLOAT", ())), 'the shape of input "x" is open'),
        (metadata(x=("DT_FLOAT", (-1, 9999, 9999))), 'input "x" holds 99980001 values'),
        (metadata(), "its signature takes no input"),
        ({}, "it has no signature serving_default"),
    ],
)
def test_what_cannot_be_invented_is_asked_for(described, reason):
    with pytest.raises(ConfigError) as caught:
        inputs.invented("photos", described)
    assert str(caught.value) == (
        f"models.photos: no inputs to measure with: {reason}; give real ones with --body photos=FILE"
    )


def test_bodies_of_a_file_are_one_pool_of_instances(tmp_path):
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"instances": [1, 2]}\n{"instances": [3], "signature_name": "s"}\n')
    assert inputs.from_file(file, "--body") == Inputs([1, 2, 3], {"signature_name": "s"})


@pytest.mark.parametrize("text", ["[]", '{"inputs": [1]}', '{"instances": []}', '{"instances": 1}'])
def test_a_body_without_instances_is_refused(tmp_path, text):
    file = tmp_path / "body.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match='--body x=y: each body must hold "instances"'):
        inputs.from_file(file, "--body x=y")
    with pytest.raises(LoadInputError):
        inputs.from_file(tmp_path / "none.json", "--body x=y")


def test_the_warm_up_body_is_that_of_the_version_that_is_served(tmp_path):
    for version in (1, 2):
        (tmp_path / str(version) / "assets.extra").mkdir(parents=True)
    (tmp_path / "1" / inputs.WARM_UP_FILE).write_text('{"instances": [1]}')
    assert inputs.from_model(tmp_path) is None
    (tmp_path / "2" / inputs.WARM_UP_FILE).write_text('{"instances": [2]}')
    assert inputs.from_model(tmp_path) == Inputs([2], {})


# ── the plan ─────────────────────────────────────────────────────────────────────────────────


def config(*workers, **models):
    names = models or {"a": {}, "b": {}}
    return parse(
        yaml.safe_dump(
            {
                "name": "plan",
                "models": {
                    n: {"path": n, "sla": {"response_time": 1}, **m} for n, m in names.items()
                },
                "workers": list(workers) or [{"cores": 4, "reserved": 1}],
            }
        )
    )


def listed(url, **keys):
    return {"url": f"http://{url}", **keys}


def test_default_quotas_fit_the_model_and_the_machine():
    both = config(a={"cpu": {"max": 0.5}}, b={})
    quotas = [t.cores for t in plan.make(both, machine=2.0).targets]
    assert quotas == [(0.25, 0.5), (0.25, 0.5, 1.0, 2.0)]
    assert plan.make(both, machine=8.0).targets[1].cores == (0.25, 0.5, 1.0, 3.0)


def test_one_input_is_always_measured_without_a_quota():
    target = plan.make(config(), machine=4.0, cores=[0.5, 1]).targets[0]
    assert target.steps([1, 2], 4.0) == [(0.5, 1), (1, 1), (0.5, 2), (1, 2), (4.0, 1)]
    assert target.steps([1], 1.0) == [(0.5, 1), (1, 1)]


def test_a_started_server_comes_first_and_a_listed_one_keeps_its_quota():
    workers = [
        {
            "name": "there",
            "cores": 2,
            "backend": "static",
            "executables": [
                listed("h:1", device="gpu"),
                listed("h:2", model="a", cgroup="docker/x"),
                listed("h:3", model="b"),
            ],
        }
    ]
    found = plan.make(config(*workers), machine=4.0)
    (a,) = found.targets
    assert (a.model, a.is_ours, a.cores, a.gpu_urls) == ("a", False, (), ("http://h:1",))
    assert found.skipped == (
        "models.b: cannot be profiled: no executable of it has a cgroup here "
        "(backend process starts one; backend static must name one)",
    )
    with pytest.raises(ConfigError, match=r"models\.b: cannot be profiled"):
        plan.make(config(*workers), machine=4.0, only=["a", "b"])
    mixed = plan.make(config(*workers, {"name": "here", "cores": 2}), machine=4.0)
    assert [t.is_ours for t in mixed.targets] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"only": ["c"]}, "--model = c: must be one of a, b"),
        ({"cores": [0.001]}, "--cores = 0.001: must be from 0.01 to 4, this machine's cores"),
        ({"cores": [8]}, "--cores = 8: must be from 0.01 to 4, this machine's cores"),
    ],
)
def test_a_wrong_choice_is_named(arguments, text):
    with pytest.raises(ConfigError) as caught:
        plan.make(config(), machine=4.0, **arguments)
    assert str(caught.value) == text


def test_lists_of_numbers():
    assert plan.numbers("--cores", "1,0.5,1") == (0.5, 1.0)
    assert plan.batches("4, 2") == (1, 2, 4)
    for text in ("", "1,,2", "x", "0", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match=f"--cores = {text}: must be numbers > 0"):
            plan.numbers("--cores", text)
    for text in ("1.5", "2000"):
        with pytest.raises(ConfigError, match=r"--batch = .* whole numbers from 1 to 1024"):
            plan.batches(text)
