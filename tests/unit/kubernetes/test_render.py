"""Files of `roma render kubernetes`: rights, security, resources, and what it refuses."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema
from roma.config.workers import DockerConfig
from roma.deploy.kubernetes.common import slug
from roma.domain.errors import ConfigError

FILE = """
models:
  digits:
    sla: {response_time: 0.1}
    cpu: {max: 1.5, initial: 1}
    memory: 1GiB
    kubernetes: {persistentVolumeClaim: models}
  Photos_2:
    sla: {response_time: 0.3}
    replicas: 1
    kubernetes: {image: 'registry.example/photos:1'}
workers:
  - {name: a, backend: kubernetes, node: node-a, cores: 2, kubernetes: &pods {namespace: models}}
  - {name: b, backend: kubernetes, node: node-b, cores: 3, kubernetes: *pods}
"""


def rendered(tmp_path, text=FILE, *options):
    """Render a file; return the result and the objects of the base by kind and name."""
    file, out = tmp_path / "roma.yaml", tmp_path / "k8s"
    file.write_text(text)
    found = CliRunner().invoke(
        app, ["render", "kubernetes", str(file), "--out", str(out), *options]
    )
    objects = {
        (o["kind"], o["metadata"]["name"]): o
        for path in (out / "base").glob("*.yaml")
        if path.name not in ("roma.yaml", "kustomization.yaml")
        for o in yaml.safe_load_all(path.read_text())
    }
    return found, objects, out


def test_the_supervisor_alone_may_resize_and_nobody_may_more(tmp_path):
    _, objects, _ = rendered(tmp_path)
    rules = {
        name: {
            (resource, verb, tuple(rule.get("resourceNames", ())))
            for rule in found["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for (kind, name), found in objects.items()
        if kind == "Role"
    }
    look = {("pods", verb, ()) for verb in ("get", "list", "watch")}
    lease = {("leases", verb, ("roma-supervisor",)) for verb in ("get", "update")}
    assert rules == {
        "roma-gateway": look,
        "roma-supervisor": look
        | lease
        | {("leases", "create", ())}
        | {("pods/resize", "patch", ()), ("limitranges", "list", ())},
    }
    assert not [kind for kind, _ in objects if kind.startswith("Cluster")]


def test_requests_are_minima_and_limits_are_what_a_pod_begins_with(tmp_path):
    _, objects, _ = rendered(tmp_path)
    (digits,) = containers(objects["Deployment", "roma-model-digits"])
    (photos,) = containers(objects["Deployment", "roma-model-photos-2"])
    memory = str(2**30)
    assert digits["resources"] == {
        "requests": {"cpu": "20m", "memory": memory},
        "limits": {"cpu": "1", "memory": memory},
    }
    assert photos["resources"] == {"requests": {"cpu": "20m"}, "limits": {"cpu": "2"}}
    assert photos["image"] == "registry.example/photos:1"
    assert digits["resizePolicy"] == [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    assert digits["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}
    assert objects["Deployment", "roma-model-digits"]["spec"]["replicas"] == 2
    assert objects["Deployment", "roma-model-photos-2"]["spec"]["replicas"] == 1


def test_a_pod_is_never_guaranteed(tmp_path):
    text = FILE.replace("{max: 1.5, initial: 1}", "{min: 1, initial: 1, max: 1.5}")
    _, objects, _ = rendered(tmp_path, text)
    (digits,) = containers(objects["Deployment", "roma-model-digits"])
    assert digits["resources"]["requests"]["cpu"] == "1"
    assert digits["resources"]["limits"]["cpu"] == "1001m"


def test_names_are_labels_of_dns():
    assert slug("a" * 39 + "-b") == "a" * 39
    assert slug("3D_model") == "m3d-model"


def containers(workload):
    return workload["spec"]["template"]["spec"]["containers"]


def test_every_pod_is_restricted_and_has_probes_and_requests(tmp_path):
    _, objects, _ = rendered(tmp_path)
    workloads = [o for (kind, _), o in objects.items() if kind in ("Deployment", "StatefulSet")]
    assert len(workloads) == 4
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"readinessProbe", "livenessProbe"} <= container.keys()
            assert container["resources"]["requests"]["cpu"]
    models = [w for w in workloads if "model" in w["metadata"]["name"]]
    assert all(not w["spec"]["template"]["spec"]["automountServiceAccountToken"] for w in models)


def test_one_model_without_a_pod_takes_no_gateway_out_of_the_service(tmp_path):
    """`/readyz` alone is 503 then, of all gateways at once."""
    _, objects, _ = rendered(tmp_path)
    (gateway,) = containers(objects["StatefulSet", "roma-gateway"])
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz?any"


@pytest.mark.parametrize("filled", [2**30, 2**32])
def test_a_gateway_has_memory_for_what_its_clients_may_fill(tmp_path, filled):
    text = f"{FILE}gateway: {{limits: {{buffered_bytes: {filled}}}}}\n"
    _, objects, _ = rendered(tmp_path, text)
    (gateway,) = containers(objects["StatefulSet", "roma-gateway"])
    assert int(gateway["resources"]["limits"]["memory"]) == filled + 2**30


def test_pods_of_each_program_are_on_different_nodes_whatever_else_is_there(tmp_path):
    _, objects, _ = rendered(tmp_path)
    for (kind, _), workload in objects.items():
        if kind in ("Deployment", "StatefulSet"):
            template = workload["spec"]["template"]
            (constraint,) = template["spec"]["topologySpreadConstraints"]
            component = "app.kubernetes.io/component"
            labels = constraint["labelSelector"]["matchLabels"]
            assert labels[component] == template["metadata"]["labels"][component]


@pytest.mark.parametrize(("host", "inside"), [("127.0.0.1", "0.0.0.0"), ("::", "::")])
def test_pods_listen_on_addresses_of_the_cluster_s_kind(tmp_path, host, inside):
    text = f"{FILE}gateway: {{host: '{host}'}}\n"
    _, objects, out = rendered(tmp_path, text)
    (digits,) = containers(objects["Deployment", "roma-model-digits"])
    assert f"--host={inside}" in digits["args"]
    found = schema.load(out / "base" / "roma.yaml")
    hosts = {found.gateway.host, found.gateway.admin_host, found.control.host}
    assert hosts == {inside}


@pytest.mark.parametrize("names", [(), ("models.example",)])
def test_the_gateway_knows_the_names_of_its_services(tmp_path, names):
    text = f"{FILE}gateway: {{admin_names: [page.example], names: [{', '.join(names)}]}}\n"
    _, objects, out = rendered(tmp_path, text)
    found = schema.load(out / "base" / "roma.yaml").gateway
    suffixes = ("", ".models", ".models.svc", ".models.svc.cluster.local")
    for service, known, own in (
        ("roma-gateway-page", found.admin_names, ("page.example",)),
        ("roma-gateway", found.names, names),
    ):
        assert ("Service", service) in objects
        assert known == (*own, *(f"{service}{suffix}" for suffix in suffixes if own))


def test_an_autoscalers_number_of_replicas_is_not_overwritten(tmp_path):
    pool = "nodeSelector: {a: b}, cores: 2, kubernetes: {namespace: models}"
    text = f"{FILE[: FILE.index('workers:')]}workers: [{{name: a, backend: kubernetes, {pool}}}]\n"
    _, objects, _ = rendered(tmp_path, text)
    assert "replicas" not in objects["Deployment", "roma-model-digits"]["spec"]
    assert objects["Deployment", "roma-model-photos-2"]["spec"]["replicas"] == 1


def test_the_pods_read_a_file_that_they_accept(tmp_path):
    _, _, out = rendered(tmp_path, FILE, "--gateways", "3")
    found = schema.load(out / "base" / "roma.yaml")
    assert found.dispatcher_count == 3
    assert len(found.dispatcher_urls) == 3
    assert {w.pods.lease for w in found.workers} == {"roma-supervisor"}
    assert len(set(found.supervisor_urls.values())) == 1


def test_servers_of_others_have_their_image_and_are_read_through_their_kubelets(tmp_path):
    """ROMA's has no `tensorflow_model_server`."""
    text = FILE.replace("{namespace: models}", "{namespace: models, server: tensorflow_serving}")
    _, objects, out = rendered(tmp_path, text)
    (digits,) = containers(objects["Deployment", "roma-model-digits"])
    assert digits["command"] == ["tensorflow_model_server"]
    assert "--model_base_path=/models/digits" in digits["args"]
    assert digits["readinessProbe"]["httpGet"]["path"] == "/v1/models/digits"
    assert digits["image"] == DockerConfig().image
    values = yaml.safe_load((out / "chart" / "values.yaml").read_text())
    assert values["images"]["modelServer"] == digits["image"]
    rules = [o["rules"] for (kind, _), o in objects.items() if kind == "ClusterRole"]
    assert rules == [[{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}]]


def test_rights_of_the_cluster_are_not_another_namespace_s(tmp_path):
    names = set()
    for namespace in ("team-a", "team-b"):
        nodes = "nodeSelector: {a: b}, cores: 2, kubernetes: &pods {server: tensorflow_serving, "
        text = FILE.replace("node: node-a, cores: 2, kubernetes: &pods {", nodes)
        (tmp_path / namespace).mkdir()
        done, objects, _ = rendered(
            tmp_path / namespace, text.replace("namespace: models", f"namespace: {namespace}")
        )
        assert done.exit_code == 0, done.output
        found = {name for kind, name in objects if kind == "ClusterRole"}
        assert found == {name for kind, name in objects if kind == "ClusterRoleBinding"}
        assert len(found) == 2
        assert not names & found
        names |= found


def test_secrets_are_made_once_and_kept_out_of_version_control(tmp_path):
    first, _, out = rendered(tmp_path)
    tokens = {p: p.read_text() for p in (out / "base" / "secrets").rglob("token")}
    assert len(tokens) == 3
    second, _, _ = rendered(tmp_path)
    assert {p: p.read_text() for p in tokens} == tokens
    assert (out / "base" / ".gitignore").read_text() == "secrets/\n"
    assert first.exit_code == second.exit_code == 0
    kustomization = yaml.safe_load((out / "base" / "kustomization.yaml").read_text())
    for made in kustomization["secretGenerator"]:
        assert all((out / "base" / file).is_file() for file in made["files"])


def test_a_model_on_the_nodes_disks_is_for_dev_alone(tmp_path):
    text = FILE.replace("persistentVolumeClaim: models", "hostPath: /srv/digits")
    found, _, out = rendered(tmp_path, text)
    assert re.search(
        r"left out .*production and .*chart: models.digits.kubernetes.hostPath = /srv/digits: must be image or "
        r"persistentVolumeClaim",
        found.output.replace("\n", " "),
    )
    assert not (out / "overlays" / "production").exists()
    (namespace,) = yaml.safe_load_all((out / "overlays" / "dev" / "namespace.yaml").read_text())
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "hostPath" in namespace["metadata"]["annotations"]["roma.dev/privileged-because"]


def test_no_earlier_chart_stays_beside_what_has_none(tmp_path):
    _, _, out = rendered(tmp_path)
    assert (out / "chart").exists()
    text = FILE.replace("persistentVolumeClaim: models", "hostPath: /srv/digits")
    found, _, _ = rendered(tmp_path, text)
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception) == (
        f"{out / 'overlays' / 'production'}, {out / 'chart'}: of an earlier rendering; must be removed"
    )


def test_the_law_of_throttling_needs_servers_that_report_it():
    text = f"{FILE}control: {{law: captain}}\n"
    schema.parse(text)
    foreign = text.replace("{namespace: models}", "{server: tensorflow_serving}")
    with pytest.raises(ConfigError, match=r"control.law = captain: must be another law where wor"):
        schema.parse(foreign)


@pytest.mark.parametrize("option", ["--image", "--control-image"])
@pytest.mark.parametrize("image", ["", "a b"])
def test_what_is_no_image_is_refused(tmp_path, option, image):
    found, _, out = rendered(tmp_path, FILE, option, image)
    bound = "must be the name of an image, such as roma/control:dev"
    assert str(found.exception) == f"{option} = {image!r}: {bound}"
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{persistentVolumeClaim: models}", "{}", "models.digits.kubernetes.image = None"),
        ("persistentVolumeClaim: models", "image: a, hostPath: /b", "exactly one of image"),
        (
            "    kubernetes: {persistentVolumeClaim: models}\n",
            "",
            "models.digits.kubernetes = None",
        ),
        ("Photos_2", "DIGITS", "different from digits"),
        ("Photos_2", "Photos-", "models.Photos- = Photos-: must end in a letter or digit: it is"),
        ("Claim: models", "Claim: My_PVC", "kubernetes.persistentVolumeClaim = My_PVC: string"),
        ("*pods", "{namespace: other}", "workers.b.kubernetes: must be the same"),
        ("backend: kubernetes, node: node-a", "backend: process", "absent for backend process"),
        ("node: node-a, ", "", "workers.0.node = None: must be the name of a node"),
        ("{namespace: models}", "{selector: 'a in (b)'}", "kubernetes.selector = a in (b)"),
        ("cores: 2,", "cores: 2, gpus: 1,", "gpus = 1: must be 0 for backend kubernetes"),
        (
            "workers:",
            "gateway: {processes: 2}\nworkers:",
            "gateway.processes = 2: must be 1",
        ),
        (
            "workers:",
            "control: {decision_log: log}\nworkers:",
            "control.decision_log: must be absent",
        ),
        ("replicas: 1", "replicas: 3", "models.Photos_2.replicas = 3: must be ≤ 2, the nodes of"),
        ("workers:", "gateway: {keys: k.yaml}\nworkers:", "gateway.keys: must be absent"),
        ("workers:", "gateway: {metrics_port: 9}\nworkers:", "gateway.metrics_port: must be"),
        ("{namespace: models}", "{kubelet_ca: ca}", "workers.kubernetes.kubelet_ca: must be"),
        ("  digits:\n", "  digits:\n    path: models/digits\n", None),
    ],
)
def test_what_cannot_be_rendered_is_refused_in_one_line(tmp_path, old, new, words):
    assert old in FILE
    found, _, _ = rendered(tmp_path, FILE.replace(old, new, 1))
    if words is None:
        assert found.exit_code == 0
        return
    assert found.exit_code != 0
    said = str(found.exception) if isinstance(found.exception, ConfigError) else found.output
    assert words in said
