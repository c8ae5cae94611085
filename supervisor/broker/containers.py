"""Specification of our containers: built from roma.yaml, recognised by its labels. No I/O.

Traps handled here: quotas by period and quota, never `--cpus` (the engine then refuses to change
them); the swap limit equals the memory limit, else half of a leak goes unseen; TensorFlow sizes its
thread pools by CPU affinity, blind to quotas, so they are set; a CPU container sees no GPU.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roma.config.backends.docker import CONTAINER_GRPC_PORT, CONTAINER_PORT
from roma.config.executable import Executable
from roma.config.models import ModelConfig
from roma.config.schema import Config
from roma.config.workers import ServerKind, WorkerConfig
from roma.domain import units
from roma.domain.errors import BrokerRefused, EngineError
from roma.domain.model import Device
from supervisor.executables import Reading

MANAGED, WORKER, EXECUTABLE = "roma.managed", "roma.worker", "roma.executable"
MODEL, SPECIFICATION = "roma.model", "roma.specification"
"""Labels. `roma.managed` is the deployment's name; `roma.specification` shows whether a container
still matches roma.yaml."""

MODELS = "/models"
"""The directory, inside a container, of its models, mounted read-only."""

UNKNOWN = "answered, but not as an engine does"

MOST_PROCESSES = 4096
"""Most processes, threads included: a model server has hundreds."""


DEFAULT_PERIOD = 100_000
"""The kernel's quota period in microseconds, which engines report as 0."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the engine lists it; `id` is the full one, which names its cgroup."""

    executable: str
    id: str
    running: bool


def owned(config: Config, worker: WorkerConfig) -> dict[str, str]:
    """Return the labels that every container of a worker has."""
    return {MANAGED: config.name, WORKER: worker.name}


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Raise EngineError for an answer of another shape than an engine's.

    A proxy may stand in between, or another program.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{UNKNOWN} ({type(error).__name__}: {error})") from error


@_understood()
def listed(summary: Mapping[str, Any]) -> Container:
    """Return a container from the engine's list."""
    return Container(
        summary["Labels"].get(EXECUTABLE, ""), summary["Id"], summary["State"] == "running"
    )


@_understood()
def check(found: Mapping[str, Any], config: Config, worker: WorkerConfig, name: str) -> None:
    """Raise BrokerRefused unless an inspected container is that executable, with a CPU quota."""
    container, labels = found["Name"].lstrip("/"), found["Config"]["Labels"] or {}
    expected = {**owned(config, worker), EXECUTABLE: name}
    for label, value in expected.items():
        if labels.get(label) != value:
            raise BrokerRefused(
                f"container {container}: label {label} = {labels.get(label)}: must be {value}"
            )
    if found["HostConfig"].get("NanoCpus"):
        raise BrokerRefused(
            f"container {container}: made with --cpus (NanoCpus): its quota cannot be changed; "
            "make it with --cpu-period and --cpu-quota, or let `roma up` make it"
        )


@_understood()
def reading(found: Mapping[str, Any], stats: Mapping[str, Any]) -> Reading:
    """Return the engine's reading of a container: the quota it set, and the kernel's counters.

    Raises EngineError for one that does not run: its counters are all 0.
    """
    if not found["State"]["Running"] or found["State"]["Restarting"]:
        raise EngineError(f"container {found['Name'].lstrip('/')}: does not run")
    host, cpu = found["HostConfig"], stats["cpu_stats"]
    quota, period = host["CpuQuota"], host["CpuPeriod"] or DEFAULT_PERIOD
    return Reading(
        cores=units.cores_from_quota(quota, period) if quota > 0 else None,
        usage=units.seconds_from_ns(cpu["cpu_usage"]["total_usage"]),
        periods=cpu["throttling_data"]["periods"],
        throttled=cpu["throttling_data"]["throttled_periods"],
    )


def specification(config: Config, worker: WorkerConfig, executable: Executable) -> dict[str, Any]:
    """Return the body of the engine's create call for one executable."""
    docker = worker.containers
    on_gpu = executable.spec.device is Device.GPU
    models = executable.spec.models
    memory = None if on_gpu else config.models[executable.spec.models[0]].memory
    host: dict[str, Any] = {
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": "rw,nosuid,nodev,noexec,size=64m"},  # noqa: S108 - inside the container
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "PidsLimit": MOST_PROCESSES,
        "Init": True,
        "Mounts": [_mount(name, config.models[name]) for name in models],
        "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
    }
    published = {CONTAINER_PORT: executable.port}
    if executable.grpc is not None:
        published[CONTAINER_GRPC_PORT] = executable.grpc[1]
    if docker.network is not None:
        host["NetworkMode"] = docker.network
    else:
        host["PortBindings"] = {
            f"{inside}/tcp": [{"HostIp": docker.published_on, "HostPort": str(outside)}]
            for inside, outside in published.items()
        }
    if memory is not None:
        host["Memory"] = host["MemorySwap"] = int(memory)
    if docker.cpuset is not None:
        host["CpusetCpus"] = docker.cpuset
    if on_gpu:
        gpu = executable.name.partition("@")[0].removeprefix("gpu")
        request = {"Driver": "nvidia", "DeviceIDs": [gpu], "Capabilities": [["gpu"]]}
        host["DeviceRequests"] = [request]
    body: dict[str, Any] = {
        "Image": docker.gpu_image if on_gpu else docker.image,
        "ExposedPorts": {f"{port}/tcp": {} for port in published},
        "Env": [*_environment(on_gpu=on_gpu), *_models_file(docker.server, models)],
        **_program(config, docker.server, executable),
        "HostConfig": host,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    body["Labels"] = {
        **owned(config, worker),
        EXECUTABLE: executable.name,
        MODEL: ",".join(executable.spec.models),
        SPECIFICATION: digest,
    }
    if not on_gpu:
        # Not in the digest: the supervisor changes it every second.
        period = config.control.cfs_period
        host["CpuPeriod"] = units.period_us(period)
        host["CpuQuota"] = units.quota_us(executable.spec.cores, period)
    return body


def _mount(name: str, model: ModelConfig) -> dict[str, Any]:
    target = {"Target": f"{MODELS}/{name}", "ReadOnly": True}
    if model.volume is not None:
        return {"Type": "volume", "Source": model.volume, **target}
    return {"Type": "bind", "Source": str(model.path), **target}


def _environment(*, on_gpu: bool) -> list[str]:
    quiet = ["TF_CPP_MIN_LOG_LEVEL=2"]
    # With NVIDIA's runtime as the engine's default, every container would see every GPU.
    return quiet if on_gpu else [*quiet, "NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=-1"]


def _program(config: Config, server: ServerKind, executable: Executable) -> dict[str, Any]:
    threads, concurrency = executable.spec.threads, executable.concurrency
    if server is ServerKind.ROMA:
        models = [f"--model={name}={MODELS}/{name}" for name in executable.spec.models]
        listen = ["--host=0.0.0.0", f"--port={CONTAINER_PORT}"]
        if executable.grpc is not None:
            listen.append(f"--grpc-port={CONTAINER_GRPC_PORT}")
        pools = [f"--intra-op={threads}", f"--inter-op={concurrency}"]
        most = f"--max-body-bytes={config.gateway.max_body_bytes}"
        return {"Cmd": ["serve-model", *models, *listen, *pools, most]}
    # The image's own entry point is a shell script for one model; this one takes any number, and
    # works on engines that cannot see this machine's files.
    command = (
        'printf "%s" "$ROMA_MODELS" > /tmp/models.config && exec tensorflow_model_server '
        f"--port={CONTAINER_GRPC_PORT} --rest_api_port={CONTAINER_PORT} "
        "--model_config_file=/tmp/models.config"
    )
    if executable.spec.device is Device.CPU:
        command += (
            f" --tensorflow_intra_op_parallelism={threads}"
            f" --tensorflow_inter_op_parallelism={concurrency}"
        )
    return {"Entrypoint": ["/bin/sh", "-c"], "Cmd": [command]}


def _models_file(server: ServerKind, models: Sequence[str]) -> list[str]:
    """Return TensorFlow Serving's model_config_file (ModelServerConfig) as an environment."""
    if server is not ServerKind.TENSORFLOW_SERVING:
        return []
    configs = [
        f'config {{ name: "{name}" base_path: "{MODELS}/{name}" model_platform: "tensorflow" }}'
        for name in models
    ]
    return ["ROMA_MODELS=model_config_list { " + " ".join(configs) + " }"]
