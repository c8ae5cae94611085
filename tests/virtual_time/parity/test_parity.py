"""The same requests through the live asyncio edges and through the simulator: the same decisions.

Live here means the production `Driver` and `ControlLoop` on an event loop in virtual time. Only the
sockets and the kernel are replaced, by the simulator's world.
"""

import asyncio
import struct

import pytest

from dispatcher import reports
from dispatcher.assembly import build_core as build_dispatcher
from dispatcher.live.admin.supervisors import Supervisors
from dispatcher.live.driver import Call, Driver
from dispatcher.live.http.messages import Message, Response, request_template
from roma.config.placement import executables
from roma.config.plant import LoadConfig
from roma.config.schema import Config
from roma.domain.events import CoresNeeded, Execute, ExecutorAdded, Reject
from roma.domain.exchange import QUIET
from roma.lab.sim.loads import send_times
from roma.lab.sim.scenario import Scenario, from_config
from roma.lab.sim.simulation import Simulation
from roma.lab.sim.world import World
from supervisor.assembly import build_core as build_supervisor
from supervisor.live.loop import ControlLoop

SECONDS = 12.0
REQUESTS = 300


def configuration(**scheduling):
    gpus = scheduling.pop("gpus", 0)
    return Config.model_validate(
        {
            "models": {
                "small": {
                    "path": "small",
                    "sla": {"response_time": 0.25, "statistic": "p95"},
                    "profile": {"cost": 0.02, "noise": 0.2, "gpu_time": 0.01},
                },
                "large": {
                    "path": "large",
                    "sla": {"response_time": 0.5},
                    "cpu": {"threads": 2},
                    "profile": {
                        "cost": 0.1,
                        "noise": 0.1,
                        "parallelism": 2.0,
                        "gpu_time": 0.04,
                    },
                },
            },
            "workers": [{"backend": "docker", "cores": 2.0, "gpus": gpus}],
            "scheduling": scheduling,
            "control": {"cfs_period": 0.05},
            "plant": {
                "duration": SECONDS,
                "models": {
                    "small": {"load": {"profile": "15-30-15", "step": 4}},
                    "large": {"load": {"profile": "5-10-5", "step": 4}},
                },
            },
        }
    )


def arrivals(config):
    """Return [(time, model)], ascending, exactly REQUESTS of them."""
    found = []
    for i, (name, plant) in enumerate(config.plant.models.items()):
        assert isinstance(plant.load, LoadConfig)
        found += [(t, name) for t in send_times(plant.load, SECONDS, seed=i)]
    found = sorted(found)[:REQUESTS]
    assert len(found) == REQUESTS
    return found


def simulated(config, plan):
    decisions = []
    base = from_config(config)
    scenario = Scenario(
        config,
        base.profiles,
        {m: iter([t for t, name in plan if name == m]) for m in config.models},
        SECONDS,
    )
    simulation = Simulation(scenario, trace=lambda now, c: decisions.append((now, told(c))))
    sizes = {}
    start = simulation.world.start

    def noting(execution, executor, model, normals):
        (request,) = simulation._running[execution].requests
        sizes[request] = normals[0]
        start(execution, executor, model, normals)

    simulation.world.start = noting
    simulation.run()
    return decisions, sizes


def told(command):
    """What was decided, without numbers that only the driver gives out."""
    match command:
        case Execute():
            return ("execute", command.executor, command.requests)
        case Reject():
            return ("reject", command.request, command.reason)
        case CoresNeeded():
            return ("need", command.model)
        case _:
            return (type(command).__name__, command.executable, round(command.cores, 9))


class LoopAgenda:
    """The world's agenda on an event loop."""

    def __init__(self, loop):
        self.loop = loop
        self.start = loop.time()

    @property
    def now(self):
        return self.loop.time() - self.start

    def at(self, time, act, argument=None):
        self.loop.call_at(self.start + time, act, argument)


class WorldPool:
    """What the driver believes to be a connection pool."""

    def __init__(self, name, live):
        self.name, self.live = name, live

    def send(self, message, done, **kwargs):
        number = self.live.count = self.live.count + 1
        self.live.waiting[number] = done
        model, (size,) = message.template.path.rpartition("/")[2], struct.unpack("d", message.body)
        self.live.world.start(number, self.name, model, [size])
        # nothing is given up here


class Asked(Call):
    def on_outcome(self, outcome):
        pass


class Live:
    """Driver and control loop around the simulated world."""

    url = "virtual"

    def __init__(self, config, sizes):
        loop = asyncio.get_running_loop()
        self.agenda = LoopAgenda(loop)
        self.config, self.sizes, self.decisions = config, sizes, []
        self.count, self.submitted, self.waiting = 0, 0, {}
        profiles = from_config(config).profiles
        self.world = World(config, profiles, self.agenda, self.on_end)
        placed = executables(config)
        core = build_dispatcher(config)
        pools = {e.name: WorldPool(e.name, self) for e in placed}
        self.driver = Driver(core, pools, backend_timeout=60, clock=lambda: self.agenda.now)
        handle = core.handle

        def noting(event, *, now):
            commands = handle(event, now=now)
            self.decisions += [(now, told(c)) for c in commands]
            return commands

        core.handle = noting
        for executable in placed:
            self.driver.handle(ExecutorAdded(executable.spec))
            self.driver.on_ready(executable.name)
        (worker,) = config.workers
        self.supervisors = Supervisors(config)
        self.driver.on_need = self.supervisors.need
        self.loop = ControlLoop(
            build_supervisor(config, worker),
            self,
            [self],
            worker=worker.name,
            period=config.period(worker),
            decides_early=config.decides_early,
        )

    def on_end(self, number):
        self.waiting.pop(number)(Response(200, "application/json", None, b""))

    def submit(self, model):
        self.submitted += 1  # the driver numbers requests alike
        size = self.sizes.get(self.submitted, 0.0)
        self.driver.submit(
            Asked(model, Message(request_template(f"/{model}"), struct.pack("d", size)))
        )

    # Actuator

    async def apply(self, cores):
        for name, wanted in cores.items():
            self.decisions.append((self.agenda.now, ("Apply", name, round(wanted, 9))))
        return {name: self.world.resize(name, wanted) for name, wanted in cores.items()}

    async def read(self):
        return {name: self.world.reading(name) for name in self.loop.core.status}

    # Peer

    async def report(self, worker):
        self.supervisors.heed(worker)
        return reports.reply(self.driver.core, "epoch", self.agenda.now)

    async def needs(self, worker):
        return await self.supervisors.needed(worker, QUIET)

    async def confirm(self, message):
        for reading in message.executors:
            self.driver.on_applied(reading.executor, reading.applied, cost=reading.cost)


# A microsecond, looptime's default resolution, decides about a stall where a request ends within
# one of its quota's end.
@pytest.mark.looptime(resolution=1e-9)
@pytest.mark.parametrize(
    "scheduling", [{}, {"gpus": 1, "spill": 0.2}, {"gpus": 1, "gpu": "edf"}], ids=str
)
async def test_live_and_simulated_decide_alike(scheduling):
    config = configuration(**scheduling)
    plan = arrivals(config)
    expected, sizes = simulated(config, plan)
    live = Live(config, sizes)
    for time, model in plan:
        live.agenda.at(time, live.submit, model)
    ticking = asyncio.create_task(live.loop.run())
    await asyncio.sleep(SECONDS - 1e-3)
    ticking.cancel()
    live.driver.close()
    kinds = {decision[0] for _, decision in expected}
    assert {"execute", "Apply"} <= kinds
    assert ("need" in kinds) == ("gpus" not in scheduling)  # a GPU answers at once
    assert sum(d[0] == "execute" for _, d in expected) > REQUESTS * 0.8
    assert [d for _, d in live.decisions] == [d for t, d in expected if t < SECONDS - 1e-3]
    for (now, _), (then, _) in zip(live.decisions, expected, strict=False):
        assert now == pytest.approx(then, abs=1e-3)
