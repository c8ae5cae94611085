"""Service accounts and their rights: each verb where it is used, by name where possible."""

from roma.config.schema import Config
from roma.config.workers import ServerKind
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest

_GROUP = "rbac.authorization.k8s.io"


def rights(config: Config) -> list[Manifest]:
    """Return accounts, roles and bindings: the gateway sees pods, the supervisor resizes them."""
    look = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    resize = {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]}
    bounds = {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list"]}
    lease = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [common.supervisor(config)],
        "verbs": ["get", "update"],
    }
    found = [
        *_account(config, "gateway", common.gateway(config), [look]),
        *_account(config, "supervisor", common.supervisor(config), [look, resize, bounds, lease]),
    ]
    if common.settings(config).server is not ServerKind.ROMA:
        found += _node_metrics(config)
    return found


def _node_metrics(config: Config) -> list[Manifest]:
    """Return the one right beyond the namespace: to read the CPU use that kubelets report."""
    labels, name = common.labels(config, "supervisor"), common.supervisor(config)
    rule = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    role = f"{common.slug(config.name)}-node-metrics"
    return [
        common.manifest("ClusterRole", f"{_GROUP}/v1", role, labels, rules=[rule]),
        common.manifest(
            "ClusterRoleBinding",
            f"{_GROUP}/v1",
            role,
            labels,
            roleRef={"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        ),
    ]


def _account(config: Config, component: str, name: str, rules: list[Manifest]) -> list[Manifest]:
    found = common.labels(config, component)
    return [
        common.manifest("ServiceAccount", "v1", name, found),
        common.manifest("Role", f"{_GROUP}/v1", name, found, rules=rules),
        common.manifest(
            "RoleBinding",
            f"{_GROUP}/v1",
            name,
            found,
            roleRef={"apiGroup": _GROUP, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name}],
        ),
    ]
