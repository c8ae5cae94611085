"""The `gateway` section of roma.yaml: where the dispatcher is reached, and within which bounds.

Times are seconds, sizes are bytes.
"""

from typing import Annotated

from pydantic import Field

from roma.strict_yaml import Section
from roma.workers import Host, Name, Port, Seconds, Url


class LimitsConfig(Section):
    """What clients may take: bytes, connections and seconds."""

    head_bytes: Annotated[int, Field(ge=1024, le=2**20)] = 32 * 2**10
    """A larger request head is refused with 431."""
    buffered_bytes: Annotated[int, Field(ge=2**20)] = 2**30
    """Bodies of all requests that are being read or answered; beyond it, 503."""
    connections: Annotated[int, Field(ge=1)] = 20_000
    """Most connections at once; one more is told 503 and closed."""
    connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """The same for each client address; default: no limit of its own, as behind a proxy all come
    from one."""
    head_timeout: Seconds = 10.0
    """From the first byte of a request, or from connecting, to the end of its head."""
    body_timeout: Seconds = 30.0
    """From the end of its head to the end of its body; beyond it, 408."""
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
    admin_host: Host = "127.0.0.1"
    admin_port: Port = 8500
    """The live page, metrics and the supervisors' exchange."""
    supervisors: dict[Name, Url] = Field(default_factory=dict)
    """Addresses of the workers' supervisors, for the live page; default: control.host and port."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 32 * 2**20
    """A larger request body is refused with 413."""
    limits: LimitsConfig = LimitsConfig()
    backend_timeout: Seconds = 60.0
    """Longest wait for a model server's answer, in seconds."""
    drain_timeout: Seconds = 10.0
    """On SIGTERM, how long requests in flight may take to finish, in seconds."""
    traces: bool = False
    """Export OpenTelemetry spans of each request over OTLP/HTTP; needs the extra `otel`. Where to,
    and how many, say OpenTelemetry's environment variables: OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_TRACES_SAMPLER…"""
