"""The `workers` section of roma.yaml: hosts and the backends that run model servers there.

Times are seconds, CPU is cores.
"""

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain.model import Device

Seconds = Annotated[float, Field(ge=0.001, le=3600, allow_inf_nan=False)]
ControlPeriod = Annotated[float, Field(ge=0.1, le=2)]
Cores = Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
UNIX: Final = "unix://"
"""Prefix of the address of a Unix socket, as Docker writes it; the absolute path follows."""


def _check_port(address: str) -> str:
    port = address.rpartition(":")[2]
    if not address.startswith(UNIX) and port.isdigit() and not 1 <= int(port) <= 65535:
        raise PydanticCustomError("form", "must be at a port from 1 to 65535")
    return address


AT_A_PORT: Final = AfterValidator(_check_port)
"""Refuses a port that does not exist: patterns count its digits alone."""

# No resolver takes an empty part of a name or a longer one; Python's raises what no program expects
# of an address.
_PART: Final = r"[A-Za-z0-9_-]{1,63}"
_NAME: Final = rf"[A-Za-z0-9_][A-Za-z0-9_-]{{0,62}}(\.{_PART})*\.?"
_IPV6: Final = r"[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*"
Host = Annotated[str, Field(pattern=rf"^({_NAME}|{_IPV6})$", max_length=253)]
HOST_NAME: Final = rf"{_PART}(\.{_PART})*"
HOST_PORT: Final = rf"{HOST_NAME}:[0-9]{{1,5}}"
Url = Annotated[str, Field(pattern=rf"^(http://{HOST_PORT}|unix:///[^\s\x00-\x1f]+)$"), AT_A_PORT]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\s\x00-\x1f]*$")]
GroupPath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.:@-]*(/[A-Za-z0-9_][\w.:@-]*)*$")]
EngineUrl = Annotated[
    str,
    Field(
        pattern=rf"^(unix:///[^\s]+|tcp://{HOST_PORT}"
        r"|ssh://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?)$"
    ),
    AT_A_PORT,
]
Image = Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9._/:@-]{0,254}$")]
CpuSet = Annotated[str, Field(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$")]
Address = Annotated[str, Field(pattern=rf"^{HOST_PORT}$"), AT_A_PORT]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
NodeName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_SUBDOMAIN: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
ObjectName = Annotated[str, Field(pattern=rf"^{_SUBDOMAIN}$", max_length=253)]
LabelKey = Annotated[str, Field(pattern=rf"^({_SUBDOMAIN}/)?{_LABEL}$", max_length=317)]
LabelValue = Annotated[str, Field(pattern=rf"^({_LABEL})?$")]
Selector = Annotated[str, Field(pattern=r"^[A-Za-z0-9!][A-Za-z0-9._/=!,() -]{0,1000}$")]

_KEY: Final = rf"({_SUBDOMAIN}/)?{_LABEL}"
_VALUE: Final = rf"({_LABEL})?"
_REQUIREMENT: Final = re.compile(
    rf"! *{_KEY}|{_KEY}( *(==?|!=) *{_VALUE}| +(in|notin) *\( *{_VALUE}( *, *{_VALUE})* *\))?"
)
"""A requirement of a label selector; commas separate them (Kubernetes, "Labels and Selectors")."""

_LONGEST: Final = 107
"""Most bytes of a socket's path that the kernel accepts (unix(7), `sun_path`)."""


def check_socket(key: str, address: str) -> None:
    """Raise Fault for the address of a Unix socket whose path is too long."""
    length = len(os.fsencode(address.removeprefix(UNIX)))
    if length > _LONGEST:
        raise Fault(
            key, address, f"a path of ≤ {_LONGEST} bytes, the kernel's bound (it has {length})"
        )


class BackendKind(StrEnum):
    """Kind of the backend that runs the model servers of a worker: see `roma.config.backends`."""

    PROCESS = "process"
    """`roma up`: one local process per model, in its own cgroup."""
    DOCKER = "docker"
    """The Docker engine: one container per model, and one per GPU with all models."""
    STATIC = "static"
    """Started outside ROMA; roma.yaml lists their addresses."""
    KUBERNETES = "kubernetes"
    """Pods of one node of a cluster, found by their labels as they come and go."""


class ExecutableConfig(Section):
    """A model server started outside ROMA (backend `static`)."""

    name: Name | None = None
    """Its name in metrics and decisions, before `@` and the worker's; default: MODEL.N or gpuN."""
    url: Url | None = None
    """Its TensorFlow Serving REST address, http://host:port, or unix:///path on this machine."""
    actions: Address | None = None
    """Instead of `url`, the address of a `roma device`, host:port: a planned device, a GPU that
    works only for this gateway (scheduling.gpu `clockwork`)."""
    token: FilePath | None = None
    """File with the secret that this device requires, relative to roma.yaml; default: none."""
    grpc: Address | None = None
    """Its gRPC address, host:port, for clients of gateway.grpc_port; default: none."""
    device: Device = Device.CPU
    model: str | None = None
    """The model it serves; unset for a GPU, which serves all models."""
    cgroup: GroupPath | None = None
    """Its cgroup, below the cgroup mount; without it its cores cannot be controlled."""

    @model_validator(mode="after")
    def _check(self) -> "ExecutableConfig":
        if self.url is not None and self.url.startswith(UNIX):
            check_socket("url", self.url)
        if self.actions is not None:
            self._check_planned(self.actions)
        elif self.url is None:
            raise Fault("url", None, "set, or actions for a planned GPU")
        elif self.token is not None:
            raise Fault("token", str(self.token), "absent without actions")
        if (self.model is None) != (self.device is Device.GPU):
            raise Fault("model", self.model, "set for device cpu, absent for device gpu")
        return self

    def _check_planned(self, actions: str) -> None:
        if self.url is not None:
            raise Fault("actions", actions, f"absent where url is set ({self.url})")
        if self.device is not Device.GPU:
            raise Fault("device", self.device.value, "gpu where actions is set")
        for key in ("grpc", "cgroup"):
            value = getattr(self, key)
            if value is not None:
                raise Fault(key, value, "absent where actions is set")


class ServerKind(StrEnum):
    """Program that a model server's image runs, which determines its arguments."""

    TENSORFLOW_SERVING = "tensorflow_serving"
    ROMA = "roma"
    """`roma serve-model`, the embedded server."""


class DockerConfig(Section):
    """Docker settings of a worker of backend `docker`."""

    host: EngineUrl = "unix:///var/run/docker.sock"
    """The engine: unix:///path, tcp://host:port (needs `tls`) or ssh://[user@]host[:port]."""
    tls: FilePath | None = None
    """Directory with ca.pem, cert.pem and key.pem for a tcp engine, relative to roma.yaml."""
    server: ServerKind = ServerKind.TENSORFLOW_SERVING
    image: Image = "tensorflow/serving:2.19.1"
    """Image of the CPU containers."""
    gpu_image: Image = "tensorflow/serving:2.19.1-gpu"
    """Image of the GPU containers."""
    network: Name | None = None
    """Docker network of the containers, which are then called by name; default: none, and their
    ports are published on `address`."""
    address: Host | None = None
    """Address of the engine's host on which ports are published and called; default: 127.0.0.1,
    required for engines on other hosts."""
    cpuset: CpuSet | None = None
    """CPUs of the worker's model pool, e.g. 0-5: TensorFlow sizes its thread pools by them."""
    run_dir: FilePath = Path("/run/roma")
    """Directory of the broker's sockets."""
    callers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """User ids that may call the broker, besides its own."""
    direct: bool = False
    """Give the supervisor the engine's socket instead of a broker. Access to the socket is
    equivalent to root on the host."""
    lease: Annotated[float, Field(ge=1.5, le=60)] = 3.0
    """Seconds of a supervisor's silence after which the broker grants safe shares."""
    cgroup_root: FilePath | None = None
    """Mount point of the host's cgroup file system, if it differs from this process's own."""

    @model_validator(mode="after")
    def _check(self) -> "DockerConfig":
        if (self.tls is None) == self.host.startswith("tcp://"):
            raise Fault("tls", f"{self.tls}", "set for a tcp:// host, and only for one")
        if self.remote and self.network is None and self.address is None:
            raise Fault(
                "address", "absent", "set for a tcp:// or ssh:// host: one that we can call"
            )
        return self

    @property
    def published_on(self) -> str:
        """`address` with its default filled in."""
        return self.address or "127.0.0.1"

    @property
    def remote(self) -> bool:
        """True if the engine may be on another host, whose files are not accessible here."""
        return not self.host.startswith("unix://")


class KubernetesConfig(Section):
    """Kubernetes settings of a worker of backend `kubernetes`."""

    namespace: DnsLabel | None = None
    """Namespace of the pods; default: that of the credentials."""
    selector: Selector = "roma.dev/managed=true"
    """Label selector of the pods; the label `roma.dev/model` of each names its model."""
    container: DnsLabel = "model-server"
    """Container, of each pod, whose CPU limit is changed."""
    server: ServerKind = ServerKind.ROMA
    """Program in the pods. ROMA's reports the CPU accounting of its cgroup; for others the node's
    kubelet is asked, which knows their use but not their throttling."""
    port: Port = 8501
    """Port of TensorFlow Serving's REST API in each pod."""
    kubelet_port: Port = 10250
    """Port of the nodes' kubelets."""
    kubelet_ca: FilePath | None = None
    """PEM with the authority of the kubelets' certificates, relative to roma.yaml; default: the
    cluster's."""
    grpc_port: Port | None = None
    """Port of gRPC in each pod, for clients of gateway.grpc_port; default: none."""
    kubeconfig: FilePath | None = None
    """Kubeconfig with the API server's address and credentials, relative to roma.yaml; default:
    those of the pod in which ROMA runs, else $KUBECONFIG or ~/.kube/config."""
    context: str | None = None
    """Context of the kubeconfig; default: its current one."""
    lease: ObjectName | None = None
    """A Lease in the namespace, for several supervisors: the one that holds it controls. Default:
    none, for a single supervisor."""

    @model_validator(mode="after")
    def _check(self) -> "KubernetesConfig":
        for requirement in re.split(r",(?![^(]*\))", self.selector):
            if _REQUIREMENT.fullmatch(requirement.strip(" ")) is None:
                bound = "a label selector, such as a=b,c or a in (b, c)"
                raise Fault("selector", self.selector, bound)
        return self


_SECTIONS: Final = {
    "docker": BackendKind.DOCKER,
    "kubernetes": BackendKind.KUBERNETES,
    "node": BackendKind.KUBERNETES,
    "nodeSelector": BackendKind.KUBERNETES,
    "sockets": BackendKind.PROCESS,
}
"""Keys of a worker that belong to one kind of backend."""


class WorkerConfig(Section):
    """A host whose cores its supervisor allocates."""

    name: Name = "local"
    backend: BackendKind = BackendKind.PROCESS
    cores: Cores
    """MC: cores of the worker that ROMA may use."""
    reserved: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """GC: cores reserved for GPUs, gateway and others; MC - GC is allocated (paper Alg. 2)."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of the worker; the process backend has none."""
    period: ControlPeriod | None = None
    """Control period of this worker in seconds; default: `control.period`."""
    base_port: Port = 8600
    """First port of the model servers that ROMA starts; each takes one port, counting up."""
    grpc_offset: Annotated[int, Field(ge=1, le=65534)] | None = None
    """Offset of the gRPC port of each of them from its REST port, e.g. 1000; default: no gRPC.
    Backends `process` and `docker`."""
    sockets: AbsolutePath | None = None
    """Absolute directory for Unix sockets of their REST APIs, one each, in place of ports: the
    fastest connection to a model server. Backend `process` only."""
    executables: tuple[ExecutableConfig, ...] = ()
    """Model servers started outside ROMA. Backend `static` only."""
    docker: DockerConfig | None = None
    """Docker settings. Backend `docker` only; default: the local engine with TensorFlow Serving."""
    node: NodeName | None = None
    """Name of the node whose pods are the worker's model servers. Backend `kubernetes` only."""
    nodeSelector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1)] | None = None  # noqa: N815 - the API's own name
    """In place of `node`, labels of nodes: each node that has them is a worker with `cores` of its
    own, as nodes come and go. Its name is the node's. Backend `kubernetes` only."""
    kubernetes: KubernetesConfig | None = None
    """Kubernetes settings. Backend `kubernetes` only; default: this pod's namespace and service
    account."""

    @property
    def executable_names(self) -> list[str]:
        """Names of `executables`, unique on this worker."""
        return [
            e.name or (f"gpu{i}" if e.model is None else f"{e.model}.{i}")
            for i, e in enumerate(self.executables)
        ]

    @property
    def is_placed(self) -> bool:
        """True if ROMA places models' replicas here; otherwise the file lists executables."""
        return self.backend in (BackendKind.PROCESS, BackendKind.DOCKER)

    @property
    def is_discovered(self) -> bool:
        """True if its executables come and go without a change of the file."""
        return self.backend is BackendKind.KUBERNETES

    @property
    def is_pool(self) -> bool:
        """True if it stands for the nodes that match it, each of which is a worker."""
        return self.nodeSelector is not None

    @property
    def entry(self) -> str:
        """Name of the entry of roma.yaml that the worker comes from."""
        return self.name

    @property
    def is_local(self) -> bool:
        """True if its model servers are processes that the launcher of this machine starts."""
        return self.backend is BackendKind.PROCESS

    @property
    def has_fast_quotas(self) -> bool:
        """True if a quota is a file of this machine; otherwise an engine has to be asked."""
        return self.backend in (BackendKind.PROCESS, BackendKind.STATIC)

    @property
    def has_remote_engine(self) -> bool:
        """True if its model servers are containers of an engine on another host."""
        return self.backend is BackendKind.DOCKER and self.containers.remote

    @property
    def is_remote(self) -> bool:
        """True if its model servers run on another host than their supervisor."""
        return self.has_remote_engine or self.backend is BackendKind.KUBERNETES

    @property
    def containers(self) -> DockerConfig:
        """`docker` with its default filled in."""
        return self.docker or DockerConfig()

    @property
    def pods(self) -> KubernetesConfig:
        """`kubernetes` with its default filled in."""
        return self.kubernetes or KubernetesConfig()

    def socket(self, deployment: str, model: str) -> str | None:
        """Return the path of the socket of a model server that ROMA starts, if it has one."""
        if self.sockets is None:
            return None
        return f"{self.sockets.rstrip('/')}/{deployment}.{self.name}.{model}.sock"

    @property
    def allocatable(self) -> float:
        """AC = MC - GC, in cores."""
        return round(self.cores - self.reserved, 9)  # in binary, 2 - 1.8 is less than 0.2

    @model_validator(mode="after")
    def _check(self) -> "WorkerConfig":
        if self.reserved >= self.cores:
            raise Fault("reserved", self.reserved, f"< cores ({self.cores:g})")
        if self.gpus and self.backend in (BackendKind.PROCESS, BackendKind.KUBERNETES):
            bound = f"0 for backend {self.backend} (use docker or static)"
            raise Fault("gpus", self.gpus, bound)
        if self.backend is BackendKind.KUBERNETES and (self.node is None) != self.is_pool:
            bound = "the name of a node, or absent beside nodeSelector, for backend kubernetes"
            raise Fault("node", self.node, bound)
        for key, kind in _SECTIONS.items():
            if getattr(self, key) is not None and self.backend is not kind:
                value = getattr(self, key)
                shown = value if isinstance(value, str) else "set"
                raise Fault(key, shown, f"absent for backend {self.backend}")
        if self.grpc_offset is not None and not self.is_placed:
            bound = f"absent for backend {self.backend} (use grpc, grpc_port)"
            raise Fault("grpc_offset", self.grpc_offset, bound)
        for name in (names := self.executable_names):
            if names.count(name) > 1:
                raise Fault("executables.name", name, "unique on its worker")
        if (self.backend is BackendKind.STATIC) != bool(self.executables):
            raise Fault(
                "executables",
                f"{len(self.executables)} listed",
                "at least one for backend static, none for the others",
            )
        return self
