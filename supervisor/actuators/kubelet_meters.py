"""Used CPU time of pods whose model servers do not report it, from the kubelet of their node.

Its /metrics/resource is measured on demand; /metrics/cadvisor is many seconds old. It has no quota
and no throttling: the granted cores are those of the pod's status, and throttling is unknown.
"""

import asyncio
import logging
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from aiohttp import (
    ClientError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    StreamReader,
    TCPConnector,
)

from roma.domain.addresses import authority
from roma.kubernetes.credentials import ClusterCredentials
from roma.kubernetes.pods import Pod
from roma.telemetry.reachability import reason
from supervisor.actuators.asking import Asking
from supervisor.executables import Reading

PATH: Final = "/metrics/resource"

ASK_AT: Final = 0.75
"""Share of a control period after which the kubelet is asked: an answer ages until a tick."""

MOST_BYTES: Final = 4 * 2**20
"""Most bytes of an answer: 200 bytes for each container of the node."""

_USAGE: Final = re.compile(
    r"^container_cpu_usage_seconds_total\{([^}]*)\} (\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: \d+)?\n",
    re.MULTILINE | re.ASCII,
)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

log = logging.getLogger(__name__)


class KubeletMeters:
    """Asks one kubelet about all its pods, once per `period` in seconds.

    An answer counts for one tick: used twice, it would show no usage in the second.
    """

    def __init__(
        self,
        credentials: ClusterCredentials,
        tls: ssl.SSLContext | None,
        *,
        node: str,
        port: int,
        namespace: str,
        container: str,
        period: float,
    ) -> None:
        self._credentials = credentials
        self._node = node
        self._port = port
        self._namespace = namespace
        self._container = container
        self._session = ClientSession(
            connector=TCPConnector(ssl=True if tls is None else tls),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=period),
        )
        self._host = ""
        self._newest: dict[str, float] = {}
        self._arrived = 0.0
        self._asking = Asking(self._ask, period=period, at=ASK_AT)
        self._said = ""

    def read(self, pods: Mapping[str, Pod]) -> Mapping[str, Reading | None]:
        """Return the readings that have arrived since the last call."""
        self._host = next((pod.host for pod in pods.values() if pod.host), self._host)
        now = asyncio.get_running_loop().time()
        self._asking.on_tick(now)
        newest, self._newest = self._newest, {}
        return {
            name: replace(_reading(newest[pod.name], pod), age=now - self._arrived)
            if pod.name in newest
            else None
            for name, pod in pods.items()
        }

    async def close(self) -> None:
        """Stop asking."""
        await self._asking.close()
        await self._session.close()

    async def _ask(self) -> None:
        if not self._host:
            return  # no pod has told it yet
        try:
            async with self._session.get(
                f"https://{authority(self._host, self._port)}{PATH}",
                headers={"Authorization": f"Bearer {self._credentials.token()}"},
                # Its certificate names the node, and its address only where an authority signed it.
                server_hostname=self._node,
            ) as response:
                text = (await _body(response.content)).decode("utf-8", "replace")
                why = "" if response.status == 200 else f"status {response.status}: {text[:200]}"
        except (ClientError, TimeoutError, OSError) as error:
            text, why = "", reason(error)
        if why and why != self._said:  # once, not once per second
            log.warning("kubelet of node %s: the CPU use of pods is unknown: %s", self._node, why)
        self._said = why
        if not why:
            self._newest = usage(text, self._namespace, self._container)
            self._arrived = asyncio.get_running_loop().time()


async def _body(content: StreamReader) -> bytes:
    """Return a body, or its beginning if it is too large."""
    body = b""
    async for part in content.iter_any():
        body += part
        if len(body) > MOST_BYTES:
            break
    return body


def usage(text: str, namespace: str, container: str) -> dict[str, float]:
    """Return the core-seconds used by the container, by pod, from the kubelet's metrics."""
    found: dict[str, float] = {}
    for labels, value in _USAGE.findall(text):
        of = dict(_LABEL.findall(labels))
        used = float(value)
        if (of.get("namespace"), of.get("container")) == (namespace, container) and used < math.inf:
            found[of.get("pod", "")] = used
    return found


def _reading(used: float, pod: Pod) -> Reading:
    cores = None if pod.granted is None else pod.granted / 1000
    return Reading(cores=cores, usage=used, periods=0, throttled=None, burst=0.0)
