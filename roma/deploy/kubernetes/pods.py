"""The Deployments of the models: requests are floors that never move, limits are grants."""

from typing import Any

from roma.config.models import ModelConfig, PodsConfig
from roma.config.schema import Config
from roma.config.workers import ServerKind, WorkerConfig
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest
from roma.domain.errors import ConfigError
from roma.kubernetes.pods import MODEL_LABEL
from roma.kubernetes.quantity import quantity

MODELS = "/models"
GRPC_PORT = 8500
"""Port of gRPC that tensorflow_model_server opens in any case."""

START_LIMIT = 600
"""Seconds that a model server may take to listen: loading a framework with little CPU is slow."""


def deployments(config: Config, image: str, pull_policy: str) -> list[Manifest]:
    """Return a Deployment for each model; raise ConfigError for one without files.

    `config` is as the pods see it: its `gateway.host` is every address of theirs.
    """
    common.distinct_servers(config)
    return [
        _deployment(config, name, model, image, pull_policy)
        for name, model in config.models.items()
    ]


def _deployment(
    config: Config, name: str, model: ModelConfig, image: str, pull_policy: str
) -> Manifest:
    if model.kubernetes is None:
        bound = "set: image, persistentVolumeClaim or hostPath"
        raise ConfigError(f"models.{name}.kubernetes = None: must be {bound}")
    found = common.labels(config, "model-server")
    selected = found | {MODEL_LABEL: name}
    scratch, scratch_mount = common.scratch()
    volumes, mounts = _files(name, model.kubernetes)
    settings, grpc = common.settings(config), common.settings(config).grpc_port
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "securityContext": common.pod_security(),
        "terminationGracePeriodSeconds": int(common.GRACE + config.gateway.drain_timeout + 5),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [_nodes(worker) for worker in config.workers]
                }
            },
            # A replica that needs more gets more cores, not a second pod beside it (paper §2.2).
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": selected},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            },
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": found},
            }
        ],
        "containers": [
            {
                "name": settings.container,
                "image": model.kubernetes.image or image,
                "imagePullPolicy": pull_policy,
                **_program(config, name, model),
                "env": [{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"}],
                "ports": [
                    {"name": "rest", "containerPort": settings.port},
                    *([{"name": "grpc", "containerPort": grpc}] if grpc is not None else []),
                ],
                "resources": _resources(config, name, model),
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                **_probes(config, name),
                "lifecycle": common.pre_stop(),
                "securityContext": common.confined(),
                "volumeMounts": [scratch_mount, *mounts],
            }
        ],
        "volumes": [scratch, *volumes],
    }
    return common.manifest(
        "Deployment",
        "apps/v1",
        common.server(config, name),
        selected,
        spec={
            **_replicas(config, model),
            "selector": {"matchLabels": selected},
            # Two pods of a model do not fit one node: the old one goes first.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "template": {
                "metadata": {"labels": selected | _managed(config)},
                "spec": pod,
            },
        },
    )


def _replicas(config: Config, model: ModelConfig) -> Manifest:
    """Return the number of pods; none where the file has none, since an autoscaler's would go.

    The API server's default is one.
    """
    count = model.replicas or len(config.workers)
    return {} if model.replicas is None and count == 1 else {"replicas": count}


def _nodes(worker: WorkerConfig) -> Manifest:
    """Return the term of a node affinity that matches a worker's nodes."""
    if worker.nodeSelector is None:
        named = {"key": "metadata.name", "operator": "In", "values": [worker.node]}
        return {"matchFields": [named]}
    labels = worker.nodeSelector.items()
    return {"matchExpressions": [{"key": k, "operator": "In", "values": [v]} for k, v in labels]}


def _managed(config: Config) -> dict[str, str]:
    """Return the labels that the workers' selector asks for; raise ConfigError if it asks more."""
    selector = common.settings(config).selector
    found = {}
    for part in selector.split(","):
        key, separator, value = part.partition("=")
        if not separator or key.endswith("!") or value.startswith("=") or "(" in part:
            bound = "KEY=VALUE,… to be rendered as labels"
            raise ConfigError(f"workers.kubernetes.selector = {selector}: must be {bound}")
        found[key.strip()] = value.strip()
    return found


def _files(name: str, pods: PodsConfig) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of a model's files, and their mounts."""
    if pods.image is not None:
        return [], []
    if pods.persistentVolumeClaim is not None:
        source: Manifest = {
            "persistentVolumeClaim": {"claimName": pods.persistentVolumeClaim, "readOnly": True}
        }
    else:
        source = {"hostPath": {"path": pods.hostPath, "type": "Directory"}}
    mount = {"name": "model", "mountPath": f"{MODELS}/{name}", "readOnly": True}
    return [{"name": "model", **source}], [mount]


def _program(config: Config, name: str, model: ModelConfig) -> Manifest:
    """Return the command line of a model server; a pool of threads is as large as its limit."""
    settings, threads = common.settings(config), model.cpu.threads
    pool = model.cpu.in_flight or max(1, -(-_limit(config, model) // (1000 * threads)))
    if settings.server is ServerKind.TENSORFLOW_SERVING:
        found = [
            f"--model_name={name}",
            f"--model_base_path={MODELS}/{name}",
            f"--rest_api_port={settings.port}",
            f"--port={settings.grpc_port or GRPC_PORT}",
            f"--tensorflow_intra_op_parallelism={threads}",
            f"--tensorflow_inter_op_parallelism={pool}",
        ]
        return {"command": ["tensorflow_model_server"], "args": found}
    found = [
        "serve-model",
        f"--model={name}={MODELS}/{name}",
        f"--host={config.gateway.host}",
        f"--port={settings.port}",
        f"--intra-op={threads}",
        f"--inter-op={pool}",
        f"--max-body-bytes={config.gateway.max_body_bytes}",
    ]
    if settings.grpc_port is not None:
        found.append(f"--grpc-port={settings.grpc_port}")
    return {"args": found}


def _resources(config: Config, name: str, model: ModelConfig) -> Manifest:
    """Return a request that protects the minimum, and the limit with which a pod begins.

    They differ: a pod whose requests equal its limits is Guaranteed, and its limits cannot move.
    """
    request = round(1000 * config.minimum(name))
    initial = model.cpu.initial
    limit = round(1000 * initial) if initial else _limit(config, model)
    requests = {"cpu": quantity(request)}
    limits = {"cpu": quantity(max(limit, request + 1))}
    if model.memory is not None:
        requests["memory"] = limits["memory"] = str(int(model.memory))
    return {"requests": requests, "limits": limits}


def _limit(config: Config, model: ModelConfig) -> int:
    """Return the most millicores that a pod of the model can get."""
    most = min(worker.allocatable for worker in config.workers)
    return round(1000 * (most if model.cpu.max is None else min(model.cpu.max, most)))


def _probes(config: Config, name: str) -> Manifest:
    """Return probes that a server with little CPU passes: it answers late, not never."""
    is_ours = common.settings(config).server is ServerKind.ROMA
    path = f"/v2/models/{name}/ready" if is_ours else f"/v1/models/{name}"
    ready = {"httpGet": {"path": path, "port": "rest"}, "timeoutSeconds": 5}
    alive = {"tcpSocket": {"port": "rest"}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": START_LIMIT // 2},
        "readinessProbe": {**ready, "periodSeconds": 2, "failureThreshold": 5},
        "livenessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 6},
    }
