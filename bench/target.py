"""A model behind a gateway, from a client's view: closed loop, open loop, or single requests."""

import math
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.openloop import Stream, predicts
from bench.programs import wrk
from bench.proxies import wrk_script
from roma.tools.demo import inputs


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway's port, a model of `slots` behind it, its requests, and its promise in seconds.

    Clients run on `core`.
    """

    port: int
    model: str
    body: str
    slots: int
    sla: float
    core: int

    @property
    def path(self) -> str:
        """The path of its predict call."""
        return f"/v1/models/{self.model}:predict"

    def stream(self, rate: float) -> Stream:
        """Return Poisson arrivals at `rate` requests per second."""
        return predicts(self.model, self.body, rate)

    def closed(self, directory: Path, connections: int, seconds: float) -> tuple[float, float]:
        """Return requests per second and median response time of a closed loop; exit if one fails.

        wrk takes whole seconds.
        """
        script = wrk_script(directory, target=self.path, body=self.body.encode())
        url = f"http://127.0.0.1:{self.port}"
        served = wrk(script, url, connections, max(1, round(seconds)), self.core)
        return served.rate, served.p50

    def once(self) -> float:
        """Send one request; return its response time in seconds, inf without a good answer."""
        url = f"http://127.0.0.1:{self.port}{self.path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, self.body.encode(), headers)
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        except OSError:  # urllib's errors are OSErrors
            return math.inf
        return time.monotonic() - begun


def photos(count: int, seed: int = 1) -> str:
    """Return a predict body of `count` photographs, for the demo's model of that name.

    It repeats the smallest of 16 files: the model computes as long on any, and less is transferred.
    """
    body = min(inputs.photo_bodies(16, seed), key=len)
    return inputs.predict_body(count * orjson.loads(body)["instances"]).decode()
