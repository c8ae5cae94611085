"""Services, and NetworkPolicies by which each port is reached only by those who use it."""

from typing import Any

from roma.config.schema import Config
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest


def services(config: Config) -> list[Manifest]:
    """Return the clients' Service, the names of the dispatchers, and the supervisor's Service."""
    g, name = config.gateway, common.gateway(config)
    found, control = common.labels(config, "gateway"), common.labels(config, "supervisor")
    clients = [("clients", g.port), *([] if g.grpc_port is None else [("grpc", g.grpc_port)])]
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
    return [
        _service(name, found, clients),
        _service(f"{name}-peers", found, [("admin", g.admin_port)], **headless),
        _service(common.page(config.name), found, [("admin", g.admin_port)]),
        _service(common.supervisor(config), control, [("control", common.control_port(config))]),
    ]


def policies(config: Config) -> list[Manifest]:
    """Return the policies: what nothing permits is refused."""
    g = config.gateway
    gateway, control = common.labels(config, "gateway"), common.labels(config, "supervisor")
    servers = common.labels(config, "model-server")
    settings = common.settings(config)
    open_ = [g.port, *([] if g.grpc_port is None else [g.grpc_port])]
    served = [settings.port, *([] if settings.grpc_port is None else [settings.grpc_port])]
    monitoring = {"namespaceSelector": {"matchLabels": {"roma.dev/monitoring": "true"}}}
    return [
        _policy(
            common.gateway(config),
            gateway,
            [
                {"ports": _ports(open_)},
                {"from": [_pods(control), monitoring], "ports": _ports([g.admin_port])},
            ],
        ),
        _policy(
            common.supervisor(config),
            control,
            [
                {
                    "from": [_pods(gateway), monitoring],
                    "ports": _ports([common.control_port(config)]),
                }
            ],
        ),
        _policy(
            f"{common.slug(config.name)}-model-servers",
            servers,
            [{"from": [_pods(gateway), _pods(control)], "ports": _ports(served)}],
        ),
    ]


def _service(
    name: str, found: dict[str, str], ports: list[tuple[str, int]], **more: Any
) -> Manifest:
    listed = [{"name": n, "port": port, "targetPort": n} for n, port in ports]
    spec = {"selector": found, "ports": listed, **more}
    return common.manifest("Service", "v1", name, found, spec=spec)


def _policy(name: str, found: dict[str, str], ingress: list[Manifest]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": found},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return common.manifest("NetworkPolicy", "networking.k8s.io/v1", name, found, spec=spec)


def _pods(found: dict[str, str]) -> Manifest:
    return {"podSelector": {"matchLabels": found}}


def _ports(numbers: list[int]) -> list[Manifest]:
    return [{"port": number} for number in numbers]
