"""The front end of planned devices: requests become tensors here, before they wait.

A request that cannot be read, or does not fit the model, is refused at once and takes no slot in a
batch. Look-ups are answered from the devices' reports: a worker has no REST port of its own.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dispatcher.live.driver import Call, Driver
from dispatcher.live.http.handler import Pending
from dispatcher.live.http.messages import Message, Response
from dispatcher.live.http.responses import error, json_response
from dispatcher.live.http.routes import Route, missing
from dispatcher.live.planned import request_options
from dispatcher.live.planned.capabilities import TYPES
from dispatcher.live.planned.device import ModelSignatures, PlannedDevice, Signatures
from dispatcher.live.planned.examples import MultiExampleCall
from dispatcher.live.unavailable import Reasons
from dispatcher.state.executors import RECOVERY
from roma.config.executable import Executable
from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.watched_file import Watched
from roma.device_protocol import MAX_PAYLOAD, Array, Signature, TensorSpec, bytes_of, check
from roma.domain.errors import ConfigError, TensorError
from roma.domain.model import ModelSpec
from roma.security.tokens import Token, watched
from roma.telemetry.threads import in_thread
from roma.tensors.arrays import check_shape
from roma.tensors.errors import BodyTooLarge, Code, RequestError
from roma.tensors.inflate import inflate, is_compressed
from roma.tensors.jsontext import parse
from roma.tensors.tfjson import DEFAULT_SIGNATURE, Layout, decode_predict, signature_name

VERSION: Final = "1"
"""Version number of every model: a worker has one version of each and does not report it."""

INLINE: Final = 64 * 2**10
"""Bytes of a body that is read at once: a few milliseconds."""

_Examples = tuple[Mapping[str, Array], int, Layout]
_UNREAD: Final[_Examples] = {}, 1, Layout.ROW
"""Stand-in for a body that is not read, because the core refuses the request and counts that."""
_FAULTS: Final = (RequestError, TensorError, BodyTooLarge)

log = logging.getLogger(__name__)

_PREDICT: Final = frozenset(
    {"/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict"}
)
_STATUS: Final = {Code.UNIMPLEMENTED: 501, Code.NOT_FOUND: 404}
"""HTTP statuses of invalid requests; 400 for everything else."""


class PlannedDevices:
    """The planned devices of a deployment that has only planned ones. Raises ConfigError."""

    def __init__(self, config: Config, driver: Driver, reasons: Reasons) -> None:
        self.max_body = config.gateway.max_body_bytes
        """Limit in bytes of a body, also after decompression."""
        self.devices: dict[str, PlannedDevice] = {}
        self._driver = driver
        self._reasons = reasons
        self.clock = driver.clock
        self.reading = asyncio.Semaphore(1)
        self._timeout = config.gateway.backend_timeout
        self._signatures: Signatures = {}
        # Read before anything is started, so that a bad file is reported like any fault of
        # roma.yaml.
        self._tokens: dict[str, Watched[Token] | None] = {
            e.name: watched(e.token, f"executable {e.name}: token") for e in executables(config)
        }

    def add(self, executable: Executable) -> PlannedDevice:
        """Create the device of an executable; its `run` connects it."""
        device = PlannedDevice(
            executable,
            self._driver,
            self._signatures,
            timeout=self._timeout,
            reasons=self._reasons,
            token=self._tokens[executable.name],
        )
        self.devices[executable.name] = self._driver.devices[executable.name] = device
        return device

    def check_models(self, models: Sequence[ModelSpec]) -> None:
        """Raise ConfigError if a connected device cannot serve these models."""
        for name, device in self.devices.items():
            if (why := device.refusal(models)) is not None:
                raise ConfigError(f"executable {name}: {why}")

    # What clients ask

    def begin(
        self, call: Call, route: Route, message: Message, headers: Mapping[bytes, bytes]
    ) -> Pending | Response:
        """Queue a request's examples, or return an immediate answer."""
        try:
            if request_options.are_in(headers):
                spec, now = self._driver.core.queues[route.model].spec, self._driver.clock()
                call.terms, call.spent = request_options.read(
                    headers, spec, call.deadline, now=now, today=time.time()
                )
            self._check_version(route)
            if route.template not in _PREDICT:
                text = f"{route.path}: planned devices answer :predict alone"
                raise RequestError(text, Code.UNIMPLEMENTED)
            read = self._reader(route.model, message)
            if read is None:
                return self.submit(call, *_UNREAD)
            if len(message.body) > INLINE or message.template.content_encoding is not None:
                return _LaterCall(self, call, read)
            return self.submit(call, *read())
        except _FAULTS as fault:
            return self.refusal(fault)

    def submit(
        self, call: Call, inputs: Mapping[str, Array], count: int, layout: Layout
    ) -> MultiExampleCall:
        """Queue the examples of a request."""
        whole = MultiExampleCall(self._driver, call, layout)
        try:
            whole.submit(inputs, count)
        except Exception:  # a bug: what is queued already must not answer later
            log.exception("request of model %s", call.model)
            whole.fail(error(500, "Internal error"))
        return whole

    def knows(self, model: str) -> bool:
        """Return True if a model is served here."""
        return model in self._driver.core.queues

    def is_late(self, call: Call) -> bool:
        """Return True if the deadline of a call that waits to be read has passed."""
        queue = self._driver.core.queues.get(call.model)
        waited = self.clock() - call.arrived
        return queue is not None and waited >= self._driver.longest(queue.spec, call)

    def refusal(self, fault: Exception) -> Response:
        """Return the answer to a request that cannot be read."""
        if isinstance(fault, BodyTooLarge):
            return error(413, f"request body is larger than {self.max_body} bytes")
        status = _STATUS.get(fault.code, 400) if isinstance(fault, RequestError) else 400
        return error(status, str(fault))

    def found(self, route: Route) -> Response:
        """Return a model's status, or its metadata."""
        model = route.model
        try:
            self._check_version(route)
        except RequestError as fault:
            return error(_STATUS[fault.code], str(fault))
        if not self._driver.core.executors.serve(model):
            text = f"no executable of model {model} is ready"
            return error(503, text, retry_after=RECOVERY)
        if route.path.endswith("/metadata"):
            return json_response(200, _metadata(model, self._signatures[model].told))
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": VERSION, "state": "AVAILABLE", "status": status}
        return json_response(200, {"model_version_status": [version]})

    def _reader(self, model: str, message: Message) -> Callable[[], _Examples] | None:
        """Return a function that reads a body, in any thread; None if nothing serves the model.

        It returns the inputs, the number of examples, and the layout of the answer; it raises
        RequestError, TensorError or BodyTooLarge.
        """
        if not self._driver.core.executors.serve(model):
            return None
        most = self._driver.core.queues[model].spec.max_waiting
        return partial(_examples, message, self._signatures[model], most, self.max_body)

    def _check_version(self, route: Route) -> None:
        if route.path.startswith("/v2/"):
            text = f"{route.path}: planned devices do not speak the Open Inference Protocol"
            raise RequestError(text, Code.UNIMPLEMENTED)
        if route.version not in (None, VERSION) or "/labels/" in route.path:
            raise RequestError(missing(route), Code.NOT_FOUND)


class _LaterCall:
    """A request whose body is read in a thread: a large one takes seconds."""

    def __init__(self, devices: PlannedDevices, call: Call, read: Callable[[], _Examples]) -> None:
        self._devices = devices
        self._call = call
        self._whole: MultiExampleCall | None = None
        self._is_gone = self._is_reading = False
        call.arrived = devices.clock()
        self._task = asyncio.get_running_loop().create_task(self._run(read))

    async def _run(self, read: Callable[[], _Examples]) -> None:
        devices, call = self._devices, self._call
        found: _Examples | Response
        try:
            # One at a time: threads share the interpreter, and each body may take a gigabyte.
            async with devices.reading:
                self._is_reading = True
                # One that is late is not read: those behind it would be late for its sake.
                found = _UNREAD if devices.is_late(call) else await in_thread(read)
        except _FAULTS as fault:
            found = devices.refusal(fault)
        except Exception:  # a bug: this client gets an answer, the others do not notice
            log.exception("request of model %s", call.model)
            found = error(500, "Internal error")
        if self._is_gone:
            return
        if not devices.knows(call.model):
            found = error(404, f"model {call.model} was removed meanwhile")
        if isinstance(found, Response):
            call.on_outcome(found)
        else:
            call.spent += devices.clock() - call.arrived
            self._whole = devices.submit(call, *found)

    def cancel(self) -> object:
        """Cancel the request: its client went away."""
        if self._whole is not None:
            return self._whole.cancel()
        self._is_gone = True
        if not self._is_reading:  # a thread cannot be stopped, and goes first until it ends
            self._task.cancel()
        self._call.cancel()
        return None


def _examples(message: Message, known: ModelSignatures, most: int, max_body: int) -> _Examples:
    """Return what a body says, of at most so many examples and bytes."""
    body = message.body
    if is_compressed(message.template.content_encoding):
        body = inflate(body, max_body)
    document = parse(body)
    name = signature_name(document)
    if name not in known.told:
        raise RequestError(f'Serving signature name: "{name}" not found in signature def')
    if name != DEFAULT_SIGNATURE:
        raise RequestError(
            f"signature_name = {name}: must be {DEFAULT_SIGNATURE} on planned devices: "
            "requests of different signatures cannot share a batch"
        )
    signature = known.readable[name]
    inputs, layout = decode_predict(document, signature)
    for alias, array in inputs.items():
        check_shape(array, signature.inputs[alias])
    return inputs, _count(known, inputs, most), layout


def _count(known: ModelSignatures, inputs: Mapping[str, Array], most: int) -> int:
    """Return the number of examples in inputs; raises TensorError if they do not fit."""
    first = next(iter(inputs.values()))
    count = first.shape[0] if first.ndim else 0
    if not 1 <= count <= most:
        raise TensorError(f"examples = {count}: must be from 1 to max_waiting ({most})")
    check(inputs, known.told[DEFAULT_SIGNATURE], count)
    size = sum(map(bytes_of, inputs.values())) / count
    # The examples of the largest batch must fit one message.
    bound = MAX_PAYLOAD // known.most
    if size > bound:
        raise TensorError(f"example = {size:.0f} bytes: must be ≤ {bound}")
    return count


def _metadata(model: str, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return TensorFlow Serving's metadata of a model, as far as a worker reports it."""
    definitions = {
        name: {
            "inputs": _infos(signature.inputs),
            "outputs": _infos(signature.outputs),
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for name, signature in sorted(signatures.items())
    }
    return {
        "model_spec": {"name": model, "signature_name": "", "version": VERSION},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }


def _infos(specs: Iterable[TensorSpec]) -> dict[str, Any]:
    return {
        spec.name: {
            "dtype": f"DT_{TYPES.get(spec.dtype, spec.dtype).upper()}",
            "tensor_shape": {
                "dim": [{"size": str(side), "name": ""} for side in spec.shape],
                "unknown_rank": False,
            },
            "name": spec.name,
        }
        for spec in specs
    }
