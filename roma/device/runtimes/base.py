"""Interface between a device and the runtime that executes its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from roma.device_protocol import BYTES, Array, Signature
from roma.domain.actions import BATCHES, ModelCapabilities, Segment

DEFAULT_SIGNATURE = "serving_default"
"""Signature that is used if a model has several and none is named."""


@dataclass(frozen=True, slots=True)
class RuntimeModel:
    """A model in host memory: the bytes of its weights, and its entry points by name."""

    weights: int
    signatures: Mapping[str, Signature]


class Runtime(Protocol):
    """Models on one device; LOADs come from one thread, and each step of an INFER from another.

    An INFER is INPUT, EXEC and OUTPUT: `stage`, `execute`, `fetch` (§5.2). While one batch is
    executed the inputs of the next may be staged, and the outputs of the last fetched.

    Each call blocks until the device is done. Any exception becomes the action's outcome; a
    TensorError means that the inputs were at fault.
    """

    @property
    def copies(self) -> bool:
        """True if `stage` and `fetch` take time: then they have threads of their own."""

    @property
    def models(self) -> Mapping[str, RuntimeModel]:
        """All models of the runtime, by name."""

    @property
    def memory(self) -> int | None:
        """Bytes of device memory available for weights; None without a limit of its own."""

    def known(self, name: str) -> ModelCapabilities | None:
        """Return a model's capabilities if they are known without measuring, else None."""

    def load(self, name: str) -> None:
        """Copy a model's weights to the device."""

    def unload(self, name: str) -> None:
        """Free a model's memory on the device."""

    def stage(self, name: str, inputs: Mapping[str, Array]) -> Any:
        """Copy the inputs of one batch to the device."""

    def execute(self, name: str, signature: str, staged: Any) -> Any:
        """Return one batch's outputs, on the device; the model is loaded, the inputs are valid."""

    def fetch(self, name: str, signature: str, outputs: Any) -> dict[str, Array]:
        """Copy outputs back from the device."""

    def close(self) -> None:
        """Free all resources; no action may be running."""


class HostRuntime:
    """Part of a runtime that computes in the host's memory: nothing need be copied."""

    copies = False

    def stage(self, name: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the inputs unchanged."""
        return inputs

    def fetch(self, name: str, signature: str, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return the outputs unchanged."""
        return outputs


@dataclass(frozen=True, slots=True)
class RuntimeItem:
    """A batch, or a segment of its execution, that a device executes together with others.

    `staged` is what `Runtime.stage` returned, or what the segment before this one left.
    """

    model: str
    signature: str
    segment: Segment | None
    staged: Any

    @property
    def share(self) -> float:
        """The share of the model's execution."""
        return 1.0 if self.segment is None else self.segment.share


@runtime_checkable
class CoExecutingRuntime(Runtime, Protocol):
    """A runtime whose device executes several batches at once, or parts of them (Abacus, §6.1)."""

    @property
    def together(self) -> int:
        """The most items that it executes at once."""

    def execute_together(self, items: Sequence[RuntimeItem]) -> Sequence[Any]:
        """Execute the items at once; return what each leaves when all have ended, or its error.

        That is the outputs after the last segment, else what the next segment needs, on the device.
        """


def default_signature(signatures: Mapping[str, Signature]) -> str:
    """Return the signature to use if none is named."""
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures, default="")


def example(signature: Signature, batch: int) -> dict[str, Array]:
    """Return example inputs for a batch: numbers from 0 to 1, empty strings; free sizes are 1."""
    numbers = np.random.default_rng(1)
    inputs: dict[str, Array] = {}
    for spec in signature.inputs:
        shape = (batch, *(1 if side < 0 else side for side in spec.shape[1:]))
        if spec.dtype == BYTES:
            inputs[spec.name] = np.full(shape, b"", dtype=np.object_)
        else:
            inputs[spec.name] = np.asarray(numbers.random(shape)).astype(spec.dtype)
    return inputs


def sizes(signature: Signature, batches: Sequence[int] = BATCHES) -> Sequence[int]:
    """Return the batch sizes that a signature takes: all, or the one it is fixed to."""
    return [b for b in batches if all(spec.shape[0] in (-1, b) for spec in signature.inputs)]
