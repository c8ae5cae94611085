"""`nodeSelector`: nodes that come and go are workers, for the dispatcher and for one supervisor."""

import asyncio
import contextlib
import json
import logging
import math
from pathlib import Path

import pytest
import yaml

from dispatcher.live import app as dispatcher_app
from roma.config import schema
from roma.config.placement import executables
from roma.config.sources import Sources, fixed
from roma.domain.errors import ConfigError
from roma.kubernetes.client import ApiServerError, Client
from roma.tools.demo.ports import free_ports
from supervisor.claims import Claims
from supervisor.core import DECISIONS_IN_ALL
from supervisor.live import actuation
from supervisor.live import app as supervisor_app
from supervisor.live.actuation import ActuationContext, learn_late, prepare
from supervisor.live.worker_set import controlling
from tests.protocol.gateway.conftest import FakeModelServer, GatewayHarness
from tests.support.fake_api_server import pod
from tests.support.kubeconfig import kubeconfig_of
from tests.support.waiting import beside, until

FILE = """
models: {{m: {{sla: {{response_time: 1}}, cpu: {{min: 0.1}}}}}}
workers:
- name: pool
  backend: kubernetes
  nodeSelector: {{disk: ssd}}
  cores: 4
  kubernetes: {{namespace: models, port: {port}, kubeconfig: {kubeconfig}}}
gateway: {{port: {gateway}, admin_port: {admin}}}
control: {{port: {control}, period: 0.2, host: 127.0.0.1}}
"""


@pytest.fixture
def config(cluster, tmp_path):
    """A file with one pool, whose API server is the fake."""
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig_of(cluster.api.url)))
    names = ("port", "gateway", "admin", "control")
    ports = dict(zip(names, free_ports(4), strict=True))
    text = FILE.format(kubeconfig=tmp_path / "kubeconfig", **ports)
    return schema.parse(text)


@pytest.fixture
async def pool(config):
    """Sources of the file that are followed; `applied` is what they say now."""
    sources = Sources(config)
    async with beside(sources.follow(ignored)):
        yield lambda: sources.applied(config).workers


async def ignored():
    pass


async def test_each_node_with_the_labels_is_a_worker_with_its_pods(cluster, pool, config):
    api = cluster.api
    api.put(pod("a-1", node="node-a"), "ADDED")
    api.put(pod("b-1", node="node-b"), "ADDED")
    api.put_node("node-b", disk="ssd")
    api.put_node("node-a", disk="ssd")
    api.put_node("node-c", disk="hdd")
    await until(lambda: [w.name for w in pool()] == ["pool", "node-a", "node-b"])
    entry, a, b = pool()
    assert (entry.executables, a.node, a.entry, a.cores) == ((), "node-a", "pool", 4)
    assert [e.name for e in a.executables + b.executables] == ["a-1", "b-1"]
    api.delete_node("node-a")
    await until(lambda: [w.name for w in pool()] == ["pool", "node-b"])
    assert list(fixed(config)) == list(fixed(config.model_copy(update={"workers": pool()})))


async def test_a_pod_that_moves_is_its_new_nodes(cluster, pool):
    api = cluster.api
    for name in ("node-a", "node-b"):
        api.put_node(name, disk="ssd")
    api.put(pod("p", node="node-a"), "ADDED")
    await until(lambda: len(pool()) == 3 and [e.name for e in pool()[1].executables] == ["p"])
    api.delete("p")
    api.put(pod("p", node="node-b"), "ADDED")
    await until(lambda: [e.name for e in pool()[2].executables] == ["p"])
    assert pool()[1].executables == ()


async def test_what_matches_nothing_is_said_once(cluster, pool, caplog):
    caplog.set_level(logging.WARNING)
    cluster.api.put(pod("p", node="node-x"), "ADDED")
    await until(lambda: "node-x" in caplog.text)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "pod p is on node node-x, which lacks the labels disk=ssd",
        "workers.pool.nodeSelector = disk=ssd: no node has these labels",
    ]


async def test_a_namespace_without_such_pods_is_named_and_rights_that_lack_with_their_key(
    cluster, pool, caplog
):
    await until(lambda: "no pod on" in caplog.text)
    assert (
        "workers.pool.kubernetes.selector = roma.dev/managed=true: no pod on the nodes with disk=ssd "
        "in namespace models has these labels"
    ) in [record.getMessage() for record in caplog.records]
    cluster.api.down_code, cluster.api.is_down = 403, True
    cluster.api.forget()
    said = f"{cluster.api.url}: status 403: the fake is down; what is known"
    lines = [f"workers.pool.{key}: {said}" for key in ("kubernetes", "nodeSelector")]
    await until(lambda: all(line in caplog.text for line in lines))


def with_entries(config, *more):
    """Return a configuration with more entries like its only one."""
    (pool,) = config.workers
    others = [pool.model_copy(update=changes) for changes in more]
    return config.model_copy(update={"workers": (pool, *others)})


async def test_a_node_is_one_workers(cluster, config, caplog):
    """That of the entry that names it, else of the first that matches it; also when labels come."""
    named = {"name": "named", "nodeSelector": None, "node": "node-a"}
    other = {"name": "other", "nodeSelector": {"zone": "b"}}
    config = with_entries(config, named, other)
    api = cluster.api
    api.put(pod("a-1", node="node-a"), "ADDED")
    for node, labels in (
        ("node-a", {"disk": "ssd"}),
        ("node-b", {"disk": "ssd", "zone": "b"}),
        ("node-c", {"zone": "b"}),
        ("other", {"disk": "ssd"}),
    ):
        api.put_node(node, **labels)
    sources = Sources(config)
    async with beside(sources.follow(ignored)):

        def found():
            return [(w.name, w.entry) for w in sources.applied(config).workers[3:]]

        await until(lambda: found() == [("node-b", "pool"), ("node-c", "other")])
        workers = sources.applied(config).workers
        await until(lambda: [e.name for e in sources.applied(config).workers[1].executables])
        assert len({e.name for w in workers for e in w.executables}) <= 1
        api.put_node("node-c", zone="b", disk="ssd")
        await until(lambda: found() == [("node-b", "pool"), ("node-c", "pool")])
    said = {r.getMessage() for r in caplog.records}
    assert {
        "workers.pool: node node-a is another worker's",
        "workers.other: node node-b is another worker's",
        "workers.pool: node other is another worker's",
    } <= said


@pytest.mark.parametrize(
    ("limits", "cores", "said"),
    [
        ({"min": {"cpu": "300m"}, "max": {"cpu": "2"}}, (0.3, 2.0), []),
        (
            {"max": {"cpu": "50m"}},
            (0.05, 0.05),
            ["models.m.cpu.min = 0.1: must be ≤ 50m (LimitRange r)"],
        ),
    ],
)
async def test_limit_ranges_bound_what_the_core_may_give(
    cluster, config, caplog, limits, cores, said
):
    api = cluster.api
    bound = {"type": "Container", **limits}
    api.limit_ranges.append({"metadata": {"name": "r"}, "spec": {"limits": [bound]}})
    api.put_node("node-a", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    config = with_entries(config, {"name": "other", "nodeSelector": {"zone": "b"}})
    sources = Sources(config)
    await prepare(config, sources)
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == said
    async with beside(sources.follow(ignored)):
        await until(lambda: len(executables(sources.applied(config))) == 1)
        (found,) = executables(sources.applied(config))
    assert (found.min_cores, found.max_cores) == cores
    assert found.spec.most_cores == found.max_cores


async def test_limit_ranges_that_could_not_be_read_at_the_start_are_read_later(
    cluster, config, monkeypatch, caplog
):
    monkeypatch.setattr("supervisor.live.actuation.LEARN_AGAIN", 0.02)
    api, get, answers = cluster.api, Client.get, []

    async def away(client, path, *arguments, **query):
        if path.endswith("limitranges"):
            answers.append(path)
            if len(answers) < 4:
                raise ApiServerError("not reachable")
        return await get(client, path, *arguments, **query)

    monkeypatch.setattr(Client, "get", away)
    bound = {"type": "Container", "max": {"cpu": "2"}}
    api.limit_ranges.append({"metadata": {"name": "r"}, "spec": {"limits": [bound]}})
    api.put_node("node-a", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    async with supervised(config) as (sources, workers):
        await until(lambda: len(executables(sources.applied(config))) == 1)
        assert executables(sources.applied(config))[0].max_cores == 4
        await until(lambda: set(controlled(workers)) == {"node-a"})
        actuator = workers.controlled[0].loop._actuator
        assert actuator._bounds().most == math.inf
        await learn_late(config, sources)
        assert actuator._bounds().most == 2000  # though it was made before
        api.settle("a-1")  # as after any change
        await until(lambda: executables(sources.applied(config))[0].max_cores == 2)
    assert len(answers) == 4
    assert len([line for line in caplog.messages if "are unknown" in line]) == 1


async def test_what_is_asked_at_the_start_is_asked_for_all_nodes_at_once(
    cluster, config, monkeypatch
):
    """Else a supervisor of 20 nodes would not listen in time while the API server is away."""
    asked = asyncio.Barrier(4)

    async def silent(*_, **__):
        await asked.wait()  # for the version and the LimitRanges of both
        raise ApiServerError("not reachable")

    monkeypatch.setattr(Client, "get", silent)
    config = with_entries(config, {"name": "other", "nodeSelector": {"zone": "b"}})
    sources = Sources(config)
    async with asyncio.timeout(10):
        await prepare(config, sources)


async def test_an_api_server_that_cannot_resize_is_known_before_there_are_nodes(
    cluster, config, monkeypatch
):
    monkeypatch.setattr(actuation, "START_LIMIT", 60.0)
    cluster.api.release = {"major": "1", "minor": "32", "gitVersion": "v1.32.9"}
    cluster.api.put_node("node-a", disk="ssd")
    async with supervised(config) as (sources, workers):
        await until(lambda: set(controlled(workers)) == {"node-a"})
        (found,) = workers.controlled
        assert found.mode().startswith("observe-only: API server v1.32.9")


async def test_while_the_api_server_is_away_the_nodes_stay(cluster, pool):
    cluster.api.put_node("node-a", disk="ssd")
    await until(lambda: len(pool()) == 2)
    cluster.api.is_down = True
    cluster.api.forget()
    await until(lambda: cluster.watch.away_since is not None)
    assert [w.name for w in pool()] == ["pool", "node-a"]


@contextlib.asynccontextmanager
async def supervised(config):
    """Yield sources and the workers of a supervisor that follows them; it stands by."""
    sources = Sources(config)
    context = ActuationContext(Claims(), sources)
    await prepare(config, sources)
    async with controlling(["pool"], sources.applied(config), context, lambda _: []) as workers:

        async def switch():
            await workers.switch(sources.applied(config))

        async with beside(sources.follow(switch)):
            yield sources, workers


def controlled(workers):
    """Return the executables of each worker that is controlled."""
    return {w.loop.worker: set(w.loop.core.status) for w in workers.controlled}


async def test_one_supervisor_controls_the_nodes_that_come_and_leaves_those_that_go(
    cluster, config
):
    api = cluster.api
    api.put_node("node-a", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    async with supervised(config) as (_, workers), beside(workers.run()):
        await until(lambda: controlled(workers) == {"node-a": {"a-1@node-a"}})
        (a,) = workers.controlled
        await until(lambda: a.loop.core.status["a-1@node-a"].applied == 1.0)
        api.put_node("node-b", disk="ssd")
        api.put(pod("b-1", node="node-b", limit="2"), "ADDED")
        await until(lambda: controlled(workers).get("node-b") == {"b-1@node-b"})
        b = workers.controlled[1]
        await until(lambda: b.loop.core.status["b-1@node-b"].applied == 2.0)
        assert controlled(workers)["node-a"] == {"a-1@node-a"}
        api.delete_node("node-a")
        await until(lambda: set(controlled(workers)) == {"node-b"})
        ticks = b.loop.ticks
        await until(lambda: b.loop.ticks > ticks + 1)


async def test_the_decisions_of_all_nodes_together_are_bounded(cluster, config):
    """Else a supervisor of hundreds of pods on as many nodes would need a gigabyte."""
    async with supervised(config) as (_, workers):
        for count in (1, 50, 40):
            for node in range(50):
                name = f"node-{node}"
                if node < count and name not in cluster.api.nodes:
                    cluster.api.put_node(name, disk="ssd")
                elif node >= count and name in cluster.api.nodes:
                    cluster.api.delete_node(name)
            share = DECISIONS_IN_ALL // count
            await until(
                lambda share=share, count=count: (
                    [w.loop.core._kept for w in workers.controlled] == [share] * count
                )
            )


async def test_one_that_stands_by_follows_once_it_leads(cluster, config):
    api = cluster.api
    api.put_node("node-a", disk="ssd")
    async with supervised(config) as (sources, workers):
        await until(lambda: set(controlled(workers)) == {"node-a"})
        api.put(pod("a-1", node="node-a"), "ADDED")
        await until(lambda: sources.applied(config).workers[1].executables)
        api.put_node("node-b", disk="ssd")  # also while it stands by
        await until(lambda: len(workers.controlled) == 2)
        async with beside(workers.run()):
            await until(lambda: controlled(workers)["node-a"] == {"a-1@node-a"})


async def test_a_kubeconfig_that_is_none_is_one_line(config, tmp_path):
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(
        ConfigError, match=r"^workers\.pool\.kubernetes\.kubeconfig: .*cannot be read"
    ):
        async with dispatcher_app.running(config):
            pass


async def test_a_kubeconfig_that_is_none_is_one_line_for_who_takes_part_in_an_election(config):
    (entry,) = config.workers
    pods = entry.pods.model_copy(update={"kubeconfig": Path("/nowhere"), "lease": "l"})
    worker = entry.model_copy(update={"kubernetes": pods})
    with pytest.raises(
        ConfigError, match=r"^workers\.pool\.kubernetes\.kubeconfig: /nowhere: cannot be read"
    ):
        async with supervisor_app._lease(config, worker):
            pass


@pytest.fixture
async def dispatcher(config):
    """A dispatcher of the file, and the model server of all pods."""
    harness = GatewayHarness()
    async with harness.stack:
        server = FakeModelServer(config.workers[0].pods.port)
        harness.backends = [await harness.stack.enter_async_context(server)]
        await harness.serve(config)
        yield harness


def open_to_requests(dispatcher):
    return [e.spec.name for e in dispatcher.core.executors if e.live and not e.suspected]


def present(dispatcher):
    return {e.spec.name for e in dispatcher.core.executors}


async def test_a_long_request_on_a_pod_that_goes_stops_no_discovery(cluster, dispatcher):
    api = cluster.api

    def leave(name):
        api.pods[name]["metadata"]["deletionTimestamp"] = "2026-11-29T11:30:00Z"
        api.put(api.pods[name])

    for node in "ab":
        api.put_node(f"node-{node}", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    await until(lambda: open_to_requests(dispatcher) == ["a-1@node-a"])
    asked = await dispatcher.held()
    api.put(pod("b-1", node="node-b"), "ADDED")
    await until(lambda: open_to_requests(dispatcher) == ["a-1@node-a", "b-1@node-b"])
    leave("a-1")
    await until(lambda: open_to_requests(dispatcher) == ["b-1@node-b"])
    leave("b-1")
    api.put(pod("a-2", node="node-a"), "ADDED")
    await until(lambda: open_to_requests(dispatcher) == ["a-2@node-a"])
    assert "a-1@node-a" in present(dispatcher)
    assert not asked.done()
    dispatcher.backends[0].gate.set()
    assert (await asked)[0] == 200
    await until(lambda: present(dispatcher) == {"a-2@node-a"})


async def test_a_pod_whose_request_moves_is_served_on(cluster, dispatcher):
    """As a VerticalPodAutoscaler moves it, in place."""
    api = cluster.api
    for node in "ab":
        api.put_node(f"node-{node}", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    await until(lambda: open_to_requests(dispatcher) == ["a-1@node-a"])
    asked = await dispatcher.held()
    api.put(pod("a-1", node="node-a", request="150m"))
    api.put(pod("b-1", node="node-b"), "ADDED")
    await until(lambda: "b-1@node-b" in open_to_requests(dispatcher))
    assert open_to_requests(dispatcher) == ["a-1@node-a", "b-1@node-b"]
    dispatcher.backends[0].gate.set()
    assert (await asked)[0] == 200


async def test_the_dispatcher_serves_pods_of_new_nodes_and_knows_their_supervisors(
    cluster, dispatcher
):
    api, control = cluster.api, f"http://127.0.0.1:{dispatcher.loaded.control.port}"

    async def shown():
        view = json.loads((await dispatcher.get("/control/v1/dashboard", dispatcher.admin))[1])
        workers = {w["worker"]: w["url"] for w in view["workers"]}
        return workers, [e["executable"] for m in view["models"] for e in m["executables"]]

    api.put_node("node-a", disk="ssd")
    api.put(pod("a-1", node="node-a"), "ADDED")
    await until(lambda: open_to_requests(dispatcher) == ["a-1@node-a"])
    while await shown() != ({"node-a": control}, ["a-1@node-a"]):
        await asyncio.sleep(0.05)
    assert (await dispatcher.predict())[0] == 200
    # A node that replaces another is served before what runs on the old one has ended.
    asked = await dispatcher.held()
    api.put_node("node-b", disk="ssd")
    api.put(pod("b-1", node="node-b"), "ADDED")
    api.delete("a-1")
    api.delete_node("node-a")
    await until(lambda: "b-1@node-b" in present(dispatcher))
    while (await shown())[0] != {"node-b": control}:
        await asyncio.sleep(0.05)
    assert not asked.done()
    dispatcher.backends[0].gate.set()
    assert (await asked)[0] == 200
    api.delete("b-1")
    api.delete_node("node-b")
    await until(lambda: not present(dispatcher))
    while await shown() != ({}, []):
        await asyncio.sleep(0.05)
