"""Workers of roma.yaml: model servers, their addresses, and what must fit."""

import pytest

from roma.config import placement, schema
from roma.config.workers import DockerConfig
from roma.domain.errors import ConfigError
from roma.domain.model import Device
from tests.support.roma_yaml import GOOD, MODELS, faults


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


def on(worker):
    """Return the file with another worker."""
    return GOOD.replace("{name: local, cores: 2, reserved: 0.5}", worker)


def listing(*executables, more=""):
    """Return the file with a worker of these executables, which others start."""
    listed = ", ".join(executables)
    return on(f"{{name: w, cores: 2, backend: static, executables: [{listed}]{more}}}")


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
    listed = "{url: 'unix:///run/a.sock', model: digits}", "{url: 'http://x:2', model: photos}"
    a, b = placement.executables(schema.parse(listing(*listed)))
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
    (fault,) = faults(listing(executable))
    assert fault.startswith(f"roma.yaml: {line}")


@pytest.mark.parametrize("cgroup", ["../x", "/", "a/../b", "''", '"a\\0"'])
def test_a_cgroup_stays_below_its_mount(cgroup):
    (fault,) = faults(listing(f"{{url: 'http://x:1', model: digits, cgroup: {cgroup}}}"))
    assert "workers.0.executables.0.cgroup" in fault


def test_the_least_cores_of_what_others_start_fit_the_worker_too():
    """Of those whose cores are set: the others take part in nothing."""
    listed = [
        f"{{url: 'http://x:{i}', model: {m}, cgroup: c/{i}}}" for i, m in enumerate(MODELS, 1)
    ]
    text = listing(*listed).replace("cores: 2", "cores: 0.11")
    bound = "must be ≥ the sum of the models' cpu.min (0.12)"
    assert faults(text) == [f"roma.yaml: workers.0.cores - reserved = 0.11: {bound}"]
    schema.parse(text.replace(", cgroup: c/2", ""))


def test_a_model_that_nothing_serves_is_refused():
    (fault,) = faults(listing("{url: 'http://x:1', model: digits}"))
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
    text = listing(executable, "{url: 'http://x:2', model: photos}")
    text = text.replace("threads: 2", "in_flight: 1")
    assert faults(text + "gateway: {processes: 2}\n") == [f"roma.yaml: {line}"]


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
            r"'^[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*:[0-9]{1,5}$'",
        ),
        (
            "{url: 'http://x:1', model: digits, grpc: 'x:3'}, "
            "{url: 'http://x:2', model: photos, grpc: 'x:3'}",
            "",
            "workers.executables.grpc = x:3: must be listed once",
        ),
        (
            "{url: 'http://x:1', model: digits}, {url: 'http://x:2', model: photos}",
            ", grpc_offset: 1000",
            "workers.0.grpc_offset = 1000: must be absent for backend static (use grpc, grpc_port)",
        ),
    ],
)
def test_faults_of_grpc_addresses_are_named(listed, more, fault):
    assert faults(listing(listed, more=more)) == [f"roma.yaml: {fault}"]


@pytest.mark.parametrize(
    ("groups", "at", "bound"),
    [
        ("s/a s/a", 1, "must be neither that of executables.0 (s/a) nor within it"),
        ("s/a/x s/b s/a", 0, "must be neither that of executables.2 (s/a) nor within it"),
        ("s/a s/ab s/a.x", None, ""),
    ],
)
def test_two_executables_with_one_cgroup_are_refused(groups, at, bound):
    """Each would set its quota, to another number at every tick."""
    named = zip(groups.split(), ("digits", "photos", "digits"), strict=False)
    text = listing(
        *(
            f"{{url: 'http://x:{i}', model: {name}, cgroup: {group}}}"
            for i, (group, name) in enumerate(named, 1)
        )
    )
    if at is None:
        assert len(placement.executables(schema.parse(text))) == 3
        return
    group = groups.split()[at]
    assert faults(text) == [f"roma.yaml: workers.0.executables.{at}.cgroup = {group}: {bound}"]


def test_grpc_addresses_are_the_listed_ones_or_an_offset_away():
    a, b = placement.executables(
        schema.parse(GOOD.replace("reserved: 0.5", "reserved: 0.5, grpc_offset: 1000"))
    )
    assert (a.grpc, b.grpc) == (("127.0.0.1", 9600), ("127.0.0.1", 9601))
    gpu = "{url: 'http://x:1', device: gpu, grpc: 'y.z:2'}"
    text = listing(gpu, "{url: 'http://x:3', model: digits}")
    gpu, cpu = placement.executables(schema.parse(text))
    assert (gpu.grpc, cpu.grpc) == (("y.z", 2), None)


def test_a_gpu_executable_holds_all_models():
    listed = "{url: 'http://g:1', device: gpu}", "{url: 'http://c:2', model: photos, cgroup: x/y}"
    gpu, cpu = placement.executables(schema.parse(listing(*listed)))
    assert (gpu.spec.device, gpu.spec.models, gpu.cgroup) == (
        Device.GPU,
        ("digits", "photos"),
        None,
    )
    assert (cpu.spec.device, cpu.spec.models, cpu.cgroup) == (Device.CPU, ("photos",), "x/y")


def test_an_executable_has_no_more_cores_than_its_worker_can_give():
    """The dispatcher would admit requests for which no controller has cores."""
    text = listing(
        "{url: 'http://c:1', model: digits, cgroup: x}",
        "{url: 'http://c:2', model: digits}",
        "{url: 'http://c:3', device: gpu}",
    )
    text = text.replace("cores: 2", "cores: 1")
    text = text.replace("max: 1.5, initial: 0.5, threads: 2", "max: 8, initial: 4")
    ours, others, _ = placement.executables(schema.parse(text))
    assert (ours.spec.cores, ours.spec.most_cores, ours.max_cores) == (1, 1, 1)
    assert ours.concurrency == 1
    # Nobody moves the cores of the other one, which the worker does not lend.
    assert (others.spec.cores, others.spec.most_cores, others.max_cores) == (4, 0, 8)


PODS = "{name: w, cores: 2, backend: kubernetes, node: n, kubernetes: {SETTING}}"


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("namespace: My_Models", "namespace = My_Models: string should match pattern"),
        ("namespace: a.b", "namespace = a.b: string should match pattern"),
        ("container: Model_Server", "container = Model_Server: string should match pattern"),
        ("lease: Roma", "lease = Roma: string should match pattern"),
        ("selector: a=b=c", "selector = a=b=c: must be a label selector, such as a=b,c or a in"),
        ("selector: 'a=b,'", "selector = a=b,: must be a label selector"),
        ("selector: a b", "selector = a b: must be a label selector"),
        ("selector: a in b", "selector = a in b: must be a label selector"),
        ("selector: 'a in (b'", "selector = a in (b: must be a label selector"),
        ("selector: a=-b", "selector = a=-b: must be a label selector"),
    ],
)
def test_what_an_api_server_would_not_take_is_refused(setting, fault):
    """It would answer a list in such a namespace with no pods, and the others with 400."""
    (found,) = faults(on(PODS.replace("SETTING", setting)))
    assert found.startswith(f"roma.yaml: workers.0.kubernetes.{fault}")


@pytest.mark.parametrize(
    "selector",
    ["a", "!a", "! a", "a=b", "a = b, c==d", "a=", "x.y/a!=b", "a in (b)", "a notin ( b,c ),d=e"],
)
def test_selectors_are_those_of_kubernetes(selector):
    found = schema.parse(on(PODS.replace("SETTING", f"selector: '{selector}'")))
    assert found.workers[0].pods.selector == selector


def test_the_pods_of_a_node_are_one_workers():
    first = PODS.replace("SETTING", "selector: a=b")
    text = on(f"{first}\n  - {first.replace('name: w', 'name: v')}")
    bound = "must be different from workers.0.node: both would have its pods"
    assert faults(text) == [f"roma.yaml: workers.1.node = n: {bound}"]
    for other in ("{selector: a=c}", "{selector: a=b, namespace: x}"):
        head, _, tail = text.rpartition("{selector: a=b}")
        schema.parse(f"{head}{other}{tail}")


def test_the_supervisor_of_many_nodes_has_one_port():
    nodes = [
        PODS.replace("{SETTING}", "{}").replace("w,", f"w{i},").replace("node: n", f"node: n{i}")
        for i in range(20)
    ]
    text = on("\n  - ".join(nodes))
    found = schema.parse(f"{text}gateway: {{grpc_port: 8503}}\n")
    assert {found.control_port(worker) for worker in found.workers} == {8502}
    fault = "control.port = 8502: must be different from gateway.grpc_port"
    assert faults(f"{text}gateway: {{grpc_port: 8502}}\n") == [f"roma.yaml: {fault}"]


ENGINE = "{{name: w, cores: 2, backend: docker, docker: {{{}}}}}"
TCP = "address: x, tls: certs, host: "


@pytest.mark.parametrize(
    ("section", "worker", "fault"),
    [
        ("gateway: {host: gpu..example}", "", "gateway.host = gpu..example: string should match"),
        (f"gateway: {{host: {'a' * 64}.b}}", "", f"gateway.host = {'a' * 64}.b: string should"),
        ("control: {host: .b}", "", "control.host = .b: string should match"),
        ("", "address: a..b", "workers.0.docker.address = a..b: string should match"),
        ("", f"{TCP}'tcp://a..b:1'", "workers.0.docker.host = tcp://a..b:1: string should match"),
        ("", f"{TCP}'tcp://a:65536'", "workers.0.docker.host = tcp://a:65536: must be at a port"),
        ("", "address: x, host: 'ssh://a:0'", "workers.0.docker.host = ssh://a:0: must be at a"),
        (
            "control: {dispatchers: ['http://x:1', 'http://x:99999']}",
            "",
            "control.dispatchers.1 = http://x:99999: must be at a port from 1 to 65535",
        ),
        (
            "gateway: {supervisors: {w: 'https://x:0'}}",
            "",
            "gateway.supervisors.w = https://x:0: must be at a port from 1 to 65535",
        ),
    ],
)
def test_an_address_that_nobody_can_look_up_or_call_is_refused(section, worker, fault):
    text = on(ENGINE.format(worker))
    (found,) = faults(f"{text}{section}\n")
    assert found.startswith(f"roma.yaml: {fault}")


@pytest.mark.parametrize("host", ["::1", "2001:db8::7", "::ffff:10.0.0.7", "localhost.", "gpu_7"])
def test_addresses_and_names_are_hosts(host):
    assert schema.parse(f"{GOOD}gateway: {{host: '{host}'}}\n").gateway.host == host


@pytest.mark.parametrize("key", ["run_dir", "cgroup_root"])
def test_a_path_that_no_file_can_have_is_refused(key):
    text = on(ENGINE.format(f'{key}: "a\\0b"'))
    (found,) = faults(text)
    assert found.endswith("a path cannot contain NUL")


@pytest.mark.parametrize(
    ("name", "is_refused"), [("n" * 54, False), ("n" * 55, True), ("n.", False), ("a..b", True)]
)
def test_a_container_that_is_called_by_name_has_one_that_can_be_looked_up(name, is_refused):
    worker = "{name: w, cores: 2, backend: docker, gpus: 1, docker: {SETTING}}"
    text = f"name: {name}\n{on(worker)}"
    schema.parse(text.replace("SETTING", "address: 127.0.0.1"))
    text = text.replace("SETTING", "network: models")
    if not is_refused:
        schema.parse(text)
        return
    host = f"host {name}-w-digits has a part that is empty or longer than 63 characters"
    (found,) = faults(text)
    assert found == f"roma.yaml: name = {name}: must be another, or a model's: {host}"


@pytest.mark.parametrize(
    ("images", "key"),
    [("", "image"), (", image: i", "gpu_image"), (", gpu_image: i", "image")],
)
def test_the_image_has_the_server_that_it_is_to_run(images, key):
    worker = f"{{name: w, cores: 2, backend: docker, gpus: 1, docker: {{server: roma{images}}}}}"
    text = on(worker)
    default = DockerConfig.model_fields[key].default
    ours = "roma/model-server:dev" if key == "image" else "one of yours with CUDA"
    bound = f"must be an image with roma, as {ours}, where server is roma"
    assert faults(text) == [f"roma.yaml: workers.0.docker.{key} = {default}: {bound}"]
    schema.parse(text.replace("server: roma", "server: tensorflow_serving"))
    if key == "gpu_image":
        schema.parse(text.replace("gpus: 1, ", ""))


def test_where_model_servers_have_sockets_no_port_is_taken():
    text = (
        "models: {m: {path: m, sla: {response_time: 1}}}\ngateway: {port: 8600}\nworkers:\n"
        "- {name: a, cores: 1, sockets: /run/a}\n- {name: b, cores: 1, sockets: /run/b}\n"
    )
    assert [w.base_port for w in schema.parse(text).workers] == [8600, 8600]
    line = r"workers\.1\.base_port \+ grpc_offset = 9600: must be different from workers\.0"
    with pytest.raises(ConfigError, match=line):
        schema.parse(text.replace("cores: 1,", "cores: 1, grpc_offset: 1000,"))
