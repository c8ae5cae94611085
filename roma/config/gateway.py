"""The `gateway` section of roma.yaml: the dispatcher's addresses and its limits.

Times are seconds, sizes are bytes.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, ByteSize, Field, model_validator

from roma.config.security import OidcConfig, PeerUrl, TlsConfig, WebUrl, reachable
from roma.config.workers import AbsolutePath, Host, Name, Port, Seconds, check_socket
from roma.config.yaml_file import Fault, FilePath, Section


def _as_sent(origin: str) -> str:
    """Return an origin as browsers send it: in lower case, without its scheme's own port."""
    origin = origin.lower()
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


_PAGES_HOST: Final = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f.:]+\])"
Origin = Annotated[
    str,
    Field(pattern=rf"^(\*|https?://{_PAGES_HOST}(:[0-9]{{1,5}})?)$"),
    AfterValidator(_as_sent),
]
"""A page's origin, or `*` for any."""


class LimitsConfig(Section):
    """Limits on clients: bytes, connections and seconds."""

    head_bytes: Annotated[int, Field(ge=1024, le=2**20)] = 32 * 2**10
    """A larger request head is refused with 431; gRPC itself refuses larger metadata."""
    buffered_bytes: Annotated[int, Field(ge=2**20)] = 2**30
    """Most bytes in memory for all requests: bodies being read or answered, and answers that
    clients leave unread. Beyond it, connections of clients that have read nothing for a second are
    closed; if that is not enough, the next request or large answer is a 503. A gRPC message counts
    once it is complete, its answer until it is sent; beyond the limit, RESOURCE_EXHAUSTED."""
    connections: Annotated[int, Field(ge=1)] = 20_000
    """Most connections at once, TLS handshakes included. One more is answered with 503 and closed;
    over TLS it is closed before its handshake. The limit is lowered if the program's open files
    (ulimit -Hn) would not leave enough for executables and probes. gRPC has the same limit on
    connections, fixed when its port is opened, and on open calls; one more call is
    RESOURCE_EXHAUSTED."""
    connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """The same limit for each client address; over gRPC it bounds open calls. Default: no separate
    limit, because behind a proxy all clients share one address."""
    head_timeout: Seconds = 10.0
    """Longest time from the first byte of a request, or from connecting, to the end of its head.
    Also the limit of a TLS handshake."""
    body_timeout: Seconds = 30.0
    """Longest time from the end of a request's head to the end of its body; beyond it, 408 or
    DEADLINE_EXCEEDED."""
    idle_timeout: Seconds = 75.0
    """Longest time between two requests of a connection."""
    write_timeout: Seconds = 30.0
    """Longest time that a client may leave an answer unread."""


class GatewayConfig(Section):
    """The dispatcher's listeners for clients and supervisors, and its limits."""

    host: Host = "127.0.0.1"
    port: Port = 8501
    """TensorFlow Serving's REST port."""
    grpc_port: Port | None = None
    """Port for TensorFlow Serving's and the Open Inference Protocol's gRPC; default: no gRPC. A
    call needs executables with a gRPC address: `grpc` of a listed executable, `grpc_offset` of a
    worker."""
    grpc_socket: AbsolutePath | None = None
    """Path of a Unix socket for the same gRPC, beside grpc_port or instead of it; without TLS.
    Every user with write access to the file may connect; keys are checked there too. Default:
    none."""
    client_metrics: bool = False
    """Serve GET /monitoring/prometheus/metrics, TensorFlow Serving's path, at the clients' port: a
    client that may call any model can read the counts of all models. Not with several processes,
    each of which counts alone."""
    processes: Annotated[int, Field(ge=1, le=32)] = 1
    """Dispatcher processes that share the clients' ports (SO_REUSEPORT); each uses one core.
    Limits, queues and the keys' rates apply to each process separately. Not with GPUs, because
    every process would send to the same GPU."""
    process_port: Port = 8510
    """Admin port of the second process; further processes count up from it."""
    keys: FilePath | None = None
    """Keys file of the clients that may call (`roma keys add`); default: anyone who reaches the
    port may call."""
    oidc: OidcConfig | None = None
    """Identity provider whose tokens are accepted, beside the keys or instead of them."""
    tls: TlsConfig | None = None
    """Certificate of the clients' port; default: no TLS."""
    names: tuple[Host, ...] = ()
    """Host names under which clients reach the gateway, beside addresses, localhost and its host.
    Any other Host is refused with 421, a page of another site with 403. If unset, this check
    applies only to a loopback port without keys, provider and TLS, which a foreign page could call
    through its user's browser (DNS rebinding). HTTP only: browsers do not speak gRPC."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages whose scripts may call the gateway and read answers (CORS), such as
    https://app.example, or "*"; default: none."""
    insecure: bool = False
    """Accept clients from other machines although no authentication is configured."""
    admin_host: Host = "127.0.0.1"
    admin_port: Port = 8500
    """Port of the dashboard, metrics and the supervisors' exchange; `tokens` sets their secrets."""
    admin_names: tuple[Host, ...] = ()
    """Host names under which browsers and programs reach the admin port, beside addresses,
    localhost, its host and the hosts in control.dispatchers. Any other name is refused: a foreign
    page may have pointed its own name here (DNS rebinding)."""
    admin_tls: TlsConfig | None = None
    """Certificate of the admin port, the exchange port and the metrics port."""
    admin_insecure: bool = False
    """Accept admin connections from other machines although a token is missing."""
    exchange_host: Host | None = None
    exchange_port: Port | None = None
    """Port of a separate listener for the supervisors' exchange; default: the admin port, the admin
    host."""
    metrics_host: Host | None = None
    metrics_port: Port | None = None
    """Port of a separate listener for /metrics; default: the admin port, the admin host."""
    links: dict[Name, WebUrl] = Field(default_factory=dict)
    """Links in the dashboard's top line, by the text that they have: Grafana, a runbook. Default:
    none."""
    supervisors: dict[Name, PeerUrl] = Field(default_factory=dict)
    """Addresses of the workers' supervisors, for the dashboard; default: control.host and port."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 32 * 2**20
    """A larger request body is refused with 413."""
    max_answer_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31 - 1)] = ByteSize(256 * 2**20)
    """Largest answer of a model server. A larger one is not read to its end: its connection is
    closed, the client gets 502, and the executable is sent one request at a time until it
    answers."""
    limits: LimitsConfig = LimitsConfig()
    backend_timeout: Seconds = 60.0
    """Longest wait for a model server's answer, in seconds."""
    drain_timeout: Seconds = 10.0
    """Longest time that requests in flight may take to finish after SIGTERM, in seconds."""
    traces: bool = False
    """Export OpenTelemetry spans of each request over OTLP/HTTP; needs the extra `otel`.
    OpenTelemetry's environment variables set the destination and the sampling:
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER…"""

    @model_validator(mode="after")
    def _check(self) -> "GatewayConfig":
        for name in ("exchange", "metrics"):
            host = getattr(self, f"{name}_host")
            if host is not None and getattr(self, f"{name}_port") is None:
                raise Fault(f"{name}_host", host, f"absent without {name}_port")
            port = getattr(self, f"{name}_port")
            if port is not None and self.processes > 1:
                raise Fault(f"{name}_port", port, f"absent where processes > 1 ({self.processes})")
        if self.client_metrics and self.processes > 1:
            # Each process counts its own requests, and answers for itself alone.
            raise Fault("client_metrics", "true", f"false where processes > 1 ({self.processes})")
        if self.grpc_socket is not None:
            check_socket("grpc_socket", self.grpc_socket)
            if self.processes > 1:  # a path has one listener
                bound = f"absent where processes > 1 ({self.processes})"
                raise Fault("grpc_socket", self.grpc_socket, bound)
        return self

    @property
    def has_grpc(self) -> bool:
        """True if clients may call by gRPC."""
        return self.grpc_port is not None or self.grpc_socket is not None

    @property
    def admin_ports(self) -> list[int]:
        """The admin port of each process."""
        return [self.admin_port, *(self.process_port + i for i in range(self.processes - 1))]

    @property
    def exchange_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each process for the supervisors' exchange."""
        others = [(self.admin_host, port) for port in self.admin_ports[1:]]
        return [self.exchange_address, *others]

    @property
    def exchange_urls(self) -> tuple[str, ...]:
        """URLs of the supervisors' exchange, for programs on this machine."""
        tls = self.admin_tls is not None
        return tuple(reachable(*address, tls=tls) for address in self.exchange_addresses)

    @property
    def exchange_address(self) -> tuple[str, int]:
        """Host and port of the supervisors' exchange."""
        return self.exchange_host or self.admin_host, self.exchange_port or self.admin_port

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of /metrics."""
        return self.metrics_host or self.admin_host, self.metrics_port or self.admin_port

    @property
    def url(self) -> str:
        """URL under which clients on this machine reach the gateway."""
        return reachable(self.host, self.port, tls=self.tls is not None)

    @property
    def admin_url(self) -> str:
        """URL under which programs and browsers on this machine reach the admin port."""
        return reachable(self.admin_host, self.admin_port, tls=self.admin_tls is not None)
