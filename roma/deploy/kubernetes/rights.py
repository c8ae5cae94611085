"""Service accounts and their rights: each verb where it is used, by name where possible."""

from roma.config.schema import Config
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest

_GROUP = "rbac.authorization.k8s.io"


def rights(config: Config) -> list[Manifest]:
    """Return accounts, roles and bindings: the gateway sees pods, the supervisor resizes them."""
    look = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    resize = {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]}
    lease = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [common.supervisor(config)],
        "verbs": ["get", "update"],
    }
    return [
        *_account(config, "gateway", common.gateway(config), [look]),
        *_account(config, "supervisor", common.supervisor(config), [look, resize, lease]),
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
