"""Readings of a kubelet, which asks who wants them: a token or a certificate says so."""

import asyncio
import contextlib
import logging
import ssl
from dataclasses import replace
from itertools import pairwise

import pytest
import trustme
import yaml
from aiohttp import web

from roma.config import schema
from roma.config.backends.pod_source import PodSource
from roma.kubernetes.pods import parse
from supervisor.live.actuation import _pod_meters
from tests.support.fake_api_server import pod
from tests.support.kubeconfig import kubeconfig_of
from tests.support.served import served

FILE = """
models: {{m: {{sla: {{response_time: 1}}}}}}
workers:
- name: w
  backend: kubernetes
  node: node-a
  cores: 4
  kubernetes: {{server: tensorflow_serving, namespace: models, kubeconfig: {kubeconfig},
    kubelet_port: {port}, kubelet_ca: {authority}}}
"""

METRICS = """\
container_cpu_usage_seconds_total{container="sidecar",namespace="models",pod="a"} 7 1700000000000
container_cpu_usage_seconds_total{container="model-server",namespace="models",pod="a"} 2.5 1700
container_cpu_usage_seconds_total{container="model-server",namespace="other",pod="a"} 9 1700
"""

PODS = {"a@w": replace(parse(pod("a"), "model-server"), host="127.0.0.1")}


@pytest.fixture
async def kubelet(tmp_path):
    """A kubelet with an authority of its own; yields its file, and that of clients, and its port."""
    clients, own = trustme.CA(), trustme.CA()
    own.cert_pem.write_to_path(str(tmp_path / "kubelet.crt"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.issue_cert("node-a").configure_cert(tls)
    clients.configure_trust(tls)
    tls.verify_mode = ssl.CERT_OPTIONAL

    async def answer(request):
        named = request.transport.get_extra_info("peercert")
        if named or request.headers["Authorization"] == "Bearer t":
            return web.Response(text=METRICS)
        return web.Response(status=401, text="Unauthorized")

    async with served(web.get("/metrics/resource", answer), tls=tls) as port:
        yield tmp_path, clients, port


@contextlib.asynccontextmanager
async def metering(folder, port, **user):
    """Yield the meters of a supervisor whose kubeconfig has this user."""
    content = kubeconfig_of("https://127.0.0.1:1")
    content["users"][0]["user"] = user
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))
    names = {"kubeconfig": folder / "kubeconfig", "authority": folder / "kubelet.crt"}
    config = schema.parse(FILE.format(port=port, **names))
    (worker,) = config.workers
    meters = _pod_meters(worker, PodSource(config, worker).watch, 0.05)
    try:
        yield meters
    finally:
        await meters.close()


async def reading(meters):
    async with asyncio.timeout(60):
        while (found := meters.read(PODS)["a@w"]) is None:
            await asyncio.sleep(0.005)
    return found


async def test_a_token_is_shown(kubelet):
    folder, _, port = kubelet
    async with metering(folder, port, token="t") as meters:
        found = await reading(meters)
    assert (found.cores, found.usage, found.throttled) == (1.0, 2.5, None)


async def test_a_certificate_is_shown(kubelet):
    """As in the kubeconfig that kubeadm writes, whose user has no token."""
    folder, clients, port = kubelet
    shown = clients.issue_cert(common_name="kubernetes-admin")
    (folder / "a.crt").write_bytes(shown.cert_chain_pems[0].bytes())
    (folder / "a.key").write_bytes(shown.private_key_pem.bytes())
    files = {"client-certificate": "a.crt", "client-key": "a.key"}
    async with metering(folder, port, **files) as meters:
        assert (await reading(meters)).usage == 2.5


async def test_who_has_neither_is_told_so_once(kubelet, caplog):
    folder, _, port = kubelet
    caplog.set_level(logging.WARNING)
    unknown = "kubelet of node node-a: the CPU use of pods is unknown: "
    async with metering(folder, port) as meters:
        async with asyncio.timeout(60):
            while f"{unknown}status 401: Unauthorized" not in caplog.messages:
                assert meters.read(PODS) == {"a@w": None}
                await asyncio.sleep(0.005)
        for _ in range(20):
            meters.read(PODS)
            await asyncio.sleep(0.01)
    told = caplog.messages  # a busy machine's kubelet may be too slow in between
    assert all(later != earlier for earlier, later in pairwise(told))
    assert set(told) <= {f"{unknown}status 401: Unauthorized", f"{unknown}no answer in time"}
