"""roma.yaml: one clear line per fault, naming key, value and bound."""

from pathlib import Path

import pytest

from roma.config import placement, schema, yaml_file
from roma.domain.errors import ConfigError
from roma.domain.model import Device

GOOD = """
models:
  digits:
    path: models/digits
    sla: {response_time: 0.25, statistic: p95}
    cpu: {min: 0.1, max: 1.5, initial: 0.5, threads: 2}
  photos:
    path: models/photos
    sla: {response_time: 0.5}
workers:
  - {name: local, cores: 2, reserved: 0.5}
"""

MODELS = ("digits", "photos")


def faults(text):
    with pytest.raises(ConfigError) as e:
        schema.parse(text)
    return str(e.value).splitlines()


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
    ("more", "line"),
    [
        ("sockets: run", "sockets = run: string should match pattern '^/[^\\s\\x00-\\x1f]*$'"),
        (
            f"sockets: /{'x' * 90}",
            f"sockets = unix:///{'x' * 90}/roma.local.digits.sock: must be a path of ≤ 107 bytes, "
            "the kernel's bound (it has 114)",
        ),
        (
            "backend: docker, sockets: /run",
            "sockets = /run: must be absent for backend docker",
        ),
    ],
)
def test_faults_of_sockets(more, line):
    assert faults(GOOD.replace("reserved: 0.5", f"reserved: 0.5, {more}")) == [
        f"roma.yaml: workers.0.{line}"
    ]


MODEL = "path: /m, sla: {response_time: 1}"
DOCKER = "cores: 2, backend: docker"
TWO = f"c: {{{MODEL}, workers: [a-b]}}, b-c: {{{MODEL}, workers: [a]}}"


@pytest.mark.parametrize(
    ("models", "workers", "line"),
    [
        (
            f"m: {{{MODEL}}}, gpu0: {{{MODEL}}}",
            f"{{name: w, {DOCKER}, gpus: 1}}",
            "gpu0 = gpu0: must be another name: executable gpu0@w is that of a GPU too",
        ),
        (
            TWO,
            f"{{name: a, {DOCKER}}}, {{name: a-b, {DOCKER}}}",
            "c = c: must be another name: container roma-a-b-c is that of b-c@a too",
        ),
        (
            f"A: {{{MODEL}}}, a: {{{MODEL}}}",
            f"{{name: w, {DOCKER}}}",
            "a = a: must be another name: container roma-w-a is that of A@w too",
        ),
        (
            f"c: {{{MODEL}, workers: [a.b]}}, b.c: {{{MODEL}, workers: [a]}}",
            "{name: a, cores: 2, sockets: /run}, {name: a.b, cores: 2, sockets: /run}",
            "c = c: must be another name: socket /run/roma.a.b.c.sock is that of b.c@a too",
        ),
    ],
)
def test_model_servers_that_would_be_taken_for_one_another(models, workers, line):
    found = faults(f"models: {{{models}}}\nworkers: [{workers}]")
    assert found == [f"roma.yaml: models.{line}"]


def test_engines_of_two_hosts_may_have_containers_of_one_name():
    first, second = (f"{DOCKER}, docker: {{host: 'ssh://u@{h}', address: {h}}}" for h in "xy")
    workers = f"{{name: a, {first}}}, {{name: a-b, {second}}}"
    found = placement.executables(schema.parse(f"models: {{{TWO}}}\nworkers: [{workers}]"))
    assert [e.container for e in found] == ["roma-a-b-c"] * 2


def test_sockets_take_the_place_of_ports():
    text = GOOD.replace("reserved: 0.5", "reserved: 0.5, grpc_offset: 1000, sockets: /run/m/")
    found = [(e.url, e.grpc) for e in placement.executables(schema.parse(text))]
    assert found == [
        ("unix:///run/m/roma.local.digits.sock", ("127.0.0.1", 9600)),
        ("unix:///run/m/roma.local.photos.sock", ("127.0.0.1", 9601)),
    ]
    worker = "{name: w, cores: 2, backend: static, executables: [LISTED]}"
    listed = "{url: 'unix:///run/a.sock', model: digits}, {url: 'http://x:2', model: photos}"
    text = GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker.replace("LISTED", listed))
    a, b = placement.executables(schema.parse(text))
    assert (a.url, a.socket, b.url, b.socket) == (
        "unix:///run/a.sock",
        "/run/a.sock",
        "http://x:2",
        None,
    )


@pytest.mark.parametrize(
    ("executable", "line"),
    [
        (
            "{url: 'https://x:1', model: digits}",
            "workers.0.executables.0.url = https://x:1: string should match",
        ),
        (
            "{url: 'http://x:1', model: nope}",
            "workers.0.executables.0.model = nope: must be one of digits, photos",
        ),
        (
            "{url: 'http://x:0', model: digits}",
            "workers.0.executables.0.url = http://x:0: must be at a port from 1 to 65535",
        ),
        (
            "{url: 'unix://run/x.sock', model: digits}",
            "workers.0.executables.0.url = unix://run/x.sock: string should match",
        ),
        (
            "{url: 'unix:///run/a b.sock', model: digits}",
            "workers.0.executables.0.url = unix:///run/a b.sock: string should match",
        ),
        (
            '{url: "unix:///run/a\\0b", model: digits}',
            "workers.0.executables.0.url = unix:///run/a\x00b: string should match",
        ),
        (
            f"{{url: 'unix:///{'é' * 54}', model: digits}}",
            f"workers.0.executables.0.url = unix:///{'é' * 54}: must be a path of ≤ 107 bytes, the kernel's bound (it has 109)",
        ),
        (
            "{url: 'http://x:1'}",
            "workers.0.executables.0.model = None: must be set for device cpu, absent for device gpu",
        ),
        (
            "{url: 'http://x:1', device: gpu, model: digits}",
            "workers.0.executables.0.model = digits: must be set for device cpu",
        ),
    ],
)
def test_faults_of_listed_executables(executable, line):
    worker = f"{{name: w, cores: 2, backend: static, executables: [{executable}]}}"
    (fault,) = faults(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker))
    assert fault.startswith(f"roma.yaml: {line}")


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
        ("a: b: c", "roma.yaml: not valid YAML: mapping values are not allowed here"),
        (
            "models: {}\nworkers: [{cores: 1}]",
            "roma.yaml: models = {}: dictionary should have at least 1 item after validation, not 0",
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


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: cannot be read: .*No such file"):
        schema.load(tmp_path / "nowhere.yaml")


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
    ],
)
def test_hostile_values_are_named_on_one_line(old, new, key):
    found = faults(GOOD.replace(old, new, 1))
    assert found[0].startswith(f"roma.yaml: {key}"), found


@pytest.mark.parametrize("cgroup", ["../x", "/", "a/../b", "''", '"a\\0"'])
def test_a_cgroup_stays_below_its_mount(cgroup):
    worker = f"{{name: w, cores: 2, backend: static, executables: [{{url: 'http://x:1', model: digits, cgroup: {cgroup}}}]}}"
    (fault,) = faults(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker))
    assert "workers.0.executables.0.cgroup" in fault


def test_the_least_cores_of_what_others_start_fit_the_worker_too():
    """Of those whose cores are set: the others take part in nothing."""
    listed = [
        f"{{url: 'http://x:{i}', model: {m}, cgroup: c/{i}}}" for i, m in enumerate(MODELS, 1)
    ]
    worker = f"{{name: w, cores: 0.11, backend: static, executables: [{', '.join(listed)}]}}"
    text = GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker)
    bound = "must be ≥ the sum of the models' cpu.min (0.12)"
    assert faults(text) == [f"roma.yaml: workers.0.cores - reserved = 0.11: {bound}"]
    schema.parse(text.replace(", cgroup: c/2", ""))


def test_a_model_that_nothing_serves_is_refused():
    worker = (
        "{name: w, cores: 2, backend: static, executables: [{url: 'http://x:1', model: digits}]}"
    )
    (fault,) = faults(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker))
    assert fault == "roma.yaml: models.photos = photos: must be served by an executable of a worker"


def test_workers_have_different_names():
    text = GOOD + "  - {name: local, cores: 4}\n"
    assert faults(text) == ["roma.yaml: workers = ['local', 'local']: must be different names"]


def test_several_dispatchers_have_a_port_each():
    c = schema.parse(GOOD + "gateway: {processes: 3}\n")
    assert c.dispatcher_urls == tuple(f"http://127.0.0.1:{p}" for p in (8500, 8510, 8511))


@pytest.mark.parametrize(
    ("executable", "line"),
    [
        (
            "{url: 'http://x:1', device: gpu}",
            "gateway.processes = 2: must be 1 with GPUs: each would send to one at once",
        ),
        (
            "{url: 'http://x:1', model: digits}",
            "models.digits.cpu.in_flight = 1: must be ≥ gateway.processes (2), or absent",
        ),
    ],
)
def test_what_takes_one_at_a_time_has_one_dispatcher(executable, line):
    listed = f"{executable}, {{url: 'http://x:2', model: photos}}"
    worker = f"{{name: w, cores: 2, backend: static, executables: [{listed}]}}"
    text = GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker)
    text = text.replace("threads: 2", "in_flight: 1")
    assert faults(text + "gateway: {processes: 2}\n") == [f"roma.yaml: {line}"]


# Placement


def test_local_executables_have_a_port_and_a_cgroup_each():
    a, b = placement.executables(schema.parse(GOOD))
    assert (a.name, a.url, a.cgroup) == (
        "digits@local",
        "http://127.0.0.1:8600",
        "roma/local/digits",
    )
    assert (a.min_cores, a.max_cores, a.spec.cores, a.spec.threads) == (0.1, 1.5, 0.5, 2)
    assert (b.name, b.url, b.max_cores, b.spec.cores) == (
        "photos@local",
        "http://127.0.0.1:8601",
        1.5,
        1.5,
    )
    assert (a.concurrency, b.concurrency) == (1, 2)


STATIC = "{name: w, cores: 2, backend: static, executables: [LISTED], MORE}"


@pytest.mark.parametrize(
    ("listed", "more", "fault"),
    [
        (
            "{url: 'http://x:1', model: digits, grpc: 'x:0'}",
            "",
            "workers.0.executables.0.grpc = x:0: must be at a port from 1 to 65535",
        ),
        (
            "{url: 'http://x:1', model: digits, grpc: 'http://x:2'}",
            "",
            "workers.0.executables.0.grpc = http://x:2: string should match pattern "
            r"'^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*:[0-9]{1,5}$'",
        ),
        (
            "{url: 'http://x:1', model: digits, grpc: 'x:3'}, "
            "{url: 'http://x:2', model: photos, grpc: 'x:3'}",
            "",
            "workers.executables.grpc = x:3: must be listed once",
        ),
        (
            "{url: 'http://x:1', model: digits}, {url: 'http://x:2', model: photos}",
            "grpc_offset: 1000",
            "workers.0.grpc_offset = 1000: must be absent for backend static (use grpc, grpc_port)",
        ),
    ],
)
def test_faults_of_grpc_addresses_are_named(listed, more, fault):
    worker = STATIC.replace("LISTED", listed).replace(", MORE", f", {more}" if more else "")
    assert faults(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker)) == [
        f"roma.yaml: {fault}"
    ]


def test_grpc_addresses_are_the_listed_ones_or_an_offset_away():
    a, b = placement.executables(
        schema.parse(GOOD.replace("reserved: 0.5", "reserved: 0.5, grpc_offset: 1000"))
    )
    assert (a.grpc, b.grpc) == (("127.0.0.1", 9600), ("127.0.0.1", 9601))
    listed = "{url: 'http://x:1', device: gpu, grpc: 'y.z:2'}, {url: 'http://x:3', model: digits}"
    worker = STATIC.replace("LISTED", listed).replace(", MORE", "")
    gpu, cpu = placement.executables(
        schema.parse(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker))
    )
    assert (gpu.grpc, cpu.grpc) == (("y.z", 2), None)


def test_a_gpu_executable_holds_all_models():
    worker = (
        "{name: w, cores: 8, backend: static, executables: ["
        "{url: 'http://g:1', device: gpu}, {url: 'http://c:2', model: photos, cgroup: x/y}]}"
    )
    gpu, cpu = placement.executables(
        schema.parse(GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker))
    )
    assert (gpu.spec.device, gpu.spec.models, gpu.cgroup) == (
        Device.GPU,
        ("digits", "photos"),
        None,
    )
    assert (cpu.spec.device, cpu.spec.models, cpu.cgroup) == (Device.CPU, ("photos",), "x/y")


def test_the_example_in_the_repository_is_valid():
    example = Path(__file__).parents[3] / "examples/roma.yaml"
    assert schema.load(example).models


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
    text = "[1e-1, .5, 1.5e+3, -3, 0x10, 1_000, .inf, true, False, ~, '1']"
    expected = [0.1, 0.5, 1500.0, -3, 16, 1000, float("inf"), True, False, None, "1"]
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
