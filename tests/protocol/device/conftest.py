"""A worker over a real socket, and a dispatcher's end of the wire."""

import asyncio
import math
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest

from roma.device.device import DeviceRunner
from roma.device.runtimes.base import RuntimeModel
from roma.device.server import DeviceServer, DeviceServerSettings
from roma.device_protocol import (
    ActionResult,
    Connect,
    Decoder,
    Hello,
    Signature,
    Submit,
    TensorSpec,
    encode,
)
from roma.domain.actions import Infer, Load, ModelCapabilities, Unload

SIGNATURE = Signature(
    (TensorSpec("x", "float32", (-1, 2)),), (TensorSpec("y", "float32", (-1, 2)),)
)


class ScriptedDeviceRuntime:
    """Models that double their input; a test holds them up where it wants to."""

    def __init__(self, *names):
        self.models = {name: RuntimeModel(1, {"serving_default": SIGNATURE}) for name in names}
        self.memory = None
        self.copies = False
        self.gated = {"load", "unload", "stage", "execute", "fetch"}
        """What waits at the gate, and has the fault."""
        self.done = []
        """What was done, in order."""
        self.gate = threading.Event()
        self.gate.set()
        self.fault = None
        self.output = None

    def known(self, name):
        return ModelCapabilities(1, 0.001, {1: 0.001, 2: 0.001})

    def load(self, name):
        self._do("load", name)

    def unload(self, name):
        self._do("unload", name)

    def stage(self, name, inputs):
        if self.copies:
            self._do("stage", name)
        return inputs

    def execute(self, name, signature, staged):
        self._do("execute", name)
        return {"y": staged["x"] * 2 if self.output is None else self.output}

    def fetch(self, name, signature, outputs):
        if self.copies:
            self._do("fetch", name)
        return outputs

    def close(self):
        self.done.append(("close", ""))

    def _do(self, what, name):
        self.done.append((what, name))
        assert self.gate.wait(60) if what in self.gated else True
        if self.fault is not None and what in self.gated:
            raise self.fault


class Dispatcher:
    """A connection to a worker."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self._decoder = Decoder()
        self._messages = []
        self._number = 0

    def send(self, message):
        self.writer.writelines(encode(message))

    async def read(self):
        """Return the next message; None at the end."""
        while not self._messages:
            data = await asyncio.wait_for(self.reader.read(2**16), 60)
            if not data:
                return None
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)

    async def greet(self, token=""):
        self.send(Connect("test", token))
        return await self.read()

    def submit(self, kind, model="m", *, earliest=0.0, latest=math.inf, batch=1, inputs=None):
        """Send an action and return its number."""
        self._number += 1
        if kind is Unload:
            self.send(Submit(Unload(self._number, model)))
        elif kind is Load:
            self.send(Submit(Load(self._number, model, earliest, latest)))
        else:
            given = {"x": np.ones((batch, 2), np.float32)} if inputs is None else inputs
            self.send(Submit(Infer(self._number, model, batch, earliest, latest), "", given))
        return self._number

    async def did(self, *args, **kwargs):
        """Send an action, and return its result."""
        number = self.submit(*args, **kwargs)
        result = await self.read()
        assert isinstance(result, ActionResult), result
        assert result.outcome.id == number
        return result

    async def status(self, *args, **kwargs):
        return (await self.did(*args, **kwargs)).outcome.status

    async def close(self):
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
def working():
    """Start a worker: `async with working(runtime, pages=4) as connect`."""

    @asynccontextmanager
    async def start(runtime, pages=4, *, token=None, max_payload=2**20, offers=None, **bounds):
        offers = offers or {name: runtime.known(name) for name in runtime.models}
        device = DeviceRunner(runtime, offers, pages, **bounds)
        settings = DeviceServerSettings("w", port=0, token=token, max_payload=max_payload)
        server = DeviceServer(settings, device, dict(runtime.models))
        await server.start()
        device.start()
        opened = []

        async def connect(*, greet=True):
            link = Dispatcher(*await asyncio.open_connection(*server.address))
            opened.append(link)
            if greet:
                link.hello = await link.greet()
                assert isinstance(link.hello, Hello), link.hello
            return link

        connect.server = server
        connect.device = device
        try:
            yield connect
        finally:
            if hasattr(runtime, "gate"):
                runtime.gate.set()
            for link in opened:
                link.writer.close()
            assert await server.stop(60.0)

    return start


@pytest.fixture
def hand():
    return ScriptedDeviceRuntime("m", "n")
