"""A planned device behind a real gateway: its worker, and a wire between them that is watched."""

import asyncio
import contextlib
import threading
import time

import numpy as np
import yaml

from roma.config import schema
from roma.device.device import DeviceRunner
from roma.device.runtimes.base import RuntimeModel
from roma.device.server import DeviceServer, DeviceServerSettings
from roma.device_protocol import ActionResult, Decoder, Hello, Signature, Submit, TensorSpec, encode
from roma.domain.actions import Infer, Load, ModelCapabilities
from roma.tools.demo.ports import free_ports

PAIR = Signature((TensorSpec("x", "float32", (-1, 2)),), (TensorSpec("y", "float32", (-1, 2)),))
TIMES = {1: 0.02, 2: 0.025, 4: 0.03, 8: 0.035, 16: 0.04}
"""Seconds that a device says it needs: longer than any `ahead`, so that one batch fills it."""


class ScriptedRuntime:
    """Models that double their input; a test holds executions up, or lets them fail."""

    copies = False
    memory = None

    def __init__(self, models):
        self.models = {
            name: RuntimeModel(1, {"serving_default": signature})
            for name, signature in models.items()
        }
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.fault = None
        self.loaded = []
        """Models in the order of their LOADs."""

    def known(self, name):
        return None

    def load(self, name):
        self.loaded.append(name)

    def unload(self, name):
        pass

    def stage(self, name, inputs):
        return inputs

    def execute(self, name, signature, staged):
        self.began.set()
        assert self.gate.wait(60)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        (array,) = staged.values()
        return {"y": array * 2}

    def fetch(self, name, signature, outputs):
        return outputs

    def close(self):
        pass


class Worker:
    """A worker in this process, on a port of its own."""

    def __init__(
        self, port, models=None, *, pages=4, needs=1, token=None, offers=None, runtime=None
    ):
        self.port = port
        self.runtime = runtime or ScriptedRuntime(models or {"m": PAIR, "n": PAIR})
        alike = {name: ModelCapabilities(needs, 0.001, TIMES) for name in self.runtime.models}
        self._offers = offers or alike
        self._pages = pages
        self._token = token

    async def start(self):
        self.device = DeviceRunner(self.runtime, self._offers, self._pages)
        settings = DeviceServerSettings("w", port=self.port, token=self._token)
        self.server = DeviceServer(settings, self.device, dict(self.runtime.models))
        await self.server.start()
        self.device.start()

    async def stop(self):
        if isinstance(self.runtime, ScriptedRuntime):
            self.runtime.gate.set()
        assert await self.server.stop(60.0)


class Tap:
    """Passes frames on, remembers them, and changes, holds or cuts as a test says."""

    def __init__(self, port, device_port):
        self.port, self._behind = port, device_port
        self.asked, self.told, self.hellos = [], [], []
        self.change = lambda message: message
        """What becomes of a message of either side; None: it is lost."""
        self.submits = asyncio.Event()
        """Set while these pass; else they wait, and everything behind them."""
        self.results = asyncio.Event()
        """Set while these pass; else they wait. What is said beside them does not: who says nothing
        for seconds is lost."""
        self.submits.set()
        self.results.set()
        self._tasks = set()
        self._writers = set()

    async def start(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self):
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self):
        """Break every connection, as the end of a process does."""
        for writer in self._writers:
            writer.transport.abort()

    @property
    def infers(self):
        return [m for m in self.asked if isinstance(m.action, Infer)]

    @property
    def loads(self):
        return [m for m in self.asked if isinstance(m.action, Load)]

    async def _accept(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        try:
            behind, back = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        ways = [
            asyncio.ensure_future(self._pass(reader, back)),
            asyncio.ensure_future(self._pass(behind, writer)),
        ]
        self._tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for one in (writer, back):
            one.transport.abort()
            self._writers.discard(one)

    async def _pass(self, reader, writer):
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                for message in decoder.feed(data):
                    if isinstance(message, ActionResult) and not self.results.is_set():
                        self._tasks.add(asyncio.create_task(self._pass_later(message, writer)))
                        continue
                    await self._gate(message)
                    self._write(message, writer)

    async def _pass_later(self, result, writer):
        await self.results.wait()  # tasks that wait wake in the order in which they began to
        await self._gate(result)
        self._write(result, writer)

    def _write(self, message, writer):
        changed = self.change(message)
        if changed is not None:
            writer.writelines(encode(changed))

    async def _gate(self, message):
        if isinstance(message, Submit):
            self.asked.append(message)
            await self.submits.wait()
        elif isinstance(message, ActionResult):
            self.told.append(message)
        elif isinstance(message, Hello):
            self.hellos.append(message)


class PlannedDeployment:
    """A gateway, a tap and perhaps a worker in this process; `harness` is the gateway's."""

    def __init__(self, harness):
        self.harness = harness
        self.worker = None

    async def open(self, *, worker=None, models=("m", "n"), serve=True, **how):
        how = {
            "deadline": 60.0,
            "max_waiting": 100,
            "token": None,
            "gateway": {},
            "policy": "clockwork",
            "model": {},
            **how,
        }
        port, admin, grpc_port, tap, behind = free_ports(5)
        self.tap = Tap(tap, behind)
        self.device_port = behind
        await self.tap.start()
        self.harness.stack.push_async_callback(self.tap.stop)
        if worker is not None:
            await self.start_worker(**worker)
        listed = {"actions": f"127.0.0.1:{tap}", "device": "gpu"}
        if how["token"] is not None:
            listed["token"] = str(how["token"])
        sla = {"response_time": how["deadline"], "deadline": how["deadline"]}
        model = {"sla": sla, "max_waiting": how["max_waiting"], **how["model"]}
        self.data = {
            "models": dict.fromkeys(models, model),
            "workers": [{"backend": "static", "cores": 2, "executables": [listed]}],
            "scheduling": {"gpu": how["policy"]},
            "gateway": {
                "port": port,
                "admin_port": admin,
                "grpc_port": grpc_port,
                "drain_timeout": 1,
                **how["gateway"],
            },
        }
        if serve:
            await self.serve()
        return self

    async def start_worker(self, **how):
        """Start a worker, in place of one that has ended; it ends with the gateway's stack."""
        if self.worker is None:
            self.harness.stack.push_async_callback(self._stop)
        self.worker = Worker(self.device_port, **how)
        await self.worker.start()

    async def _stop(self):
        await self.worker.stop()  # the one that is there at the end

    async def serve(self, *, ready=True):
        await self.harness.serve(self.config)
        if ready and self.worker is not None:
            await self.ready()

    async def ready(self):
        await self.harness.until(lambda: self.executor.live)

    async def reconnected(self):
        """Cut the connection, and wait until there is another one."""
        count = len(self.tap.hellos)
        self.tap.cut()
        await self.harness.until(lambda: len(self.tap.hellos) > count and self.executor.live)

    @property
    def config(self):
        return schema.parse(yaml.safe_dump(self.data))

    @property
    def executor(self):
        (executor,) = self.harness.core.executors
        return executor

    def ask(self, *rows, model="m", **options):
        """Return a task that asks for the predictions of these rows."""
        body = yaml.safe_dump({"instances": [list(row) for row in rows]}, default_flow_style=True)
        body = body.replace("instances", '"instances"').replace(".nan", "NaN")
        asking = self.harness.predict(body.encode(), path=f"/v1/models/{model}:predict", **options)
        return asyncio.ensure_future(asking)

    async def fill(self, model="m", *, ask=None, gate=None):
        """Keep the device's results back, and return two requests: one runs, one is next.

        `ask` makes the request of an index; `gate` is what holds results up while it is clear.
        The second goes out shortly before the first should have ended. A gateway that wakes too
        late for that takes the device for one that hangs, and gives it nothing: then it is tried
        again, and the tap forgets the first try.
        """
        ask = ask or (lambda i: self.ask((i, i), model=model))
        gate = gate or self.tap.results
        await ask(0)  # from now on it is loaded
        marks = [(seen, len(seen)) for seen in (self.tap.asked, self.tap.told)]
        async with asyncio.timeout(60):
            while True:
                gate.clear()
                asked, count = [], len(self.tap.infers)
                with contextlib.suppress(TimeoutError):
                    for i in range(2):
                        asked.append(ask(i))
                        await self._asked_for(count + i + 1)
                    return asked
                gate.set()
                await asyncio.gather(*asked)
                for seen, first in marks:
                    del seen[first:]

    async def _asked_for(self, infers):
        await self.harness.until(lambda: len(self.tap.infers) == infers, limit=1)

    async def waiting(self, count, model="m"):
        """Wait until as many examples wait in a model's queue."""
        await self.harness.until(lambda: len(self.harness.core.queues[model]) == count)


async def passed(instant):
    """Wait until a point in time of the monotonic clock has passed."""
    while time.monotonic() <= instant:
        await asyncio.sleep(0.005)


def doubled(*rows):
    return (np.asarray(rows, np.float32) * 2).tolist()
