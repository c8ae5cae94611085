"""The broker on a real engine: what it does, and what it refuses."""

import asyncio
import contextlib
import os
import subprocess
import time

import docker
import pytest
from aiohttp import web

from roma.config import schema as roma_config
from roma.config.workers import DockerConfig
from roma.domain.errors import ActuationError, BrokerRefused, EngineError
from supervisor import cgroups
from supervisor.actuators.docker import DockerActuator
from supervisor.actuators.meters import FileMeters
from supervisor.broker.broker import Broker, safe_shares
from supervisor.broker.engine import NotFound, connected
from supervisor.cgroups import container_group, container_hierarchy
from tests.support.served import served
from tests.support.up import write_config


class Stage:
    """A worker's broker in this process, with a clock that the test sets."""

    def __init__(self, config, engine):
        self.config = config
        (self.worker,) = config.workers
        self.engine = engine
        self.now = 0.0
        self.broker = Broker(config, self.worker, engine, lambda: self.now)

    def named(self, model):
        return f"{model}@{self.worker.name}"

    async def id(self, model):
        return (await self.broker.containers())[self.named(model)].id

    async def group(self, model):
        """The container's cgroup; the kernel has it as soon as the container runs."""
        async with asyncio.timeout(10):
            while True:
                found = container_group(container_hierarchy(), await self.id(model), 0.1)
                if found is not None:
                    return found
                await asyncio.sleep(0.05)


@pytest.fixture
async def stage(tmp_path, standin_image):
    """Open a stage for models `a` and `b`; whatever the test made is removed."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_stage(image=standin_image, names=("a", "b"), most=1.4, **docker):
            directory = tmp_path / "model"
            directory.mkdir(exist_ok=True)
            docker = {"server": "roma", "image": image, **docker}
            file = write_config(
                tmp_path,
                dict.fromkeys(names, directory),
                name=f"broker-{os.getpid()}",
                worker={"backend": "docker", "docker": docker},
                most=most,
            )
            config = roma_config.load(file)
            engine = await stack.enter_async_context(connected(config.workers[0].containers))
            stage = Stage(config, engine)
            for name in stage.broker.executables:
                stack.push_async_callback(stage.broker.remove, name)
            return stage

        yield open_stage


@pytest.mark.parametrize("cores", [0.2, 0.5, 1.0, 1.5])
async def test_a_quota_really_changes_what_a_container_uses(stage, burner_image, cores):
    s = await stage(burner_image, ["a"], most=1.5)
    await s.broker.create("a@local")
    group = await s.group("a")
    granted = (await s.broker.grant({"a@local": cores}))["a@local"]
    assert granted == pytest.approx(cores, abs=0.001)
    assert group.read().cores == granted
    assert group.read().burst == pytest.approx(1.0)
    await asyncio.sleep(0.5)  # until what was saved up is spent
    # The kernel's own counters; a busy machine may give less, and then it throttles nothing.
    for _ in range(30):
        before, start = group.read(), time.monotonic()
        await asyncio.sleep(2)
        after, end = group.read(), time.monotonic()
        used = (after.usage - before.usage) / (end - start)
        assert used <= 1.05 * cores
        if used >= 0.95 * cores:
            break
    assert used >= 0.95 * cores or after.throttled == before.throttled


async def test_all_containers_of_a_tick_are_set_at_once(stage):
    s = await stage()
    await asyncio.gather(*(s.broker.create(name) for name in s.broker.executables))
    wanted = {"a@local": 0.3, "b@local": 1.1}
    assert await s.broker.grant(wanted) == wanted
    for model, cores in (("a", 0.3), ("b", 1.1)):
        assert (await s.group(model)).read().cores == cores


async def test_the_docker_package_and_our_own_calls_see_the_same_container(stage):
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    await s.broker.grant({"a@local": 0.35})
    with contextlib.closing(docker.APIClient(s.worker.containers.host)) as client:
        found = client.inspect_container(await s.id("a"))
    assert found["HostConfig"]["CpuQuota"] == 0.35 * found["HostConfig"]["CpuPeriod"]
    mine = await s.engine.inspect(found["Name"].lstrip("/"))
    assert mine["Id"] == found["Id"]
    assert mine["HostConfig"] == found["HostConfig"]


async def test_of_two_changes_at_once_the_later_one_stands(stage):
    """A burst that comes back between another change's burst and quota would be its refusal."""
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    group = await s.group("a")
    for _ in range(10):
        both = s.broker.grant({"a@local": 1.0}), s.broker.grant({"a@local": 0.1})
        assert await asyncio.gather(*both) == [{"a@local": 1.0}, {"a@local": 0.1}]
        found = group.read()
        assert (found.cores, found.burst) == (0.1, pytest.approx(1.0))


async def test_of_many_changes_at_once_a_slow_engine_is_asked_for_the_last(stage, monkeypatch):
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    update, asked = s.engine.update_quota, []

    async def slow(container, **quota):
        asked.append(quota["quota_us"])
        await asyncio.sleep(0.3)
        await update(container, **quota)

    monkeypatch.setattr(s.engine, "update_quota", slow)
    grants = [s.broker.grant({"a@local": cores}) for cores in (1.0, 0.5, 0.4, 0.3)]
    *_, last = [found["a@local"] for found in await asyncio.gather(*grants)]
    assert (last, (await s.group("a")).read().cores) == (0.3, 0.3)
    assert len(asked) == 2


async def test_the_burst_follows_a_container_s_quota_up_and_down(stage):
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    group = await s.group("a")
    assert group.read().burst == 0.0  # the engine's API has none
    for cores in (0.3, 1.2, 0.1, 0.7):
        assert await s.broker.grant({"a@local": cores}) == {"a@local": cores}
        assert (group.read().cores, group.read().burst) == (cores, pytest.approx(1.0))


async def test_where_the_cgroup_files_cannot_be_written_quotas_move_without_burst(
    stage, monkeypatch, caplog
):
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    group = await s.group("a")

    def refuse(path, text):
        raise ActuationError(f"{path}: writing {text}: Read-only file system")

    monkeypatch.setattr(cgroups, "_write", refuse)
    for cores in (0.3, 0.6):
        assert await s.broker.grant({"a@local": cores}) == {"a@local": cores}
    assert (group.read().cores, group.read().burst) == (0.6, 0.0)
    assert sum("bursts are not" in r.message for r in caplog.records) == 1


async def test_a_burst_that_cannot_be_lowered_stops_only_the_quotas_below_it(stage, monkeypatch):
    s = await stage(names=["a"])
    await s.broker.create("a@local")
    group = await s.group("a")
    assert await s.broker.grant({"a@local": 0.5}) == {"a@local": 0.5}

    def refuse(path, text):
        raise ActuationError(f"{path}: writing {text}: Read-only file system")

    monkeypatch.setattr(cgroups, "_write", refuse)
    assert await s.broker.grant({"a@local": 0.8}) == {"a@local": 0.8}
    (refused,) = (await s.broker.grant({"a@local": 0.3})).values()
    assert isinstance(refused, ActuationError)  # the kernel's own word
    assert group.read().cores == 0.8


async def test_what_is_asked_for_must_be_known_and_within_bounds(stage):
    s = await stage()
    await s.broker.create("a@local")
    results = await s.broker.grant({"a@local": 1.41, "b@local": 0.5, "other@local": 0.5})
    assert "cores = 1.41: must be in [0.1, 1.4]" in str(results["a@local"])
    assert isinstance(results["b@local"], NotFound)  # never made
    assert "executable = other@local: must be one of a@local, b@local" in str(
        results["other@local"]
    )
    assert (await s.group("a")).read().cores == 0.7  # as it was made
    (low,) = (await s.broker.grant({"a@local": 0.05})).values()
    assert "must be in [0.1" in str(low)


def run_docker(*argv):
    return subprocess.run(["docker", *argv], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def foreign(standin_image):
    """Make a container behind the broker's back, by its name; return a function that does."""
    made = []

    def make(name, *options):
        run_docker("run", "-d", "--name", name, *options, standin_image)
        made.append(name)

    yield make
    for name in made:
        subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)


async def test_a_foreign_container_of_the_right_name_is_left_alone(stage, foreign):
    s = await stage()
    name = s.broker.executables["a@local"].container
    foreign(name)
    for call in (s.broker.create, s.broker.remove):
        with pytest.raises(BrokerRefused, match=r"label roma.managed = None: must be broker-"):
            await call("a@local")
    (result,) = (await s.broker.grant({"a@local": 0.5})).values()
    assert isinstance(result, BrokerRefused)
    assert "running" in run_docker("inspect", "-f", "{{.State.Status}}", name)


async def test_a_container_made_with_cpus_is_refused_with_a_reason(stage, foreign):
    s = await stage()
    labels = {
        "roma.managed": s.config.name,
        "roma.worker": "local",
        "roma.executable": "a@local",
    }
    options = [f"--label={key}={value}" for key, value in labels.items()]
    foreign(s.broker.executables["a@local"].container, "--cpus=0.5", *options)
    (result,) = (await s.broker.grant({"a@local": 0.7})).values()
    assert "made with --cpus (NanoCpus): its quota cannot be changed" in str(result)


async def test_a_container_is_kept_while_it_is_what_roma_yaml_asks_for(stage):
    s = await stage()
    await s.broker.create("a@local")
    first = await s.id("a")
    await s.broker.create("a@local")
    assert await s.id("a") == first
    changed = await stage(cpuset="0")
    await changed.broker.create("a@local")
    second = await changed.id("a")
    assert second != first
    assert run_docker("inspect", "-f", "{{.HostConfig.CpusetCpus}}", second).strip() == "0"


async def test_silence_beyond_the_lease_means_safe_shares(stage):
    s = await stage()
    await asyncio.gather(*(s.broker.create(name) for name in s.broker.executables))
    safe = safe_shares(s.broker.executables.values(), s.worker.allocatable)
    assert safe == pytest.approx({"a@local": 0.7, "b@local": 0.7})
    await s.broker.grant({"a@local": 0.1, "b@local": 0.2})
    groups = {name: await s.group(name[0]) for name in safe}
    watching = asyncio.create_task(s.broker.watch_lease())
    try:
        s.now = 2.9
        await asyncio.sleep(0.6)
        assert groups["a@local"].read().cores == 0.1  # the lease is three seconds
        s.now = 3.1
        async with asyncio.timeout(10):
            while any(groups[name].read().cores != safe[name] for name in safe):
                await asyncio.sleep(0.05)
        await s.broker.grant({"a@local": 0.1})
        await asyncio.sleep(0.6)
        assert groups["a@local"].read().cores == 0.1  # who controls again is believed
    finally:
        watching.cancel()


async def test_the_actuator_reads_the_kernel_and_finds_a_container_made_anew(stage):
    s = await stage()
    meters = FileMeters(s.broker, container_hierarchy(), ["a@local"], period=0.1)
    actuator = DockerActuator(s.broker, meters, timeout=5)

    async def cores():
        async with asyncio.timeout(10):
            while (found := (await actuator.read())["a@local"]) is None:
                await asyncio.sleep(0.05)
        return found.cores

    assert await actuator.read() == {"a@local": None}  # nothing there yet, and nothing blocks
    await s.broker.create("a@local")
    assert await cores() == 0.7
    assert await actuator.apply({"a@local": 0.4}) == {"a@local": 0.4}
    assert await cores() == 0.4
    await s.broker.remove("a@local")
    (gone,) = (await actuator.apply({"a@local": 0.3})).values()
    assert isinstance(gone, ActuationError)
    await s.broker.create("a@local")
    async with asyncio.timeout(10):
        while await cores() != 0.7:
            await asyncio.sleep(0.05)
    assert await actuator.apply({"a@local": 0.6}) == {"a@local": 0.6}


async def test_an_engine_that_is_not_there_is_named(tmp_path):
    docker = DockerConfig(host=f"unix://{tmp_path}/none.sock")
    async with connected(docker) as engine:
        with pytest.raises(ActuationError, match=r"none\.sock: GET /version: no such file"):
            await engine.containers({})
        with pytest.raises(ActuationError, match=r"none\.sock: GET /containers/a/json: no such"):
            await engine.inspect("a")


@contextlib.asynccontextmanager
async def answering(path, answer):
    """Connect to an engine that answers every call so."""
    async with (
        served(web.route("*", "/{path:.*}", answer), path=path),
        connected(DockerConfig(host=f"unix://{path}")) as engine,
    ):
        yield engine


ODD_ANSWERS = [
    "null",
    "<html>",
    "{}",
    '[{"Id": "x", "Na',
    b"\xff\xfe",
    '[{"Id": "x", "Labels": null}]',
]


@pytest.mark.parametrize("odd", ODD_ANSWERS, ids=repr)
async def test_an_answer_that_is_no_engine_s_is_one_line(tmp_path, odd):
    async def answer(request):
        if request.path == "/version":
            return web.json_response({"ApiVersion": "1.41"})
        return web.Response(body=odd, content_type="application/json")

    file = write_config(tmp_path, {"a": tmp_path}, name="odd", worker={"backend": "docker"})
    config = roma_config.load(file)
    async with answering(tmp_path / "odd.sock", answer) as engine:
        broker = Broker(config, config.workers[0], engine, time.monotonic)
        for call in (broker.containers(), engine.create("a", {}), broker.create("a@local")):
            with pytest.raises(EngineError, match="answered, but not as an engine does"):
                await call
        assert isinstance((await broker.grant({"a@local": 0.3}))["a@local"], EngineError)


@pytest.mark.parametrize(
    ("version", "pulled"),
    [("1.12", b""), ("abc", b""), (None, b""), ("1.41", b"no JSON"), ("1.41", None)],
)
async def test_a_version_or_a_pull_that_is_odd_is_one_line(tmp_path, version, pulled):
    async def answer(request):
        if request.path == "/version":
            return web.json_response({"ApiVersion": version})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"status": "begun"}\r\n' if pulled is None else pulled)
        if pulled is None:  # the engine is restarted
            request.transport.abort()
        return response

    async with answering(tmp_path / "odd.sock", answer) as engine:
        with pytest.raises(EngineError, match="engine unix://"):
            await engine.pull("a/b:1")
