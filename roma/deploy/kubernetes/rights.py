"""Service accounts and their rights: each verb where it is used, by name where possible."""

from roma.config.schema import Config
from roma.config.workers import ServerKind
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest

_GROUP = "rbac.authorization.k8s.io"


def rights(config: Config, namespace: str) -> list[Manifest]:
    """Return accounts, roles and bindings: the gateway sees pods, the supervisor resizes them.

    Rights beyond the namespace have its name in theirs: another deployment of the same name must
    not take them over.
    """
    look = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    resize = {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]}
    bounds = {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list"]}
    lease = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [common.supervisor(config)],
        "verbs": ["get", "update"],
    }
    # No right to create can name an object: it is for a Lease that was deleted.
    restore = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["create"],
    }
    supervise = [look, resize, bounds, lease, restore]
    found = [
        *_account(config, "gateway", common.gateway(config), [look]),
        *_account(config, "supervisor", common.supervisor(config), supervise),
    ]
    accounts = [common.gateway(config), common.supervisor(config)]
    if any(worker.is_pool for worker in config.workers):
        nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
        role = f"{namespace}-{common.slug(config.name)}-nodes"
        found += _cluster_role(config, role, nodes, accounts)
    if common.settings(config).server is not ServerKind.ROMA:
        use = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
        role = f"{namespace}-{common.slug(config.name)}-node-metrics"
        found += _cluster_role(config, role, use, [common.supervisor(config)])
    return found


def _cluster_role(config: Config, role: str, rule: Manifest, accounts: list[str]) -> list[Manifest]:
    """Return a right beyond the namespace, since nodes are in none."""
    labels = common.labels(config, "supervisor")
    return [
        common.manifest("ClusterRole", f"{_GROUP}/v1", role, labels, rules=[rule]),
        common.manifest(
            "ClusterRoleBinding",
            f"{_GROUP}/v1",
            role,
            labels,
            roleRef={"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
            subjects=[
                {"kind": "ServiceAccount", "name": account, "namespace": "default"}
                for account in accounts
            ],
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
