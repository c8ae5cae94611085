"""The `gateway` section of roma.yaml: where the dispatcher is reached, and within which bounds.

Times are seconds, sizes are bytes.
"""

from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field, model_validator

from roma.config.security import OidcConfig, PeerUrl, TlsConfig, reachable
from roma.config.workers import AbsolutePath, Host, Name, Port, Seconds, check_socket
from roma.config.yaml_file import Fault, FilePath, Section

Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?)$")]
"""A page's origin as browsers send it, or any."""


class LimitsConfig(Section):
    """What clients may take: bytes, connections and seconds."""

    head_bytes: Annotated[int, Field(ge=1024, le=2**20)] = 32 * 2**10
    """A larger request head is refused with 431, larger metadata of a gRPC call by gRPC itself."""
    buffered_bytes: Annotated[int, Field(ge=2**20)] = 2**30
    """Bodies of all requests that are read or answered, and answers that clients leave unread.
    Beyond it, clients that have read nothing for a second are closed; if that is not enough, the
    next request or large answer is a 503. A gRPC message counts once it is whole, its answer until
    it is sent; beyond it, RESOURCE_EXHAUSTED."""
    connections: Annotated[int, Field(ge=1)] = 20_000
    """Most connections at once, TLS handshakes included; one more is told 503 and closed, over TLS
    closed before its handshake. Never so many that the program's open files (ulimit -Hn) would not
    do for executables and probes too. gRPC has as many connections, as they were when its port was
    opened, and as many open calls; one more call is RESOURCE_EXHAUSTED."""
    connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """The same for each client address, over gRPC for its open calls; default: no limit of its own,
    as behind a proxy all come from one."""
    head_timeout: Seconds = 10.0
    """From the first byte of a request, or from connecting, to the end of its head. Also for a TLS
    handshake."""
    body_timeout: Seconds = 30.0
    """From the end of its head to the end of its body; beyond it, 408 or DEADLINE_EXCEEDED."""
    idle_timeout: Seconds = 75.0
    """Between two requests of a connection."""
    write_timeout: Seconds = 30.0
    """For which a client may leave an answer unread."""


class GatewayConfig(Section):
    """Where clients and supervisors reach the dispatcher."""

    host: Host = "127.0.0.1"
    port: Port = 8501
    """TensorFlow Serving's REST port."""
    grpc_port: Port | None = None
    """For TensorFlow Serving's and the Open Inference Protocol's gRPC; default: no gRPC. A call
    needs executables with a gRPC address: `grpc` of a listed one, `grpc_offset` of a worker."""
    grpc_socket: AbsolutePath | None = None
    """The path of a Unix socket for the same gRPC, beside grpc_port or instead of it; without TLS.
    Whoever may write the file may connect; keys hold there too. default: none."""
    client_metrics: bool = False
    """Serve GET /monitoring/prometheus/metrics, TensorFlow Serving's path, at the clients' port:
    whoever may call any model reads the counts of all."""
    processes: Annotated[int, Field(ge=1, le=32)] = 1
    """Dispatcher processes that share the clients' ports (SO_REUSEPORT); one computes on one core.
    Bounds, queues and keys' rates hold for each of them. Not with GPUs: each would send to one."""
    process_port: Port = 8510
    """Admin port of the second of them; those of the next ones count up."""
    keys: FilePath | None = None
    """Keys of those who may call (`roma keys add`); default: whoever reaches the port may."""
    oidc: OidcConfig | None = None
    """Tokens of an identity provider, beside the keys or instead of them."""
    tls: TlsConfig | None = None
    """Certificate of the clients' port; default: no TLS."""
    names: tuple[Host, ...] = ()
    """Names under which clients reach it, beside addresses, localhost and its host: any other Host
    is refused with 421, a page of another site with 403. Where it is not set, that holds on a port
    of this machine alone without keys, provider and TLS, which a foreign page could call through
    its user's browser (DNS rebinding). For HTTP: no browser speaks gRPC."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages whose scripts may call it and read answers (CORS), https://app.example
    say, or "*"; default: none."""
    insecure: bool = False
    """Listen for clients beyond this machine though nothing says who may call."""
    admin_host: Host = "127.0.0.1"
    admin_port: Port = 8500
    """The live page, metrics and the supervisors' exchange; `tokens` says what they ask for."""
    admin_names: tuple[Host, ...] = ()
    """Names under which browsers and others reach it, beside addresses, localhost, its host and
    those in control.dispatchers. Any other name is refused: a foreign page may have pointed its
    own name here (DNS rebinding)."""
    admin_tls: TlsConfig | None = None
    """Certificate of the admin port, and of the two below."""
    admin_insecure: bool = False
    """Listen there beyond this machine though a token is missing."""
    exchange_host: Host | None = None
    exchange_port: Port | None = None
    """A listener for the supervisors' exchange alone; default: the admin port, the admin host."""
    metrics_host: Host | None = None
    metrics_port: Port | None = None
    """A listener for /metrics alone; default: the admin port, the admin host."""
    supervisors: dict[Name, PeerUrl] = Field(default_factory=dict)
    """Addresses of the workers' supervisors, for the live page; default: control.host and port."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 32 * 2**20
    """A larger request body is refused with 413."""
    max_answer_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31 - 1)] = ByteSize(256 * 2**20)
    """A larger answer of a model server is not read to its end: its connection is closed, the
    client gets 502, and the executable is asked one request at a time until it answers."""
    limits: LimitsConfig = LimitsConfig()
    backend_timeout: Seconds = 60.0
    """Longest wait for a model server's answer, in seconds."""
    drain_timeout: Seconds = 10.0
    """On SIGTERM, how long requests in flight may take to finish, in seconds."""
    traces: bool = False
    """Export OpenTelemetry spans of each request over OTLP/HTTP; needs the extra `otel`. Where to,
    and how many, say OpenTelemetry's environment variables: OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_TRACES_SAMPLER…"""

    @model_validator(mode="after")
    def _check(self) -> "GatewayConfig":
        for name in ("exchange", "metrics"):
            host = getattr(self, f"{name}_host")
            if host is not None and getattr(self, f"{name}_port") is None:
                raise Fault(f"{name}_host", host, f"absent where {name}_port is")
            port = getattr(self, f"{name}_port")
            if port is not None and self.processes > 1:
                raise Fault(f"{name}_port", port, f"absent where processes > 1 ({self.processes})")
        if self.grpc_socket is not None:
            check_socket("grpc_socket", self.grpc_socket)
            if self.processes > 1:  # a path has one listener
                bound = f"absent where processes > 1 ({self.processes})"
                raise Fault("grpc_socket", self.grpc_socket, bound)
        return self

    @property
    def has_grpc(self) -> bool:
        """Whether clients may call by gRPC."""
        return self.grpc_port is not None or self.grpc_socket is not None

    @property
    def admin_ports(self) -> list[int]:
        """The admin port of each process."""
        return [self.admin_port, *(self.process_port + i for i in range(self.processes - 1))]

    @property
    def exchange_addresses(self) -> list[tuple[str, int]]:
        """Where supervisors exchange with each process."""
        if self.processes == 1:
            return [self.exchange_address]
        return [(self.admin_host, port) for port in self.admin_ports]

    @property
    def exchange_address(self) -> tuple[str, int]:
        """Where supervisors exchange."""
        if self.exchange_port is None:
            return self.admin_host, self.admin_port
        return self.exchange_host or self.admin_host, self.exchange_port

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Where /metrics is."""
        if self.metrics_port is None:
            return self.admin_host, self.admin_port
        return self.metrics_host or self.admin_host, self.metrics_port

    @property
    def url(self) -> str:
        """Where clients of this machine reach it."""
        return reachable(self.host, self.port, tls=self.tls is not None)

    @property
    def admin_url(self) -> str:
        """Where programs and browsers of this machine reach the admin port."""
        return reachable(self.admin_host, self.admin_port, tls=self.admin_tls is not None)

    def relative_to(self, base: Path) -> "GatewayConfig":
        """Return it with its paths taken from `base`, the directory of roma.yaml."""
        update: dict[str, object] = {"keys": None if self.keys is None else base / self.keys}
        for name in ("tls", "admin_tls"):
            section = getattr(self, name)
            update[name] = None if section is None else section.relative_to(base)
        return self.model_copy(update=update)
