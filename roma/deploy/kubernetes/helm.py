"""A Helm chart of the same objects: what differs between releases is a value of the chart.

chart/Chart.yaml, values.yaml     images, and whether Prometheus' operator is there
chart/templates/*.yaml            the objects of kustomize's base
chart/files/roma.yaml             the file that the pods read
base/secrets/chart-values.yaml    the secrets, to be given to `helm install --values`
"""

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import yaml

from roma.config import yaml_file
from roma.config.schema import Config
from roma.deploy import secrets
from roma.deploy.config_snapshot import plain
from roma.deploy.kubernetes import common, control, monitoring, network, pods, rights
from roma.deploy.kubernetes.common import Manifest
from roma.domain.errors import ConfigError

FOLDER: Final = "chart"
VALUES: Final = "chart-values.yaml"

_FILE: Final = "files/roma.yaml"

# Plain words of YAML, in no name or image: each stands for an expression until the text is written.
_CONTROL_IMAGE: Final = "HELM_CONTROL_IMAGE"
_SERVER_IMAGE: Final = "HELM_SERVER_IMAGE"
_PULL_POLICY: Final = "HELM_PULL_POLICY"
NAMESPACE: Final = "HELM_NAMESPACE"
"""Stands for the namespace that a chart is installed into, in the pods' file as well."""

_PREFIX: Final = "HELM_PREFIX"
_CONFIG_SUM: Final = "HELM_CONFIG_SUM"
_SECRETS_SUM: Final = "HELM_SECRETS_SUM"

_EXPRESSIONS: Final = {
    _CONTROL_IMAGE: ".Values.images.control | quote",
    _SERVER_IMAGE: ".Values.images.modelServer | quote",
    _PULL_POLICY: ".Values.images.pullPolicy | quote",
    NAMESPACE: ".Release.Namespace | quote",
    _CONFIG_SUM: f'.Files.Get "{_FILE}" | sha256sum | quote',
    _SECRETS_SUM: ".Values.secrets | toJson | sha256sum | quote",
}


def chart(config: Config, header: str, control_image: str, image: str, pull: str) -> dict[str, str]:
    """Return the chart's files by name; `config` is as the pods see it."""
    name, version = common.slug(config.name), metadata.version("roma-control-plane")
    described = {
        "apiVersion": "v2",
        "name": name,
        "description": "Models whose response-time promises ROMA keeps.",
        "type": "application",
        "version": version,
        "appVersion": version,
    }
    values = {
        "images": {"control": control_image, "modelServer": image, "pullPolicy": pull},
        "monitoring": {"enabled": False},
        "secrets": dict.fromkeys(secrets.named(config), ""),
    }
    programs = control.programs(config, _CONTROL_IMAGE, _PULL_POLICY)
    templates = {
        "models": _template(pods.deployments(config, _SERVER_IMAGE, _PULL_POLICY)),
        "control": _template([_with_checksums(found) for found in programs]),
        "rights": _template(
            [_in_release_namespace(found) for found in rights.rights(config, _PREFIX)]
        ),
        "network": _template([*network.services(config), *network.policies(config)]),
        "config": _config(name, secrets.named(config)),
        "monitoring": "{{- if .Values.monitoring.enabled }}\n"
        f"{_template(monitoring.objects(config))}{{{{- end }}}}\n",
    }
    files = {f"templates/{part}.yaml": text for part, text in templates.items()}
    files["Chart.yaml"] = header + yaml_file.dump(described)
    files["values.yaml"] = header + yaml_file.dump(values)
    files[_FILE] = header + yaml_file.dump(plain(config))
    return {f"{FOLDER}/{path}": text for path, text in files.items()}


def values(folder: Path) -> str:
    """Return the values with the secrets of a folder; raise ConfigError if one is no text."""
    found = {}
    for file in sorted(folder.glob("*/*")):
        if file.name in ("token", "keys.yaml"):
            try:
                found[file.parent.name] = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(f"{file}: must be UTF-8: {error}") from error
    return yaml.safe_dump({"secrets": found}, sort_keys=False)


def _with_checksums(found: Manifest) -> Manifest:
    """Return a workload whose pods are replaced when the file or a secret changes."""
    if "template" in found.get("spec", {}):
        sums = {"checksum/config": _CONFIG_SUM, "checksum/secrets": _SECRETS_SUM}
        found["spec"]["template"]["metadata"]["annotations"] = sums
    return found


def _in_release_namespace(found: Manifest) -> Manifest:
    """Return a binding whose accounts are in the release's namespace."""
    for subject in found.get("subjects", ()):
        subject["namespace"] = NAMESPACE
    return found


def _template(objects: list[Manifest]) -> str:
    """Return objects as a template: braces of ours are text, and the words are expressions."""
    text = "---\n".join(yaml_file.dump(found) for found in objects)
    text = text.replace("{{", '{{ "{{" }}')
    named = r'{{ printf "%s-\1" .Release.Namespace | quote }}'
    text = re.sub(rf"{_PREFIX}-([a-z0-9-]+)", named, text)
    for word, expression in _EXPRESSIONS.items():
        text = text.replace(word, f"{{{{ {expression} }}}}")
    return text


def _config(name: str, named: Mapping[str, str]) -> str:
    """Return the template of the ConfigMap with roma.yaml, and of the Secrets."""
    documents = [
        f"""apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  roma.yaml: |
{{{{ .Files.Get "{_FILE}" | replace "{NAMESPACE}" .Release.Namespace | indent 4 }}}}
"""
    ]
    for entry, file in named.items():
        missing = f"secrets.{entry}: give --values base/secrets/{VALUES}"
        documents.append(
            f"""apiVersion: v1
kind: Secret
metadata:
  name: {name}-{entry}
stringData:
  {file}: {{{{ required "{missing}" .Values.secrets.{entry} | quote }}}}
"""
        )
    return "---\n".join(documents)
