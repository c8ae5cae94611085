"""`roma supervisor`: one worker's supervisor as a program."""

import asyncio
import logging
import signal
from collections import Counter

from aiohttp import ClientSession, web

from controllers import registry
from roma.config import Config, WorkerConfig
from roma.errors import ActuationNotPermitted, LaunchError
from roma.model import Device
from roma.placement import Executable, executables, on_worker
from supervisor.actuators.base import Actuator
from supervisor.actuators.cgroup import CgroupActuator, find_hierarchy
from supervisor.actuators.recording import RecordingActuator
from supervisor.core import Managed, Supervisor
from supervisor.live import api
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

log = logging.getLogger(__name__)


def build_core(config: Config, worker: WorkerConfig) -> Supervisor:
    """Return the core that a configuration describes for one worker."""
    sharing = Counter(
        model for e in executables(config) if e.spec.device is Device.CPU for model in e.spec.models
    )
    specs = {spec.name: spec for spec in config.model_specs}
    managed = [
        Managed(
            name=e.name,
            model=specs[e.spec.models[0]],
            minimum=e.min_cores,
            maximum=min(e.max_cores, worker.allocatable),
            initial=e.spec.cores,
            workers=sharing[e.spec.models[0]],
        )
        for e in controlled(config, worker)
    ]
    control = config.control
    law = registry.build(control.law, control.gains)
    return Supervisor(managed, law, capacity=worker.allocatable, gamma=control.gamma)


def controlled(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of a worker whose cores can be set."""
    return [e for e in on_worker(config, worker) if e.cgroup is not None]


def build_actuator(config: Config, worker: WorkerConfig) -> tuple[Actuator, str]:
    """Return the best actuator that is permitted here, and the mode it means."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return RecordingActuator(), f"observe-only: {error}"
    actuator = CgroupActuator(
        {
            e.name: hierarchy.group(e.cgroup, config.control.cfs_period)
            for e in controlled(config, worker)
            if e.cgroup is not None
        }
    )
    if config.control.dry_run:
        return RecordingActuator(actuator), "dry-run"
    return actuator, "control"


async def run(config: Config, worker: WorkerConfig) -> None:
    """Control until SIGTERM or SIGINT; the last allocation stands afterwards."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    actuator, mode = build_actuator(config, worker)
    control, port = config.control, config.control_port(worker)
    async with ClientSession() as session:
        # Half a period: a late answer must not delay the tick after it.
        peers = [Peer(session, url, control.period / 2) for url in config.dispatcher_urls]
        loop = ControlLoop(
            build_core(config, worker), actuator, peers, worker=worker.name, period=control.period
        )
        runner = web.AppRunner(
            api.application(loop, worker=worker.name, mode=mode), access_log=None
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, control.host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise LaunchError(
                f"control.port = {port}: cannot listen on {control.host}: {error}"
            ) from error
        log.info(
            "supervisor of worker %s controls %s cores (%s)", worker.name, worker.allocatable, mode
        )
        ticking = asyncio.create_task(loop.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([ticking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if ticking.done():
            ticking.result()  # a bug ended the loop: let it be seen, and the launcher restart us
        ticking.cancel()
        await runner.cleanup()
