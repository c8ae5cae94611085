"""Programs that `roma up` starts import nothing from the directory in which it was started."""

import asyncio

import aiohttp
import pytest

from roma.config import schema
from roma.config.placement import executables
from roma.deploy.model_servers import model_server
from roma.deploy.up import deployed
from roma.tools.demo.ports import free_ports
from tests.support.waiting import until

FILE = """
models: {{m: {{path: /nowhere, sla: {{response_time: 1}}}}}}
workers: [{worker}]
gateway: {{port: {0}, admin_port: {1}}}
control: {{port: {2}}}
"""
STATIC = "{backend: static, cores: 1, executables: [{url: 'http://127.0.0.1:1', model: m}]}"


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A file that a module of a working directory makes when a program takes it for PyYAML."""
    (tmp_path / "yaml.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "imported"


async def test_dispatcher_and_supervisor(imported):
    config = schema.parse(FILE.format(*free_ports(3), worker=STATIC))
    urls = [config.gateway.admin_url, *config.supervisor_urls.values()]

    async def answers(session, url):
        try:
            async with session.get(f"{url}/healthz") as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    async with asyncio.timeout(60), deployed(config), aiohttp.ClientSession() as session:
        for url in urls:
            while not imported.exists() and not await answers(session, url):
                await asyncio.sleep(0.05)
    assert not imported.exists()


async def test_model_servers(imported, tmp_path):
    config = schema.parse(FILE.format(*free_ports(3), worker="{cores: 1}"))
    (executable,) = executables(config)
    child = model_server(executable, None, config.gateway.max_body_bytes, tmp_path)
    child.start()
    try:
        await until(lambda: child.trouble)
    finally:
        await child.stop()
    assert not imported.exists()
    assert "/nowhere" in child.trouble
