"""The Helm chart and the monitoring component, as text; tests/system/kubernetes runs helm on them."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema
from roma.deploy.alerts import rules

FILE = """
models:
  digits: {sla: {response_time: 0.1}, kubernetes: {persistentVolumeClaim: models}}
workers:
  - {name: a, backend: kubernetes, node: node-a, cores: 2, kubernetes: {server: tensorflow_serving}}
"""

EXPRESSION = re.compile(r"\{\{-? (.*?) \}\}")


@pytest.fixture
def rendered(tmp_path):
    """Render a file into a directory, and return it."""

    def render(text=FILE, *options):
        (tmp_path / "roma.yaml").write_text(text)
        arguments = ["render", "kubernetes", str(tmp_path / "roma.yaml")]
        done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "k8s"), *options])
        assert done.exit_code == 0, done.output
        return tmp_path / "k8s"

    return render


def objects(*paths):
    return [o for path in paths for o in yaml.safe_load_all(path.read_text()) if o]


def test_the_chart_has_the_objects_of_the_base(rendered):
    out = rendered()
    images = yaml.safe_load((out / "chart/values.yaml").read_text())["images"]
    filled = {
        ".Values.images.control | quote": images["control"],
        ".Values.images.modelServer | quote": images["modelServer"],
        ".Values.images.pullPolicy | quote": images["pullPolicy"],
        ".Release.Namespace | quote": "default",
        'printf "%s-roma-node-metrics" .Release.Namespace | quote': "roma-roma-node-metrics",
    }
    for name in ("models", "control", "rights", "network"):
        text = (out / f"chart/templates/{name}.yaml").read_text()
        text = EXPRESSION.sub(lambda found: json.dumps(filled.get(found[1], "a sum")), text)
        ours = list(yaml.safe_load_all(text))
        for found in ours:
            if "template" in found.get("spec", {}):
                found["spec"]["template"]["metadata"].pop("annotations", None)
        base = objects(out / f"base/{name}.yaml")
        for found in [*ours, *base]:  # which kustomize sets
            for subject in found.get("subjects", ()):
                subject.pop("namespace", None)
        assert ours == base


def test_what_differs_between_releases_is_an_expression(rendered):
    out = rendered(FILE, "--image=a/server:1", "--control-image=a/control:2", "--pull-policy=Never")
    assert yaml.safe_load((out / "chart/values.yaml").read_text()) == {
        "images": {"control": "a/control:2", "modelServer": "a/server:1", "pullPolicy": "Never"},
        "monitoring": {"enabled": False},
        "secrets": {"admin": "", "exchange": "", "metrics": "", "keys": ""},
    }
    found = {
        name: set(EXPRESSION.findall((out / f"chart/templates/{name}.yaml").read_text()))
        for name in ("models", "control", "rights", "network")
    }
    pull = ".Values.images.pullPolicy | quote"
    assert found == {
        "models": {".Values.images.modelServer | quote", pull},
        "control": {
            ".Values.images.control | quote",
            pull,
            '.Files.Get "files/roma.yaml" | sha256sum | quote',
            ".Values.secrets | toJson | sha256sum | quote",
        },
        "rights": {
            ".Release.Namespace | quote",
            'printf "%s-roma-node-metrics" .Release.Namespace | quote',
        },
        "network": set(),
    }


def test_services_are_known_by_their_names_in_the_namespace_of_the_release(rendered):
    out = rendered(f"{FILE}gateway: {{names: [models.example]}}\n")
    template = (out / "chart/templates/config.yaml").read_text()
    replaced = (
        '.Files.Get "files/roma.yaml" | replace "HELM_NAMESPACE" .Release.Namespace | indent 4'
    )
    assert replaced in EXPRESSION.findall(template)
    text = (out / "chart/files/roma.yaml").read_text().replace("HELM_NAMESPACE", "prod")
    gateway = schema.parse(text).gateway
    assert {"roma-gateway-page", "roma-gateway-page.prod.svc"} <= {*gateway.admin_names}
    assert {"models.example", "roma-gateway.prod"} <= {*gateway.names}
    base = schema.load(out / "base/roma.yaml").gateway
    assert text.replace(".prod", ".roma") == (out / "base/roma.yaml").read_text()
    assert "roma-gateway-page.roma.svc" in base.admin_names


def test_an_image_of_the_models_own_is_no_value(rendered):
    out = rendered(FILE.replace("persistentVolumeClaim: models", "image: 'shop/digits:3'"))
    assert "image: shop/digits:3" in (out / "chart/templates/models.yaml").read_text()


def test_the_secrets_are_values_for_their_owner_alone(rendered):
    out = rendered()
    file = out / "base/secrets/chart-values.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    found = yaml.safe_load(file.read_text())["secrets"]
    assert set(found) == {"admin", "exchange", "metrics", "keys"}
    assert found["admin"] == (out / "base/secrets/admin/token").read_text()
    rendered()  # again: secrets are kept
    assert yaml.safe_load(file.read_text())["secrets"] == found


def test_the_command_names_every_file_that_it_wrote(tmp_path):
    (tmp_path / "roma.yaml").write_text(FILE)
    out = tmp_path / "k8s"
    command = ["render", "kubernetes", str(tmp_path / "roma.yaml"), "--out", str(out)]
    told = CliRunner().invoke(app, command).output.splitlines()
    written = [f"wrote {path}" for path in out.rglob("*") if path.is_file()]
    assert sorted(told) == sorted(written)


def test_keys_that_people_edit_may_have_names_of_any_language(rendered):
    keys = rendered() / "base/secrets/keys/keys.yaml"
    keys.write_text("# Zoë's\n" + keys.read_text(), encoding="utf-8")
    values = yaml.safe_load((rendered() / "base/secrets/chart-values.yaml").read_text())
    assert values["secrets"]["keys"].startswith("# Zoë's\n")


def test_a_file_that_production_refuses_has_no_chart(rendered):
    out = rendered(FILE.replace("persistentVolumeClaim: models", "hostPath: /srv/m"))
    assert not (out / "chart").exists()


def test_braces_of_ours_are_text(rendered):
    """Prometheus' templates are in braces, too."""
    text = (rendered() / "chart/templates/monitoring.yaml").read_text()
    assert '{{ "{{" }} $labels.model }}' in text
    assert "{{ $labels" not in text


def test_monitoring_has_the_jobs_that_the_alerts_know_and_a_data_source_to_choose(rendered):
    monitor, alerts, board = objects(rendered() / "components/monitoring/monitoring.yaml")
    jobs = {e["relabelings"][0]["replacement"] for e in monitor["spec"]["podMetricsEndpoints"]}
    known = set(re.findall(r'job="(\w+)"', json.dumps(rules()).replace('\\"', '"')))
    assert jobs == known
    assert alerts["spec"] == rules()
    text = board["data"]["roma.json"]
    assert json.loads(text)["templating"]["list"][0]["name"] == "datasource"
    assert '"uid": "roma"' in text  # its own
    assert text.count('"uid": "roma"') == 1
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_nothing_of_it_is_applied_unless_asked_for(rendered):
    out = rendered()
    for kustomization in ("base", "overlays/dev", "overlays/production"):
        assert "components" not in (out / kustomization / "kustomization.yaml").read_text()
