"""Echo for Ray Serve (https://docs.ray.io/en/latest/serve): `ray_echo.py PORT`, /."""

import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=256)
class Echo:
    """A single replica: a core is left to the proxy."""

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Echo."""
        return {"predictions": (await request.json())["instances"]}


if __name__ == "__main__":
    ray.init(include_dashboard=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1]), "access_log": False})
    serve.run(Echo.bind(), route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
