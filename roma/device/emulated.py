"""Emulated device: the real device server, with execution times from a table.

It holds no weights and computes nothing; it waits as long as the device in the table took. So a
dispatcher can be tested, and compared with the paper, on a machine without a GPU.
"""

import time
from collections.abc import Mapping

import numpy as np

from roma.device.models_table import TableModel
from roma.device.precise import sleep_until
from roma.device.runtimes.base import DEFAULT_SIGNATURE, RuntimeModel
from roma.device_protocol import Array, Signature, TensorSpec
from roma.domain.actions import ModelCapabilities

MEMORY = 31 * 2**30
"""Bytes for weights: a V100 of 32 GB minus workspace and inputs, 512 MB each (§5.2)."""

INPUT, OUTPUT = "input", "output"


class EmulatedRuntime:
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
        self.copies = False

    def known(self, name: str) -> ModelCapabilities:
        """Return the table's times."""
        return self._offers[name]

    def load(self, name: str) -> None:
        """Wait as long as the copy of the weights took."""
        sleep_until(time.monotonic() + self._table[name].transfer)

    def unload(self, name: str) -> None:
        """Do nothing: there are no weights."""

    def stage(self, name: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the arguments unchanged: nothing need be copied."""
        return inputs

    def execute(self, name: str, signature: str, staged: Mapping[str, Array]) -> dict[str, Array]:
        """Wait as long as the batch took; return zeros."""
        ends = time.monotonic()
        batch = len(staged[INPUT])
        ends += self._offers[name].seconds(batch)
        (spec,) = self.models[name].signatures[signature].outputs
        output = np.zeros((batch, *spec.shape[1:]), np.float32)
        sleep_until(ends)
        return {OUTPUT: output}

    def fetch(self, name: str, signature: str, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return the arguments unchanged: nothing need be copied."""
        return outputs

    def close(self) -> None:
        """Do nothing."""


def _signature(model: TableModel, full: bool) -> Signature:
    input_shape = model.input_shape if full else ()
    output_shape = model.output_shape if full else ()
    return Signature(
        (TensorSpec(INPUT, "float32", (-1, *input_shape)),),
        (TensorSpec(OUTPUT, "float32", (-1, *output_shape)),),
    )
