"""Emulated device: the real device server, with execution times from a table.

It holds no weights and computes nothing; it waits as long as the device in the table took. So a
dispatcher can be tested, and compared with the paper, on a machine without a GPU.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roma.device.models_table import TableModel
from roma.device.overlap import seconds_together
from roma.device.precise import sleep_until
from roma.device.runtimes.base import DEFAULT_SIGNATURE, HostRuntime, RuntimeItem, RuntimeModel
from roma.device_protocol import Array, Signature, TensorSpec
from roma.domain.actions import ModelCapabilities

MEMORY = 31 * 2**30
"""Bytes for weights: a V100 of 32 GB minus workspace and inputs, 512 MB each (§5.2)."""

INPUT, OUTPUT = "input", "output"


class EmulatedRuntime(HostRuntime):
    """Runtime that serves copies of the table's models, by name (`models_table.copies`).

    Tensors are one number per example, so that measurements show scheduling alone; with `full` they
    are as large as the table's, which adds the network's share.
    """

    def __init__(self, models: Mapping[str, TableModel], *, full: bool = False) -> None:
        self._table = models
        self._offers = {name: model.offer() for name, model in models.items()}
        self.models = {
            name: RuntimeModel(int(model.weights), {DEFAULT_SIGNATURE: _signature(model, full)})
            for name, model in models.items()
        }
        self.memory: int | None = MEMORY

    def known(self, name: str) -> ModelCapabilities:
        """Return the table's times."""
        return self._offers[name]

    def load(self, name: str) -> None:
        """Wait as long as the copy of the weights took."""
        sleep_until(time.monotonic() + self._table[name].transfer)

    def unload(self, name: str) -> None:
        """Do nothing: there are no weights."""

    def execute(self, name: str, signature: str, staged: Mapping[str, Array]) -> dict[str, Array]:
        """Wait as long as the batch took; return zeros."""
        ends = time.monotonic() + self._offers[name].seconds(len(staged[INPUT]))
        outputs = self._outputs(name, signature, staged)
        sleep_until(ends)
        return outputs

    def _outputs(self, name: str, signature: str, staged: Mapping[str, Array]) -> dict[str, Array]:
        (spec,) = self.models[name].signatures[signature].outputs
        return {OUTPUT: np.zeros((len(staged[INPUT]), *spec.shape[1:]), np.float32)}

    def close(self) -> None:
        """Do nothing."""


class CoExecutingEmulatedRuntime(EmulatedRuntime):
    """Emulated device that executes up to `together` batches at once, or segments of them.

    A model has `segments` of equal length. Together they take `seconds_together` of what each takes
    alone.
    """

    def __init__(
        self, models: Mapping[str, TableModel], *, segments: int, together: int, overlap: float
    ) -> None:
        super().__init__(models)
        self.together = together
        self._overlap = overlap
        self._offers = {
            name: replace(offer, segments=segments) for name, offer in self._offers.items()
        }

    def execute_together(self, items: Sequence[RuntimeItem]) -> Sequence[Any]:
        """Wait as long as the items take; return zeros, or the inputs for the next segment."""
        begun = time.monotonic()
        alone = [i.share * self._offers[i.model].seconds(len(i.staged[INPUT])) for i in items]
        left = [
            self._outputs(i.model, i.signature, i.staged)
            if i.segment is None or i.segment.is_last
            else i.staged
            for i in items
        ]
        sleep_until(begun + seconds_together(alone, self._overlap))
        return left


def _signature(model: TableModel, full: bool) -> Signature:
    input_shape = model.input_shape if full else ()
    output_shape = model.output_shape if full else ()
    return Signature(
        (TensorSpec(INPUT, "float32", (-1, *input_shape)),),
        (TensorSpec(OUTPUT, "float32", (-1, *output_shape)),),
    )
