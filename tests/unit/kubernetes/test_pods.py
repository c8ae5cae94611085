"""CPU quantities and pods as the API server writes them, and kubeconfigs as people have them."""

import base64
import copy

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives import serialization

from roma.config import schema
from roma.config.backends.pod import own_name
from roma.config.backends.pod_source import _Executables
from roma.config.placement import executables
from roma.domain.errors import ConfigError
from roma.kubernetes.credentials import TokenFile, find
from roma.kubernetes.limit_range import CpuBounds
from roma.kubernetes.pods import parse
from roma.kubernetes.quantity import millicores, quantity

POD = {
    "metadata": {
        "name": "digits-6d5f-x2x",
        "uid": "u1",
        "generation": 4,
        "labels": {"roma.dev/managed": "true", "roma.dev/model": "digits"},
    },
    "spec": {
        "nodeName": "node-a",
        "containers": [
            {"name": "sidecar"},
            {
                "name": "model-server",
                "resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "20m"}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
            },
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "observedGeneration": 4,
        "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "sidecar", "restartCount": 9},
            {
                "name": "model-server",
                "restartCount": 2,
                "resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "20m"}},
            },
        ],
    },
}


def changed(path, value):
    """Return POD with another value at a path, where None removes the key."""
    found = copy.deepcopy(POD)
    *parents, last = path
    at = found
    for key in parents:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return parse(found, "model-server")


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("250m", 250),
        ("2", 2000),
        ("0.5", 500),
        ("1500u", 2),
        ("1n", 1),
        ("0", 0),
        (".1", 100),
        ("2e-1", 200),
        ("1E2", 100_000),
        ("1k", 1_000_000),
        ("0.0001", 1),
    ],
)
def test_quantities_are_rounded_up_to_whole_millicores(text, millis):
    assert millicores(text) == millis


@pytest.mark.parametrize("text", ["", "m", "1 ", "-1", "1mm", "1Ki", "0x1", "1e", "٣"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is no CPU quantity"):
        millicores(text)


def test_quantities_are_written_as_the_server_writes_them():
    assert [quantity(m) for m in (1, 250, 1000, 1500, 64000)] == ["1m", "250m", "1", "1500m", "64"]


def test_a_pod_is_reduced_to_what_routing_and_control_need():
    pod = parse(POD, "model-server")
    assert (pod.name, pod.uid, pod.node, pod.ip) == ("digits-6d5f-x2x", "u1", "node-a", "10.0.0.7")
    assert (pod.model, pod.request, pod.limit, pod.granted) == ("digits", 20, 1500, 1500)
    assert (pod.restarts, pod.resize, pod.fault) == (2, "", "")
    assert pod.is_served
    assert pod.is_settled


@pytest.mark.parametrize(("ip", "host"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")])
def test_an_address_has_brackets_in_a_url_alone(ip, host):
    config = schema.parse(
        "models: {digits: {sla: {response_time: 1}}}\n"
        "workers: [{name: a, backend: kubernetes, node: node-a, cores: 4, "
        "kubernetes: {port: 8501, grpc_port: 8500}}]"
    )
    worker, pod = config.workers[0], changed(("status", "podIP"), ip)
    listed = _Executables(worker).of([pod], CpuBounds())["node-a"]
    worker = worker.model_copy(update={"executables": listed})
    (found,) = executables(config.model_copy(update={"workers": (worker,)}))
    assert (found.host, found.port, found.grpc) == (ip, 8501, (ip, 8500))
    assert found.url == f"http://{host}:8501"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "deletionTimestamp"), "2026-11-27T18:00:00Z"),
        (("status", "phase"), "Pending"),
        (("status", "podIP"), None),
    ],
)
def test_a_pod_that_starts_or_leaves_gets_no_requests(path, value):
    assert not changed(path, value).is_served


CONDITIONS = [
    {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Deferred",
        "message": "Node didn't have enough resource: cpu",
    }
]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "generation"), 5),
        (("status", "containerStatuses", 1, "resources", "limits", "cpu"), "700m"),
        (("status", "containerStatuses", 1, "resources"), None),
        (("status", "conditions"), CONDITIONS),
    ],
)
def test_a_limit_is_in_force_once_the_kubelet_has_observed_and_shows_it(path, value):
    assert not changed(path, value).is_settled


def test_a_deferred_resize_is_told_in_the_kubelets_words():
    pod = changed(("status", "conditions"), CONDITIONS)
    assert pod.resize == "Deferred: Node didn't have enough resource: cpu"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("spec", "containers", 1, "name"), "other", "it has no container model-server"),
        (("spec", "containers", 1, "resources", "limits"), None, "no CPU limit: its template must"),
        (("status", "qosClass"), "Guaranteed", "QoS class is Guaranteed"),
        (
            ("spec", "containers", 1, "resizePolicy", 0, "restartPolicy"),
            "RestartContainer",
            "restarts at each resize",
        ),
    ],
)
def test_pods_whose_limits_cannot_be_changed_say_why(path, value, fault):
    assert fault in changed(path, value).fault


@pytest.mark.parametrize(
    "found", [{}, {"metadata": {}}, {"metadata": None, "spec": 3}, {"spec": []}]
)
def test_what_is_no_pod_is_refused(found):
    with pytest.raises(ValueError, match="no pod"):
        parse(found, "model-server")


def test_the_end_of_a_long_name_is_kept():
    assert own_name("digits-6d5f-x2x") == "digits-6d5f-x2x"
    assert own_name("a" * 70 + "-6d5f-x2x") == "a" * 54 + "-6d5f-x2x"
    assert own_name("a" * 9 + "-" + "b" * 62) == "b" * 62


CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "models"}}],
}


def written(path, **sections):
    file = path / "config"
    file.write_text(yaml.safe_dump({**CONFIG, **sections}))
    return file


def test_a_kubeconfig_names_the_server_the_namespace_and_the_token(tmp_path, monkeypatch):
    file = written(tmp_path)
    found = find(file)
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "models")
    assert found.token() == "secret"
    assert "secret" not in repr(found)
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{file}")
    assert find().server == found.server


def test_a_user_without_a_home_is_told_what_is_missing(monkeypatch):
    """As in a container whose user is a mere number."""

    def nobody(_):
        raise KeyError("no such user")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"^~/\.kube/config: cannot be read: No such file"):
        find()


def test_of_several_kubeconfigs_the_first_that_has_an_entry_is_followed(tmp_path, monkeypatch):
    first, second = tmp_path / "one", tmp_path / "two"
    for directory in (first, second):
        directory.mkdir()
        (directory / "token").write_text(directory.name)
    files = (
        written(first, users=[], **{"current-context": ""}),
        written(second, **user(tokenFile="token"), **cluster(server="https://second:1")),
    )
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    found = find()
    assert (found.server, found.token()) == ("https://10.0.0.1:6443", "two")
    assert found.source == f"{files[0]}:{files[1]}"


def test_a_token_file_is_read_again(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("roma.kubernetes.credentials.time.monotonic", lambda: now[0])
    file = tmp_path / "token"
    file.write_text("one\n")
    token = TokenFile(file)
    assert token() == "one"
    file.write_text("two\n")
    assert token() == "one"
    now[0] = 10.0
    assert token() == "two"
    for half in ("", "three\nX-Other: 1", "dr\u00e9i"):  # it is being written
        file.write_text(half)
        now[0] += 10.0
        assert token() == "two"
    file.unlink()
    now[0] += 10.0
    assert token() == "two"


def user(**found):
    """Return the section of a user."""
    return {"users": [{"name": "u", "user": found}]}


def cluster(**found):
    """Return the section of a cluster."""
    return {"clusters": [{"name": "k", "cluster": {"server": "https://x:1", **found}}]}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"kind": "Pod"}, "is no kubeconfig"),
        ({"current-context": "x"}, "context = x: must be one of contexts (c)"),
        ({"current-context": ""}, "context = None: must be one of contexts (c)"),
        ({"clusters": []}, "cluster = k: must be one of clusters (none)"),
        ({"users": None}, "user = u: must be one of users (none)"),
        (
            cluster(server="10.0.0.1"),
            "clusters.k.server = 10.0.0.1: must be http(s)://host:port",
        ),
        (
            user(exec={"command": "aws"}),
            "users.u.exec = set: must be absent: use token, tokenFile or client-certificate",
        ),
        (
            cluster(**{"certificate-authority-data": base64.b64encode(b"no PEM").decode()}),
            "clusters.k.certificate-authority: ",
        ),
        (
            user(**{"client-certificate": "nowhere.crt", "client-key": "k"}),
            "users.u.client-certificate: ",
        ),
        ({"contexts": 5}, "contexts = int: must be a list"),
        (user(tokenFile=5), "/5: must be readable: "),
        (user(tokenFile="nowhere"), "users.u.tokenFile = "),
        (user(token="se\ncret"), "users.u.token = …: must be printable ASCII"),
        (user(**{"as": "bob"}), "users.u.as = set: must be absent"),
        (user(password="p"), "users.u.password = set: must be absent"),
        (
            user(**{"client-key-data": "aGFsbG8="}),
            "users.u.client-certificate: must be given together with",
        ),
        (cluster(server="https://[::1"), "clusters.k.server = https://[::1: must be http(s)"),
        (cluster(server="https://x:99999"), "clusters.k.server = https://x:99999: must be http(s)"),
        (cluster(**{"proxy-url": "http://p"}), "clusters.k.proxy-url = set: must be absent"),
        (
            cluster(**{"insecure-skip-tls-verify": "false"}),
            "clusters.k.insecure-skip-tls-verify: must be true or false",
        ),
        (cluster(**{"tls-server-name": "y"}), "clusters.k.tls-server-name = set: must be absent"),
        (
            {"contexts": [{"name": "c", "context": {"cluster": "k", "namespace": "a/b"}}]},
            "contexts.c.namespace = a/b: must be a DNS label",
        ),
    ],
)
def test_a_fault_of_a_kubeconfig_names_file_key_and_bound(tmp_path, sections, words):
    file = written(tmp_path, **sections)
    with pytest.raises(ConfigError) as raised:
        find(file)
    assert words in str(raised.value)
    assert str(file) in str(raised.value)


def test_certificates_may_be_blocks_of_lines_and_nobody_is_asked_for_a_keys_password(tmp_path):
    issued = trustme.CA().issue_cert("u")
    pem = issued.private_key_pem.bytes()
    locked = serialization.load_pem_private_key(pem, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )

    def lines(text):
        return base64.encodebytes(text).decode()

    of_user = {"client-certificate-data": lines(issued.cert_chain_pems[0].bytes())}
    find(written(tmp_path, **user(**of_user, **{"client-key-data": lines(pem)})))
    file = written(tmp_path, **user(**of_user, **{"client-key-data": lines(locked)}))
    with pytest.raises(ConfigError) as raised:
        find(file)
    words = "users.u.client-certificate: client-key must have no password"
    assert str(raised.value) == f"{file}: {words}"


def test_a_kubeconfig_that_cannot_be_parsed_is_not_quoted(tmp_path):
    file = tmp_path / "config"
    file.write_text("token: 'secret\n: [")
    with pytest.raises(ConfigError, match="line") as raised:
        find(file)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["a: [", "!!timestamp x", "\x00", "- 1", "", "[" * 5000, "a: 2020-99-99"]
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path, text):
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{file}: is no "):
        find(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        find(tmp_path / "absent")
