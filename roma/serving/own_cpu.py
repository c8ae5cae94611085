"""CPU accounting of the model server's own cgroup, for a supervisor on another host.

A container can read its own cgroup but not another's, and the API server of a cluster does not
know what the kernel enforces: it repeats what the kubelet believes.
"""

from dataclasses import asdict

import orjson

from roma.domain.errors import ActuationError
from roma.serving.errors import Code, RequestError
from supervisor.cgroups import own_group


def report() -> bytes:
    """Return `supervisor.executables.Reading` as JSON; raise RequestError without a cgroup."""
    try:
        return orjson.dumps(asdict(own_group().read()))
    except ActuationError as error:
        raise RequestError(f"no cgroup can be read here: {error}", Code.NOT_FOUND) from error
