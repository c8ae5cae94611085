"""Faults of `roma up`, such as a port that another program has, name the key."""

import asyncio
import contextlib
import socket

import pytest
import yaml

from roma.config import schema
from roma.config.placement import executables
from roma.deploy.config_snapshot import write
from roma.deploy.model_servers import model_server
from roma.deploy.up import Deployment, _check_ports, deployed
from roma.domain.errors import LaunchError
from roma.tools.demo.ports import free_ports
from supervisor.live import app

FILE = """
models: {{m: {{path: /nowhere, sla: {{response_time: 1}}}}}}
workers:
- {{name: a, cores: 1, sockets: /nowhere}}
- {{name: b, cores: 1, sockets: /nowhere}}
gateway: {{port: {0}, admin_port: {1}, grpc_port: {2}, processes: {processes}}}
control: {{port: {3}}}
"""
KEYS = ["gateway.port", "gateway.admin_port", "gateway.grpc_port", "control.port", "control.port"]


@contextlib.contextmanager
def listening(port):
    """Another program at the port."""
    with socket.socket() as other:
        # As the dispatchers of another deployment: the kernel would let ours share it.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # another test's, in TIME_WAIT
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


async def refuses(config, key, port):
    """A deployment names the key, its value and the reason."""
    named = f"^{key} = {port}: cannot listen on .*: address already in use$"
    with listening(port), pytest.raises(LaunchError, match=named):
        async with deployed(config):
            pass


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("taken", range(5))
async def test_a_taken_port_is_named_before_anything_starts(taken, processes):
    ports = free_ports(5)
    config = schema.parse(FILE.format(*ports, processes=processes))
    await refuses(config, KEYS[taken], ports[taken])


@pytest.mark.parametrize("taken", ["process_port", "exchange_port", "metrics_port", "admin_port"])
async def test_each_port_of_the_gateway_is_named_by_its_own_key(taken):
    *first, exchange, metrics, process = free_ports(8)
    document = yaml.safe_load(FILE.format(*first, processes=1))
    if taken == "process_port":
        document["gateway"] |= {"processes": 2, "process_port": process}
    else:
        document["gateway"] |= {"exchange_port": exchange, "metrics_port": metrics}
    config = schema.parse(yaml.safe_dump(document))
    await refuses(config, f"gateway.{taken}", getattr(config.gateway, taken))


LOCAL = """
models: {{m: {{path: /nowhere, sla: {{response_time: 1}}}}}}
workers: [{{name: a, cores: 1, base_port: {4}, grpc_offset: 1}}]
gateway: {{port: {0}, admin_port: {1}, grpc_port: {2}}}
control: {{port: {3}}}
"""


@pytest.mark.parametrize(("offset", "key"), [(0, "base_port"), (1, r"base_port \+ grpc_offset")])
async def test_a_model_server_of_another_deployment_answers_no_request_of_ours(offset, key):
    ports = free_ports(6)
    config = schema.parse(LOCAL.format(*ports))
    await refuses(config, rf"workers\.a\.{key}", ports[4] + offset)


async def test_a_model_that_comes_later_gets_no_port_of_another_deployment(tmp_path):
    ports = free_ports(9)
    document = yaml.safe_load(LOCAL.format(*ports))
    del document["workers"][0]["grpc_offset"], document["gateway"]["grpc_port"]
    config = schema.parse(yaml.safe_dump(document))
    deployment = Deployment(config, tmp_path / "roma.yaml", None, None)
    document["models"]["n"] = document["models"]["m"]
    named = rf"^workers\.a\.base_port = {ports[5]}: cannot listen on .*: address already in use$"
    with listening(ports[5]), pytest.raises(LaunchError, match=named):
        await deployment.follow(schema.parse(yaml.safe_dump(document)))
    assert deployment.config is config  # nobody was told, so nobody sends it a request


def test_a_family_of_addresses_that_the_kernel_lacks_is_left_to_the_programs(monkeypatch):
    """`localhost` has an IPv6 address also where the kernel was started without IPv6."""
    config = schema.parse(FILE.format(*free_ports(4), processes=1))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(999, 1, 0, "", ("::1", 1))])
    _check_ports(config)


async def test_the_nodes_of_a_cluster_have_one_supervisor_and_no_port_is_taken_twice(tmp_path):
    nodes = [{"name": n, "backend": "kubernetes", "cores": 1, "node": n} for n in "ab"]
    document = yaml.safe_load(FILE.format(*free_ports(4), processes=1))
    for workers, names in [
        (nodes, ["supervisor"]),
        (document["workers"], ["supervisor.a", "supervisor.b"]),
    ]:
        config = schema.parse(yaml.safe_dump(document | {"workers": workers}))
        deployment = Deployment(config, tmp_path / "roma.yaml", None, None)
        assert [child.name for child in deployment.supervisors] == names


async def test_a_machine_without_room_for_files_is_one_line(monkeypatch):
    def full(**_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("roma.deploy.up.TemporaryDirectory", full)
    config = schema.parse(FILE.format(*free_ports(5), processes=1))
    with pytest.raises(LaunchError, match="TMPDIR: no directory can be made: "):
        async with deployed(config):
            pass


def test_a_directory_of_sockets_that_cannot_be_made_is_named_with_its_worker(tmp_path):
    (tmp_path / "file").touch()
    document = yaml.safe_load(FILE.format(*free_ports(4), processes=1))
    document["workers"] = [{"name": "a", "cores": 1, "sockets": f"{tmp_path}/file/s"}]
    config = schema.parse(yaml.safe_dump(document))
    (executable,) = executables(config)
    named = f"^workers.a.sockets = {tmp_path}/file/s: cannot be made: Not a directory$"
    with pytest.raises(LaunchError, match=named):
        model_server(executable, None, config.gateway.max_body_bytes, None)


def test_workers_of_a_cluster_share_a_supervisor_beside_others(roma, monkeypatch, tmp_path):
    """If each had one, all would listen at one port."""
    node = {"cores": 1, "backend": "kubernetes"}
    document = yaml.safe_load(FILE.format(*free_ports(4), processes=1))
    document["workers"] += [{"name": n, "node": f"node-{n}", **node} for n in "cd"]
    config = schema.parse(yaml.safe_dump(document))
    write(config, file := tmp_path / "roma.yaml")
    started = []

    async def commands():
        return [child._argv[4:] for child in Deployment(config, file, None, None).supervisors]

    async def run(config, workers, *_, **_options):
        started.append(([w.name for w in workers], config.control_port(workers[0])))

    monkeypatch.setattr(app, "run", run)
    for arguments in asyncio.run(commands()):
        assert roma(*arguments).returncode == 0
    first = config.control.port
    assert sorted(started) == [(["a"], first), (["b"], first + 1), (["c", "d"], first + 2)]
