"""`roma render compose`: a deployment as a Compose file, from the bodies that `roma up` sends.

Model servers, dispatcher, supervisor and broker are containers in one network. Only the broker
holds the engine's socket. It opens no launcher socket, since Compose creates the containers; their
labels let it change their quotas. Beside the Compose file go: the roma.yaml that the containers
read (the user's, completed with what containers need), the `.env` that users may edit, the files of
Prometheus and Grafana, and the secrets (`roma/deploy/secrets.py`). Each container sees only its
own.
"""

import os
import re
from pathlib import Path
from typing import Any

from roma.config import schema, yaml_file
from roma.config.executable import Executable
from roma.config.models import ModelConfig
from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.config.workers import BackendKind, WorkerConfig
from roma.deploy import monitoring, secrets
from roma.deploy.compose_text import bind, escaped
from roma.deploy.config_snapshot import plain
from roma.domain.errors import ConfigError
from supervisor.broker.containers import specification

CONTROL_USER = 10001
"""User of the control image (compose/Dockerfile)."""

DEPLOYED = "deployed.yaml"
"""Name of the roma.yaml that the containers read."""

SETTINGS = ".env"
"""Name of the file that Compose reads variables from; users edit it, so it is never overwritten."""

_VARIABLES = {
    "ROMA_ADDRESS": "127.0.0.1",
    "ROMA_PORT": "8501",
    "ROMA_PAGE_ADDRESS": "127.0.0.1",
    "ROMA_PAGE_PORT": "8500",
    "ROMA_METRICS_ADDRESS": "127.0.0.1",
    "ROMA_GRPC_PORT": "9000",
    "ROMA_PROMETHEUS_PORT": "9090",
    "ROMA_GRAFANA_PORT": "3000",
    "ROMA_CONTROL_IMAGE": "roma/control:dev",
    "ROMA_PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0",
    "ROMA_GRAFANA_IMAGE": "grafana/grafana:12.1.0",
}

CONFIG = "/etc/roma/roma.yaml"
CGROUP = Path("/sys/fs/cgroup")
HOST_CGROUP = Path("/host/cgroup")
RUN_DIR = Path("/run/roma")
SOCKET = "/var/run/docker.sock"
TMP = "/tmp"  # noqa: S108 - a container's own, and nothing else is writable
ANY = "0.0.0.0"  # noqa: S104 - of a container's own network

HEADER = """\
# Written by `roma render compose {source}`: change that file and render again.
# docker compose {profile}up -d
"""

OTEL = (
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)
"""Variables that the dispatcher gets from Compose's environment when it traces."""

VOLUMES = ("sockets", "metrics", "dashboards")
"""Volumes of the deployment itself, beside those that hold models."""

_CONFINED: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "restart": "unless-stopped",
}


def render(config: Config, source: Path, out: Path) -> dict[str, str]:
    """Return the files to write into `out` by name; raise ConfigError naming a key.

    `source` is the file that `config` was loaded from.
    """
    worker = _renderable(config)
    secrets.refuse(config, source)
    deployed = _deployed(config, worker)
    text = yaml_file.dump(plain(deployed))
    schema.parse(text, source=DEPLOYED)  # containers have a network, and long names may not fit it
    inside = deployed.workers[0]
    services = {
        e.name.partition("@")[0]: _model_server(config, deployed, e, out)
        for e in on_worker(deployed, inside)
    }
    ours = _control(config, deployed, inside) | _monitoring()
    for name in services:
        if name.lower() in ours:  # the engine's DNS ignores case
            raise ConfigError(f"models.{name}: is the name of a service of ROMA's own")
    services |= ours
    document = {
        "services": services,
        "networks": {"models": {"name": inside.containers.network}},
        "volumes": {
            **{name: {} for name in VOLUMES},
            **{m.volume: {"external": True} for m in config.models.values() if m.volume},
        },
    }
    header = HEADER.format(source=source.name, profile="--profile gpu " if worker.gpus else "")
    g = config.gateway
    ports = {"ROMA_PORT": g.port, "ROMA_PAGE_PORT": g.admin_port, "ROMA_GRPC_PORT": g.grpc_port}
    for name in ("ROMA_PROMETHEUS_PORT", "ROMA_GRAFANA_PORT"):
        port = int(_VARIABLES[name])
        while port in ports.values():
            port += 1
        ports[name] = port
    targets = {
        "dispatcher": f"dispatcher:{config.gateway.admin_port}",
        "supervisor": f"supervisor:{config.control.port}",
    }
    return {
        "compose.yaml": header + yaml_file.dump(document),
        DEPLOYED: header + text,
        SETTINGS: "".join(
            f"{name}={value}\n"
            for name, value in (_project(config) | _VARIABLES | ports).items()
            if value is not None
        ),
        **monitoring.files(targets, f"{secrets.PROMETHEUS}/token"),
    }


def _project(config: Config) -> dict[str, str]:
    """Return Compose's name of the deployment: by default it is that of the directory alone.

    Two deployments in directories `compose` would be one. That of the default name is as before.
    """
    if config.name == schema.Config.model_fields["name"].default:
        return {}
    return {"COMPOSE_PROJECT_NAME": re.sub(r"[^a-z0-9_-]", "_", config.name.lower())}


def _renderable(config: Config) -> WorkerConfig:
    worker, *others = config.workers
    if others:
        names = ", ".join(w.name for w in config.workers)
        raise ConfigError(f"workers = {names}: must be one: a Compose file is for one engine")
    if worker.backend is not BackendKind.DOCKER:
        raise ConfigError(f"workers.{worker.name}.backend = {worker.backend}: must be docker")
    _check_engine(worker)
    if config.gateway.processes > 1:
        raise ConfigError(
            f"gateway.processes = {config.gateway.processes}: must be 1: containers share no port"
        )
    g, control = config.gateway, config.control
    for key, value, why in (
        ("gateway.grpc_socket", g.grpc_socket, "clients do not see a container's files"),
        ("gateway.exchange_port", g.exchange_port, "other containers call the admin port"),
        ("gateway.metrics_port", g.metrics_port, "other containers call the admin port"),
        ("gateway.admin_tls", g.admin_tls and g.admin_tls.certificate, "tokens protect it there"),
        ("control.tls", control.tls and control.tls.certificate, "tokens protect it there"),
        ("control.decision_log", control.decision_log, "containers write no files"),
    ):
        if value is not None:
            raise ConfigError(f"{key} = {value}: must be absent: {why}")
    for name, model in config.models.items():
        if model.volume in VOLUMES:
            raise ConfigError(f"models.{name}.volume = {model.volume}: is a volume of ROMA's own")
    return worker


def _check_engine(worker: WorkerConfig) -> None:
    if worker.containers.direct:
        raise ConfigError(f"workers.{worker.name}.docker.direct = true: must be false")
    if worker.containers.remote:
        raise ConfigError(
            f"workers.{worker.name}.docker.host = {worker.containers.host}: must be unix://…: the "
            "broker talks to the engine that runs it; give Compose the other one (docker context)"
        )


def _deployed(config: Config, worker: WorkerConfig) -> Config:
    """Return the configuration as the containers must see it."""
    docker = worker.containers.model_copy(
        update={
            "host": f"unix://{SOCKET}",
            "tls": None,
            "network": worker.containers.network or config.name,
            "run_dir": RUN_DIR,
            "callers": (CONTROL_USER,),
            "cgroup_root": HOST_CGROUP,
        }
    )
    models = {
        name: m if m.path is None else m.model_copy(update={"path": Path("/models") / name})
        for name, m in config.models.items()
    }
    g, port = config.gateway, config.control_port(worker)
    admin, supervisor = f"http://dispatcher:{g.admin_port}", f"http://supervisor:{port}"
    gateway = {"host": ANY, "admin_host": ANY, "supervisors": {worker.name: supervisor}}
    gateway |= secrets.gateway(config)
    return config.model_copy(
        update={
            "models": models,
            "workers": (worker.model_copy(update={"docker": docker}),),
            "gateway": g.model_copy(update=gateway),
            "control": config.control.model_copy(update={"host": ANY, "dispatchers": (admin,)}),
            "tokens": secrets.token_files(),
        }
    )


def _model_server(
    config: Config, deployed: Config, executable: Executable, out: Path
) -> dict[str, Any]:
    """Translate the engine's create call into Compose's keys."""
    inside = deployed.workers[0]
    body = specification(deployed, inside, executable)
    host = body["HostConfig"]
    service: dict[str, Any] = {
        "image": body["Image"],
        "container_name": executable.container,
        "labels": body["Labels"],
        **{word: [escaped(part) for part in body[key]] for key, word in _WORDS if key in body},
        "environment": [escaped(entry) for entry in body["Env"]],
        "volumes": [
            _files(config.models[name], f"/models/{name}", out) for name in executable.spec.models
        ],
        "networks": ["models"],
        "tmpfs": [f"{path}:{options}" for path, options in host["Tmpfs"].items()],
        "init": True,
        "pids_limit": host["PidsLimit"],
        "logging": {"driver": "json-file", "options": host["LogConfig"]["Config"]},
        **_CONFINED,
        **{word: host[key] for key, word in _LIMITS if key in host},
    }
    for request in host.get("DeviceRequests", ()):
        device = {
            "driver": request["Driver"],
            "device_ids": request["DeviceIDs"],
            "capabilities": request["Capabilities"][0],
        }
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        service["profiles"] = ["gpu"]
    return service


_WORDS = (("Entrypoint", "entrypoint"), ("Cmd", "command"))
_LIMITS = (
    ("CpuPeriod", "cpu_period"),
    ("CpuQuota", "cpu_quota"),
    ("CpusetCpus", "cpuset"),
    ("Memory", "mem_limit"),
    ("Memory", "memswap_limit"),
)
"""Keys of the engine, and Compose's for the same."""


def _control(source: Config, config: Config, worker: WorkerConfig) -> dict[str, Any]:
    """Return dispatcher, supervisor and broker; each gets only the files it needs."""
    gateway, control, grpc = config.gateway, config.control, config.gateway.grpc_port
    common: dict[str, Any] = {"image": _variable("ROMA_CONTROL_IMAGE"), **_CONFINED, "tmpfs": [TMP]}
    file, sockets = f"./{DEPLOYED}:{CONFIG}:ro", f"sockets:{RUN_DIR}"
    docker = source.workers[0].containers
    engine = docker.host.removeprefix("unix://")
    groups = escaped(f"{docker.cgroup_root or CGROUP}:{HOST_CGROUP}")
    return {
        "dispatcher": {
            **common,
            "command": ["dispatcher", CONFIG],
            **({"environment": list(OTEL)} if gateway.traces else {}),
            "volumes": [file, *secrets.of_dispatcher(source)],
            "networks": ["models"],
            "ports": [
                _published("ROMA_PORT", gateway.port),
                *([_published("ROMA_GRPC_PORT", grpc)] if grpc is not None else []),
                _published("ROMA_PAGE_PORT", gateway.admin_port, "ROMA_PAGE_ADDRESS"),
            ],
            # With TLS, on the other port of the same event loop, which needs no certificate.
            "healthcheck": _healthcheck(gateway.admin_port if gateway.tls else gateway.port),
            "stop_grace_period": f"{gateway.drain_timeout + 5:g}s",
        },
        "supervisor": {
            **common,
            "command": ["supervisor", CONFIG, "--worker", worker.name],
            "volumes": [
                file,
                sockets,
                f"{groups}:ro",
                *secrets.of_supervisor(),
            ],
            "networks": ["models"],
            "healthcheck": _healthcheck(control.port),
            "depends_on": ["broker", "dispatcher"],
        },
        "broker": {
            **common,
            "command": ["broker", CONFIG, "--worker", worker.name, "--no-launcher"],
            "user": "root",
            "volumes": [
                file,
                sockets,
                bind(engine, SOCKET, read_only=False),
                groups,
            ],
            "network_mode": "none",
        },
    }


def _monitoring() -> dict[str, Any]:
    """Return Prometheus and Grafana: readable by anyone who can reach them, writable by nobody."""
    provisioning = "/etc/grafana/provisioning"
    return {
        "prometheus": {
            "image": _variable("ROMA_PROMETHEUS_IMAGE"),
            **_CONFINED,
            "command": [
                "--config.file=/etc/prometheus/prometheus.yaml",
                "--storage.tsdb.path=/prometheus",
            ],
            "volumes": [
                f"./{monitoring.PROMETHEUS}:/etc/prometheus/prometheus.yaml:ro",
                f"./{monitoring.ALERTS}:/etc/prometheus/{monitoring.ALERTS}:ro",
                "metrics:/prometheus",
                *secrets.of_prometheus(),
            ],
            "networks": ["models"],
            "ports": [_published("ROMA_PROMETHEUS_PORT", 9090, "ROMA_METRICS_ADDRESS")],
            "depends_on": ["dispatcher", "supervisor"],
        },
        "grafana": {
            "image": _variable("ROMA_GRAFANA_IMAGE"),
            **_CONFINED,
            "environment": [
                "GF_AUTH_ANONYMOUS_ENABLED=true",
                "GF_AUTH_DISABLE_LOGIN_FORM=true",
                "GF_ANALYTICS_REPORTING_ENABLED=false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES=false",
                f"GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH={provisioning}/dashboards/roma.json",
            ],
            "volumes": [
                f"./{monitoring.GRAFANA}:{provisioning}:ro",
                "dashboards:/var/lib/grafana",
            ],
            "tmpfs": [TMP],
            "networks": ["models"],
            "ports": [_published("ROMA_GRAFANA_PORT", 3000, "ROMA_METRICS_ADDRESS")],
            "depends_on": ["prometheus"],
        },
    }


def _variable(name: str) -> str:
    return f"${{{name}:-{_VARIABLES[name]}}}"


def _published(variable: str, port: int, address: str = "ROMA_ADDRESS") -> str:
    return f"{_variable(address)}:${{{variable}:-{port}}}:{port}"


def _healthcheck(port: int) -> dict[str, Any]:
    # Past the proxy that Docker's configuration may name in every container.
    look = (
        "import urllib.request as r; r.build_opener(r.ProxyHandler({}))"
        f".open('http://127.0.0.1:{port}/healthz', timeout=2)"
    )
    return {"test": ["CMD", "python3", "-c", look], "interval": "10s", "timeout": "5s"}


def _files(model: ModelConfig, target: str, out: Path) -> str | dict[str, Any]:
    """Return the mount of a model's files, a relative one if they are below the Compose file."""
    if model.volume is not None:
        return f"{model.volume}:{target}:ro"
    assert model.path is not None  # guaranteed by config
    below = Path(os.path.realpath(model.path))
    base = os.path.realpath(out)
    source = f"./{below.relative_to(base)}" if below.is_relative_to(base) else str(below)
    return bind(source, target)
