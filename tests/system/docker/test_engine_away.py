"""`roma up` under load while its engine hangs, dies and comes back: an engine of the tests' own."""

import asyncio
import signal

import pytest

from roma.config.placement import executables
from supervisor.broker.broker import safe_shares
from tests.support.containers import DockerUp, two_models
from tests.support.up import kill

BODIES = {model: [b'{"instances": [1]}'] for model in "ab"}
LOAD = {"a": 30, "b": 1}

anywhere = pytest.mark.parametrize("file", ["here", "elsewhere"], indirect=True)


@pytest.fixture
def file(request, tmp_path, host, worker_image):
    """A deployment on that engine: as on this host, or as on another one."""
    engine = {"host": host.url}
    if getattr(request, "param", "here") == "elsewhere":
        # On another host there would be no cgroup files to read.
        nothing = {"cgroup_root": str(tmp_path / "model")}
        engine = {"host": host.tcp, "tls": str(host.tls / "client"), **nothing}
    # Quotas have to move all the time: `pi` follows the noise of response times.
    control = {"law": "pi"}
    return two_models(
        tmp_path, "away", worker_image, address=host.address, control=control, **engine
    )


class Watched(DockerUp):
    """It notes what is said from some moment on."""

    def mark(self):
        self._marked = len(self.log.read_text())

    def said(self, text):
        """How many lines have it since then."""
        return sum(text in line for line in self.log.read_text()[self._marked :].splitlines())

    async def control_goes_on(self, changes):
        """Quotas move again, within five ticks of the engine's return, which is now."""
        returned = self.state["ticks"]
        await self.until(lambda: self.executable("a")["changes"] > changes)
        assert self.state["ticks"] <= returned + 5


@anywhere
async def test_a_killed_engine_stops_nothing_but_quotas_until_it_is_back(file, host):
    with Watched(file, host.docker) as up:
        await up.ready()
        a = up.id("a")
        started = {m: up.inspect(m, ".State.StartedAt") for m in "ab"}
        async with up.under_load(LOAD, BODIES):
            await up.until(lambda: up.executable("a")["changes"] > 3)
            up.mark()
            host.kill()
            await up.until(lambda: up.said("executable a@local: ") > 0)
            ticks, quota = up.state["ticks"], up.quota("a", a)
            await up.until(lambda: up.state["ticks"] >= ticks + 5)
            assert up.quota("a", a) == quota
            # Said once for what is set and once for what is read, not once per second.
            assert 1 <= up.said("executable a@local: ") <= 2
            changes = up.executable("a")["changes"]
            await asyncio.to_thread(host.start)
            await up.control_goes_on(changes)
        assert {m: up.inspect(m, ".State.StartedAt") for m in "ab"} == started
        await up.until(lambda: up.quota("a", a) < 0.15)  # idle: given back


@anywhere
async def test_a_hung_engine_leaves_serving_untouched(file, host):
    with Watched(file, host.docker) as up:
        await up.ready()
        async with up.under_load(LOAD, BODIES):
            await up.until(lambda: up.executable("a")["changes"] > 3)
            up.mark()
            with host.hung():
                ticks, missed = up.state["ticks"], up.state["missed_ticks"]
                await up.until(lambda: up.said("executable a@local: ") > 0)
                await up.until(lambda: up.state["ticks"] >= ticks + 5)
                assert up.state["missed_ticks"] <= missed + 1  # the loop waits for nobody
                changes = up.executable("a")["changes"]
            await up.control_goes_on(changes)


async def test_with_engine_and_supervisor_away_safe_shares_come_with_the_engine(file, host):
    with Watched(file, host.docker) as up:
        await up.ready()
        ids = {m: up.id(m) for m in "ab"}
        await up.until(lambda: {up.quota(m, ids[m]) for m in "ab"} == {0.1})
        safe = safe_shares(executables(up.config), up.config.workers[0].allocatable)
        (supervisor,) = up.children(" supervisor ")
        up.mark()
        host.kill()
        kill(supervisor, signal.SIGSTOP)
        try:
            await up.until(lambda: up.said("no safe shares yet") > 0)
            await asyncio.sleep(1)  # four more attempts
            assert {up.quota(m, ids[m]) for m in "ab"} == {0.1}
            host.start()
            await up.until(lambda: all(up.quota(m, ids[m]) == safe[f"{m}@local"] for m in "ab"))
            assert up.said("no word of its supervisor") == up.said("no safe shares yet") == 1
        finally:
            kill(supervisor, signal.SIGCONT)
        await up.until(lambda: {up.quota(m, ids[m]) for m in "ab"} == {0.1})  # believed again


async def test_what_a_dead_engine_keeps_the_next_deployment_takes_over(file, host):
    with Watched(file, host.docker) as up:
        await up.ready()
        ids = {m: up.id(m) for m in "ab"}
        host.kill()
        up.process.send_signal(signal.SIGINT)
        await asyncio.to_thread(up.process.wait, 60)
        assert up.process.returncode == 1
        assert "Traceback" not in up.log.read_text()
        assert "connection refused" in up.tail().splitlines()[-1]
    host.start()
    with DockerUp(file, host.docker) as again:
        await again.ready()
        assert {m: again.id(m) for m in "ab"} == ids
