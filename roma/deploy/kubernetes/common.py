"""Names, labels and settings that all objects of a deployment share."""

import re
from collections.abc import Mapping
from typing import Any, Final

from roma.config.schema import Config
from roma.config.workers import KubernetesConfig
from roma.domain.errors import ConfigError

Manifest = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

CONFIG: Final = "/etc/roma/config/roma.yaml"
"""The file in a directory of its own: nothing can be mounted inside a mounted ConfigMap."""

USER: Final = 10001
"""User of the images (compose/Dockerfile)."""

GRACE: Final = 2
"""Seconds that a pod sleeps before its program is told to end: until then it still gets requests
from those that have not seen yet that it leaves."""


def gateway(config: Config) -> str:
    """Return the name of the gateway's objects."""
    return f"{slug(config.name)}-gateway"


def namespace(config: Config) -> str:
    """Return the namespace that rendering installs into."""
    return settings(config).namespace or slug(config.name)


def page(deployment: str) -> str:
    """Return the name of the Service of a deployment's page and control API."""
    return f"{slug(deployment)}-gateway-page"


def supervisor(config: Config) -> str:
    """Return the name of the supervisor's objects."""
    return f"{slug(config.name)}-supervisor"


def server(config: Config, model: str) -> str:
    """Return the name of a model's Deployment."""
    return f"{slug(config.name)}-model-{slug(model)}"


def slug(name: str) -> str:
    """Return a name as a DNS label allows it."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return found if found[:1].isalpha() else f"m{found}"


def distinct_servers(config: Config) -> None:
    """Raise ConfigError for two models whose objects would have the same name."""
    known: dict[str, str] = {}
    for model in config.models:
        name = server(config, model)
        if name in known:
            bound = f"different from {known[name]} in more than case and punctuation"
            raise ConfigError(f"models.{model}: must be {bound}: both would be Deployment {name}")
        known[name] = model


def labels(config: Config, component: str, **more: str) -> dict[str, str]:
    """Return the recommended labels of an object, which also select its pods."""
    return {
        "app.kubernetes.io/name": "roma",
        "app.kubernetes.io/instance": slug(config.name),
        "app.kubernetes.io/component": component,
        **more,
    }


def settings(config: Config) -> KubernetesConfig:
    """Return the settings of the workers that are nodes: rendered ones have the same."""
    return next((w.pods for w in config.discovered), KubernetesConfig())


def control_port(config: Config) -> int:
    """Return the port of the supervisor: one controls all workers."""
    return config.control_port(config.workers[0])


def manifest(kind: str, version: str, name: str, found: Mapping[str, str], **more: Any) -> Manifest:
    """Return an object with a name and labels; kustomize sets its namespace."""
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": dict(found)},
        **more,
    }


def confined() -> Manifest:
    """Return a container's security context, as the Pod Security Standard `restricted` wants it."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> Manifest:
    """Return a pod's security context, likewise."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def scratch() -> tuple[Manifest, Manifest]:
    """Return volume and mount of a pod's only writable directory."""
    mount = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - inside the container
    return {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}, mount


def pre_stop() -> Manifest:
    """Return the life cycle of a container that gets requests."""
    return {"preStop": {"sleep": {"seconds": GRACE}}}
