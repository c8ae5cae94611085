"""The gateway, a StatefulSet so that each dispatcher has a name; two supervisors with a Lease."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from roma.config.schema import Config
from roma.deploy import secrets
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest
from roma.kubernetes.pods import MODEL_LABEL, OWN_ADDRESS

GATEWAY_MEMORY = 2**30
"""Bytes of memory that a gateway may take beside what its clients may fill."""

SUPERVISORS = 2
"""Pods of the supervisor: one controls, the other takes over."""


def programs(config: Config, image: str, pull_policy: str) -> list[Manifest]:
    """Return the workloads and their disruption budgets; `config` is as the pods see it."""
    return [
        _gateway(config, image, pull_policy),
        _supervisor(config, image, pull_policy),
        *_budgets(config),
        common.manifest(
            "Lease",
            "coordination.k8s.io/v1",
            common.supervisor(config),
            common.labels(config, "supervisor"),
        ),
    ]


def _gateway(config: Config, image: str, pull_policy: str) -> Manifest:
    found, name, g = common.labels(config, "gateway"), common.gateway(config), config.gateway
    ports = [("clients", g.port), ("admin", g.admin_port)]
    ports += [] if g.grpc_port is None else [("grpc", g.grpc_port)]
    # With TLS, the clients' port asks for certificates that a probe does not have.
    probed = "admin" if g.tls else "clients"
    pod = _pod(
        config,
        name,
        found,
        secrets.named(config),
        {
            "name": "dispatcher",
            "image": image,
            "imagePullPolicy": pull_policy,
            "args": ["dispatcher", common.CONFIG],
            "ports": [{"name": n, "containerPort": p} for n, p in ports],
            "resources": {
                "requests": {"cpu": "500m", "memory": "256Mi"},
                "limits": {"memory": str(g.limits.buffered_bytes + GATEWAY_MEMORY)},
            },
            # One model without a pod must not take every gateway out of the Service.
            "readinessProbe": _probe("/readyz?any", probed),
            "livenessProbe": {**_probe("/healthz", probed), "failureThreshold": 6},
            "lifecycle": common.pre_stop(),
        },
    )
    pod["terminationGracePeriodSeconds"] = int(common.GRACE + g.drain_timeout + 5)
    return common.manifest(
        "StatefulSet",
        "apps/v1",
        name,
        found,
        spec={
            "serviceName": f"{name}-peers",
            "replicas": len(config.control.dispatchers),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": found},
            "template": {"metadata": {"labels": found}, "spec": pod},
        },
    )


def _supervisor(config: Config, image: str, pull_policy: str) -> Manifest:
    found, name = common.labels(config, "supervisor"), common.supervisor(config)
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    pod = _pod(
        config,
        name,
        found,
        ["exchange", "metrics"],
        {
            "name": "supervisor",
            "image": image,
            "imagePullPolicy": pull_policy,
            "args": ["supervisor", common.CONFIG],
            "env": [{"name": OWN_ADDRESS, "valueFrom": address}],
            "ports": [{"name": "control", "containerPort": common.control_port(config)}],
            "resources": {
                "requests": {"cpu": "200m", "memory": "128Mi"},
                "limits": {"memory": "512Mi"},
            },
            "readinessProbe": _probe("/healthz", "control"),
            "livenessProbe": {**_probe("/healthz", "control"), "failureThreshold": 6},
        },
    )
    return common.manifest(
        "Deployment",
        "apps/v1",
        name,
        found,
        spec={
            "replicas": SUPERVISORS,
            "selector": {"matchLabels": found},
            "template": {"metadata": {"labels": found}, "spec": pod},
        },
    )


def _pod(
    config: Config,
    account: str,
    found: dict[str, str],
    tokens: Collection[str],
    container: Manifest,
) -> dict[str, Any]:
    """Return a pod with the labels `found`, its configuration and only the secrets it needs."""
    scratch, scratch_mount = common.scratch()
    instance = common.slug(config.name)
    return {
        "serviceAccountName": account,
        "securityContext": common.pod_security(),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                # Not of the whole instance: beside a node of many models both would be on another.
                "labelSelector": {"matchLabels": found},
            }
        ],
        "containers": [
            {
                **container,
                "securityContext": common.confined(),
                "volumeMounts": [
                    scratch_mount,
                    {
                        "name": "config",
                        "mountPath": str(Path(common.CONFIG).parent),
                        "readOnly": True,
                    },
                    *(
                        {"name": name, "mountPath": f"{secrets.INSIDE}/{name}", "readOnly": True}
                        for name in tokens
                    ),
                ],
            }
        ],
        "volumes": [
            scratch,
            {"name": "config", "configMap": {"name": instance}},
            *({"name": name, "secret": {"secretName": f"{instance}-{name}"}} for name in tokens),
        ],
    }


def _probe(path: str, port: str) -> Manifest:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 5, "timeoutSeconds": 3}


def _budgets(config: Config) -> list[Manifest]:
    """Return a disruption budget for each program and model: a drain takes one pod at a time."""
    found = [(common.gateway(config), common.labels(config, "gateway"))]
    found.append((common.supervisor(config), common.labels(config, "supervisor")))
    servers = common.labels(config, "model-server")
    found += [(common.server(config, m), servers | {MODEL_LABEL: m}) for m in config.models]
    return [
        common.manifest(
            "PodDisruptionBudget",
            "policy/v1",
            name,
            labels,
            spec={"maxUnavailable": 1, "selector": {"matchLabels": labels}},
        )
        for name, labels in found
    ]
