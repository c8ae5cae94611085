"""`make fuzz`: bytes that atheris makes by the branches they take, read here and by protobuf.

It looks longer and closer than the property in `tests/tensorflow/gateway/test_grpc_wire.py`; what
it finds becomes an example there. It stops at the first difference and names a file with the bytes.
"""

import sys

import atheris

with atheris.instrument_imports(include=["dispatcher.live.grpc.wire"]):
    from tests.support.protobuf import agrees

LONGEST = 64
"""Bytes: groups and messages within messages need few."""


def differ(data):
    if not agrees(data):
        raise AssertionError(f"read otherwise than by protobuf: {data!r}")


if __name__ == "__main__":
    bounds = [
        f"-max_total_time={sys.argv[1]}",
        f"-max_len={LONGEST}",
        "-artifact_prefix=.cache/",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *bounds], differ)
    atheris.Fuzz()
