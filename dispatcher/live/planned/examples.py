"""A predict request as examples: one core request each, so that they can be batched.

A request with n examples waits n times and is answered once, when all of them have ended. If one is
refused or fails, its outcome is the answer for all, and the others are cancelled.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dispatcher.live.driver import Call, Driver, Outcome
from dispatcher.live.http.messages import Response
from dispatcher.live.http.responses import JSON, error
from dispatcher.live.planned.request_options import VARIANT
from roma.device_protocol import Array
from roma.domain.errors import BackendError, TensorError
from roma.tensors.errors import RequestError
from roma.tensors.tfjson import Layout, encode_predict


class ExampleCall(Call):
    """An example of a request: `inputs` have the batch dimension, which is 1."""

    def __init__(self, whole: "MultiExampleCall", place: int, inputs: Mapping[str, Array]) -> None:
        call = whole.call
        super().__init__(call.model, call.message, deadline=call.deadline, priority=call.priority)
        self.terms, self.spent = call.terms, call.spent
        self.whole = whole
        self.place = place
        self.inputs = inputs

    def on_outputs(self, outputs: Mapping[str, Array], variant: str) -> None:
        """Take the outputs of the model, or of this variant of it; instead of `on_outcome`."""
        self.whole.on_outputs(self, outputs, variant)

    def on_outcome(self, outcome: Outcome) -> None:
        """Note that the example is not computed."""
        self.whole.on_refused(self, outcome)


class MultiExampleCall:
    """A request of several examples; `call` gets its one outcome."""

    def __init__(self, driver: Driver, call: Call, layout: Layout) -> None:
        self.call = call
        self._driver = driver
        self._layout = layout
        self._parts: list[ExampleCall] = []
        self._outputs: list[Mapping[str, Array]] = []
        self._variants: dict[str, None] = {}
        """Variants that answered, in the order of their first answers."""
        self._left = 0
        self._is_over = False

    def submit(self, inputs: Mapping[str, Array], count: int) -> None:
        """Queue the examples of `inputs`; the outcome may come before this returns."""
        call, driver = self.call, self._driver
        if not call.arrived:  # or reading its body took until now
            call.arrived = driver.clock()
        if call.context is not None and call.context.trace is not None:
            sla = driver.core.queues[call.model].spec.sla.response_time
            call.context.trace.on_queued(call.arrived, sla=sla)
        self._left = count
        self._outputs = [{}] * count
        self._parts = [
            ExampleCall(self, i, {name: array[i : i + 1] for name, array in inputs.items()})
            for i in range(count)
        ]
        for part in self._parts:
            if self._is_over:  # an earlier one was refused at once
                return
            driver.submit(part)

    def cancel(self) -> object:
        """Cancel the request: its client went away."""
        if not self._is_over:
            self._give_up()
            self.call.cancel()
        return None

    def on_executing(self, executor: str, address: tuple[str, int]) -> None:
        """Note that an example was sent to a device."""
        call = self.call
        is_first, call.executor = call.executor is None, executor
        if is_first and call.context is not None and call.context.trace is not None:
            device = self._driver.core.executors[executor].spec.device
            call.context.trace.on_executing(executor, device, address, self._driver.clock())

    def on_outputs(self, example: ExampleCall, outputs: Mapping[str, Array], variant: str) -> None:
        """Take one example's outputs, and the variant that computed them."""
        if self._is_over:
            return
        self._variants[variant] = None
        self.call.id = example.id
        self._outputs[example.place] = outputs
        self._left -= 1
        if not self._left:
            self._end(self._answer())

    def on_refused(self, example: ExampleCall, outcome: Outcome) -> None:
        """Note that an example is not computed."""
        if not self._is_over:
            self.call.id = example.id  # the request's id in the log
            self.fail(outcome)

    def fail(self, outcome: Outcome) -> None:
        """End the request with an outcome for all of its examples, unless it has ended."""
        if not self._is_over:
            self._give_up()
            self._end(outcome)

    def _give_up(self) -> None:
        self._is_over = True
        for part in self._parts:
            if part.id:  # otherwise it was not submitted yet
                self._driver.cancel(part)

    def _end(self, outcome: Outcome) -> None:
        self._is_over = True
        self._parts = []
        call = self.call
        if call.context is not None and call.context.trace is not None:
            result = outcome if isinstance(outcome, Response) else BackendError(str(outcome))
            call.context.trace.on_executed(result, self._driver.clock())
        call.on_outcome(outcome)

    def _answer(self) -> Response:
        more = ""
        if self._driver.core.queues[self.call.model].accuracy:
            more = f"{VARIANT}: {', '.join(self._variants)}\r\n"
        try:
            body = encode_predict(joined(self._outputs), self._layout)
            return Response(200, JSON, None, body, more)
        except RequestError as fault:
            return error(400, str(fault))
        except (KeyError, ValueError):  # a model whose outputs depend on its inputs
            return error(
                502, "the examples' outputs differ in name or shape: ask for one at a time"
            )


def joined(rows: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    """Return the tensors of several examples as those of one batch."""
    if len(rows) == 1:
        return rows[0]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def split(tensors: Mapping[str, Array], batch: int) -> list[dict[str, Array]]:
    """Return a batch's tensors as those of its examples, as views; raises TensorError."""
    for name, array in tensors.items():
        if not array.ndim or array.shape[0] != batch:
            shape = list(array.shape)
            raise TensorError(f"output {name}: shape = {shape}: must have batch {batch} first")
    return [{name: array[i : i + 1] for name, array in tensors.items()} for i in range(batch)]
