"""Lets tools such as grpcurl ask which methods and messages there are (server reflection).

The descriptions come from a file of this package, so that nothing that defines them, TensorFlow
above all, must be installed or imported. `docs/descriptors.py` writes it.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection

from dispatcher.live.grpc.methods import SERVICES

DESCRIPTORS = "descriptors.binpb"


def add_to(server: Any) -> None:
    """Add the service to a grpc.aio server."""
    described = descriptor_pb2.FileDescriptorSet()
    described.ParseFromString(resources.files(__package__).joinpath(DESCRIPTORS).read_bytes())
    pool = DescriptorPool()
    for file in described.file:  # each after those that it needs
        pool.Add(file)
    names = (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool)
