"""Write the descriptions that the gateway's gRPC reflection answers with.

`python docs/descriptors.py` rewrites the file; `--check` fails if it is out of date. Only the
methods that the gateway has are described, with the messages and the files that they need.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2
from tritonclient.grpc import service_pb2

import dispatcher.live.grpc
from dispatcher.live.grpc.methods import METHODS, SERVICES

FILE = Path(dispatcher.live.grpc.__file__).with_name("descriptors.binpb")
MODULES = (prediction_service_pb2, model_service_pb2, service_pb2, health_pb2, reflection_pb2)


def described() -> descriptor_pb2.FileDescriptorSet:
    """Return the files, each after those that it needs."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for module in MODULES:
        _add(module.DESCRIPTOR, found)
    return descriptor_pb2.FileDescriptorSet(file=found.values())


def _add(file: Any, found: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    if file.name in found:
        return
    described = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(described)
    if any(f"{file.package}.{service.name}" in SERVICES for service in described.service):
        _prune(file, described)
    needed = [d for d in file.dependencies if d.name in described.dependency]
    for dependency in needed:
        _add(dependency, found)
    found[file.name] = described


def _prune(file: Any, described: descriptor_pb2.FileDescriptorProto) -> None:
    """Leave out the methods that the gateway has not, and what only they need."""
    messages = set()
    for service in described.service:
        path = f"/{file.package}.{service.name}"
        kept = [m for m in service.method if f"{path}/{m.name}" in METHODS]
        del service.method[:]
        service.method.extend(kept)
        real = file.services_by_name[service.name].methods_by_name
        for method in kept:
            for message in (real[method.name].input_type, real[method.name].output_type):
                messages |= {m.full_name: m for m in _reached(message, set())}.keys()
                messages.add(message.full_name)
    own = [m for m in described.message_type if f"{file.package}.{m.name}" in messages]
    del described.message_type[:]
    described.message_type.extend(own)
    files = {d.name for d in file.dependencies if messages & _names(d)}
    del described.dependency[:]
    described.dependency.extend(d.name for d in file.dependencies if d.name in files)


def _reached(message: Any, seen: set[str]) -> Iterator[Any]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from _reached(field.message_type, seen)


def _names(file: Any) -> set[str]:
    return {m.full_name for m in file.message_types_by_name.values()}


def main() -> None:
    """Write, or check."""
    data = described().SerializeToString(deterministic=True)
    if "--check" in sys.argv:
        if FILE.read_bytes() != data:
            sys.exit(f"{FILE} is out of date: run python {Path(__file__).name}")
    else:
        FILE.write_bytes(data)
        print(f"{FILE}: {len(data)} bytes")


if __name__ == "__main__":
    main()
