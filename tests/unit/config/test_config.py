"""roma.yaml: one clear line per fault, naming key, value and bound."""

import pytest
import yaml

from roma.config import schema, yaml_file
from roma.domain.errors import ConfigError
from tests.support.roma_yaml import GOOD, faults


def test_a_good_file_says_what_it_means():
    c = schema.parse(GOOD)
    digits, photos = c.model_specs
    assert (digits.sla.set_point, digits.deadline) == (0.125, 0.5)
    assert photos.deadline == 1.0
    assert c.workers[0].allocatable == 1.5
    assert c.dispatcher_urls == ("http://127.0.0.1:8500",)


def test_the_deadline_of_a_per_request_promise_is_the_promise():
    text = GOOD.replace("statistic: p95", "statistic: each")
    assert schema.parse(text).model_specs[0].deadline == 0.25


def test_paths_are_relative_to_the_file(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(GOOD)
    assert schema.load(file).models["digits"].path == tmp_path / "models/digits"


def test_paths_of_the_engine_are_relative_to_the_file_as_all_others(tmp_path):
    file = tmp_path / "roma.yaml"
    docker = {"run_dir": "run", "cgroup_root": "cg"}
    models = {"m": {"path": "m", "sla": {"response_time": 1}}}
    workers = [{"cores": 1, "backend": "docker", "docker": docker}]
    file.write_text(yaml.safe_dump({"models": models, "workers": workers}))
    found = schema.load(file).workers[0].docker
    assert (found.run_dir, found.cgroup_root) == (tmp_path / "run", tmp_path / "cg")


def test_every_fault_is_one_line_with_key_value_and_bound():
    text = (
        GOOD.replace("0.25", "-1")
        .replace("statistic: p95", "statistic: p95, alpha: 1.5")
        .replace("p95", "median")
    )
    assert faults(text) == [
        "roma.yaml: models.digits.sla.response_time = -1: input should be greater than or equal to 0.001",
        "roma.yaml: models.digits.sla.statistic = median: input should be 'mean', 'p95', 'p99' or 'each'",
        "roma.yaml: models.digits.sla.alpha = 1.5: input should be less than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("threads: 2", "thread: 2", "models.digits.cpu.thread = 2: unknown key"),
        ("max: 1.5", "max: 0.05", "models.digits.cpu.max = 0.05: must be ≥ min (0.1)"),
        (
            "initial: 0.5",
            "initial: 3",
            "models.digits.cpu.initial = 3.0: must be ≤ max (1.5)",
        ),
        (
            "max: 1.5",
            "max: 1.6",
            "models.digits.cpu.max = 1.6: must be ≤ cores - reserved of worker local (1.5)",
        ),
        ("reserved: 0.5", "reserved: 2", "workers.0.reserved = 2.0: must be < cores (2)"),
        (
            "reserved: 0.5",
            "reserved: 1.9",
            "workers.0.cores - reserved = 0.1: must be ≥ the sum of the models' cpu.min (0.12)",
        ),
        (
            "min: 0.1",
            "min: 0.005",
            "models.digits.cpu.min = 0.005: must be ≥ 0.01 (a quota of 1 ms per cfs_period)",
        ),
        (
            "workers:",
            "    weight: 2\ncontrol: {sharing: proportional}\nworkers:",
            "models.photos.weight = 2.0: must be 1 where control.sharing is proportional, which "
            "heeds none",
        ),
        (
            "workers:",
            "control: {period: 2.5}\nworkers:",
            "control.period = 2.5: input should be less than or equal to 2",
        ),
        (
            "workers:",
            "gateway: {port: 8502}\nworkers:",
            "control.port = 8502: must be different from gateway.port",
        ),
        (
            "reserved: 0.5",
            "reserved: 0.5, base_port: 8500",
            "workers.0.base_port = 8500: must be different from gateway.admin_port",
        ),
        (
            "reserved: 0.5",
            "reserved: 0.5, base_port: 65535",
            "workers.0.base_port = 65536: must be ≤ 65535, counting up from its value",
        ),
        (
            "workers:",
            "gateway: {grpc_port: 8500}\nworkers:",
            "gateway.grpc_port = 8500: must be different from gateway.admin_port",
        ),
        (
            "workers:",
            "gateway: {processes: 0}\nworkers:",
            "gateway.processes = 0: input should be greater than or equal to 1",
        ),
        (
            "workers:",
            "gateway: {processes: 33}\nworkers:",
            "gateway.processes = 33: input should be less than or equal to 32",
        ),
        (
            "workers:",
            "gateway: {processes: 3, process_port: 8499}\nworkers:",
            "gateway.process_port = 8500: must be different from gateway.admin_port",
        ),
        (
            "workers:",
            "gateway: {processes: 3, process_port: 65535}\nworkers:",
            "gateway.process_port = 65536: must be ≤ 65535, counting up from its value",
        ),
        (
            "workers:",
            "gateway: {processes: 2, exchange_port: 8503}\nworkers:",
            "gateway.exchange_port = 8503: must be absent where processes > 1 (2)",
        ),
        (
            "workers:",
            "gateway: {processes: 2, client_metrics: true}\nworkers:",
            "gateway.client_metrics = true: must be false where processes > 1 (2)",
        ),
        (
            "workers:",
            "gateway: {processes: 2}\ncontrol: {decision_log: story}\nworkers:",
            "control.decision_log = story: must be absent where gateway.processes > 1 (2)",
        ),
        (
            "workers:",
            "gateway: {processes: 2}\ncontrol: {dispatchers: ['http://a:1']}\nworkers:",
            "control.dispatchers = ['http://a:1']: must be an address for each of gateway.processes "
            "(2), or absent",
        ),
        (
            "reserved: 0.5",
            "reserved: 0.5, grpc_offset: 1",
            "workers.0.base_port + grpc_offset = 8601: must be different from workers.0.base_port",
        ),
        (
            "reserved: 0.5",
            "reserved: 0.5, grpc_offset: 60000",
            "workers.0.base_port + grpc_offset = 68600: must be ≤ 65535, counting up from its value",
        ),
        (
            "reserved: 0.5",
            "reserved: 0.5, grpc_offset: 0",
            "workers.0.grpc_offset = 0: input should be greater than or equal to 1",
        ),
        (
            "reserved: 0.5",
            "gpus: 1",
            "workers.0.gpus = 1: must be 0 for backend process (use docker or static)",
        ),
        (
            "    path: models/photos\n",
            "",
            "models.photos.path = None: must be set for backend process",
        ),
        (
            "response_time: 0.5}",
            "response_time: 0.5, deadline: 0.4}",
            "models.photos.sla.deadline = 0.4: must be ≥ response_time (0.5)",
        ),
        (
            "response_time: 0.5}",
            "response_time: .inf}",
            "models.photos.sla.response_time = inf: input should be a finite number",
        ),
        (
            "response_time: 0.5}",
            "response_time: soon}",
            "models.photos.sla.response_time = soon: input should be a valid number, unable to parse string as a number",
        ),
        (
            "name: local",
            "name: ../etc",
            "workers.0.name = ../etc: string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'",
        ),
        (
            "  photos:",
            "  a/b:",
            "models.a/b = a/b: string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'",
        ),
        ("sla: {response_time: 0.5}", "cpu: {}", "models.photos.sla: missing"),
        (
            "workers:",
            "wrokers:",
            "wrokers = [{'cores': 2, 'name': 'local', 'reserved': 0.5}]: unknown key",
        ),
        (
            "{name: local, cores: 2, reserved: 0.5}",
            "{cores: 2, backend: static}",
            "workers.0.executables = 0 listed: must be at least one for backend static, none for the others",
        ),
    ],
)
def test_faults(old, new, line):
    assert old in GOOD
    assert f"roma.yaml: {line}" in faults(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "roma.yaml: the file is empty"),
        ("[1]", "roma.yaml: file = [1]: must be a mapping"),
        (
            "models: {m: {sla: {response_time: 1}}}\nworkers:",
            "roma.yaml: workers = None: must be a list",
        ),
        ("models: {m: }\nworkers: []", "roma.yaml: models.m = None: must be a mapping"),
        (
            "models: {m: {sla: {response_time: 1}}}\nworkers: []",
            "roma.yaml: workers = []: must be at least one",
        ),
        ("a: b: c", "roma.yaml: not valid YAML: mapping values are not allowed here at line 1,"),
        (
            "gateway: {port: 010000}",
            "roma.yaml: not valid YAML: a number must not begin with 0: 010000 at line 1, column 17",
        ),
        (
            "gateway: {port: 08501}",
            "roma.yaml: not valid YAML: a number must not begin with 0: 08501 at line 1, column 17",
        ),
        (
            "models: {}\nworkers: [{cores: 1}]",
            "roma.yaml: models = {}: must not be empty",
        ),
        ("name: 2020-99-99", "roma.yaml: not valid YAML: month must be in 1..12"),
        ("name: !!bool abc", "roma.yaml: not valid YAML: 'abc'"),
        ("name: !!int ''", "roma.yaml: not valid YAML: string index out of range"),
        (
            "name: 0x" + "f" * 5000,
            "roma.yaml: not valid YAML: a whole number must be from -10^30",
        ),
        ('name: "\\ud800"', "roma.yaml: not valid YAML: half a surrogate pair is no character"),
        ("[" * 5000, "roma.yaml: not valid YAML: nested too deeply"),
        ("name: x\nname: y", "roma.yaml: not valid YAML: key 'name' appears twice"),
        ("? [a]\n: b", "roma.yaml: not valid YAML: keys must be plain words"),
    ],
)
def test_what_is_no_configuration_at_all(text, line):
    assert faults(text)[0].startswith(line)


def test_an_alias_bomb_is_one_short_line():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert all(len(fault) < 300 for fault in faults("\n".join(lines)))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("path: models/photos", 'path: "a\\0b"', "models.photos.path"),
        (
            "models/photos",
            "models/photos\n    max_waiting: a|b|c",
            "models.photos.max_waiting = a|b|c",
        ),
        ("workers:", 'gateway: {host: "a\\0"}\nworkers:', "gateway.host"),
        ("workers:", "control: {dispatchers: [zzz]}\nworkers:", "control.dispatchers.0 = zzz"),
        ("workers:", '"new\\nline": 1\nworkers:', "new line = 1: unknown key"),
        (
            "models/photos",
            "models/photos\n    memory: 2Gi",
            "models.photos.memory = 2Gi: must be a number of bytes, or a size such as 2GiB or 500MB",
        ),
    ],
)
def test_hostile_values_are_named_on_one_line(old, new, key):
    found = faults(GOOD.replace(old, new, 1))
    assert found[0].startswith(f"roma.yaml: {key}"), found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("yes", "unable to parse string"),
        ("on", "unable to parse string"),
        ("1:30", "unable to parse string"),
        ("true", "must be a value, not true or false"),
    ],
)
def test_what_is_no_number_is_not_taken_for_one(value, said):
    text = f"models:\n  m: {{path: x, sla: {{response_time: {value}}}}}\nworkers: [{{cores: 2}}]"
    with pytest.raises(ConfigError, match=f"models.m.sla.response_time = {value}: .*{said}"):
        schema.parse(text)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("control: {law: pi, gains: {target: true}}", "control.gains.target"),
        ("plant: {models: {m: {load: {on_off: [1, true, 1]}}}}", "plant.models.m.load.on_off.1"),
    ],
)
def test_no_part_of_a_value_is_true(section, key):
    text = "models: {m: {path: x, sla: {response_time: 1}}}\nworkers: [{cores: 2}]\n"
    with pytest.raises(ConfigError, match=f"{key} = true: must be a value, not true or false"):
        schema.parse(text + section)


def test_numbers_are_read_as_people_write_them():
    text = "[1e-1, .5, 0.5, 1.5e+3, -3, 0, -0, 0x10, 1_000, .inf, true, False, ~, '1']"
    expected = [0.1, 0.5, 0.5, 1500.0, -3, 0, 0, 16, 1000, float("inf"), True, False, None, "1"]
    assert yaml_file.read(text, source="f") == expected


def test_merges_that_multiply_are_refused_before_they_do():
    lines = ["a0: &a0 {k: 1}"]
    lines += [
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}], k{i}: 1}}" for i in range(1, 30)
    ]
    with pytest.raises(ConfigError, match="merges more than 10000 keys"):
        yaml_file.read("\n".join(lines), source="f")
    assert yaml_file.read("a: &a {k: 1, l: 2}\nb: {<<: *a, l: 3}", source="f")["b"] == {
        "k": 1,
        "l": 3,
    }


def test_cores_are_compared_as_they_are_written():
    """In binary, 2 - 1.8 is less than 0.2, and three times 0.1 is more than 0.3."""
    model = "{path: m, sla: {response_time: 1}, cpu: {min: 0.1, max: 0.2}}"
    found = schema.parse(f"models: {{m: {model}}}\nworkers: [{{cores: 2, reserved: 1.8}}]")
    assert found.workers[0].allocatable == 0.2
    schema.parse(f"models: {{a: {model}, b: {model}, c: {model}}}\nworkers: [{{cores: 0.3}}]")
