"""What a device asks of what executes its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from roma.device_protocol import BYTES, Array, Signature
from roma.domain.actions import BATCHES, ModelCapabilities

DEFAULT_SIGNATURE = "serving_default"
"""Of a model with several, the one that is meant without a name."""


@dataclass(frozen=True, slots=True)
class RuntimeModel:
    """A model in host memory: the bytes of its weights, and its entry points by name."""

    weights: int
    signatures: Mapping[str, Signature]


class Runtime(Protocol):
    """Models on one device; LOADs come from one thread, and each step of an INFER from another.

    An INFER is INPUT, EXEC and OUTPUT: `stage`, `execute`, `fetch` (§5.2). While one batch is
    executed the inputs of the next may be staged, and the outputs of the last fetched.

    Each call blocks until the device is done, and raises what it likes: that is the action's
    outcome. A TensorError means that the inputs were at fault.
    """

    @property
    def copies(self) -> bool:
        """Whether `stage` and `fetch` take time: then they have threads of their own."""

    @property
    def models(self) -> Mapping[str, RuntimeModel]:
        """Every model that it has, by name."""

    @property
    def memory(self) -> int | None:
        """Bytes of the device that weights may take; None where there is no bound of its own."""

    def known(self, name: str) -> ModelCapabilities | None:
        """Return what a model costs where that need not be measured."""

    def load(self, name: str) -> None:
        """Copy a model's weights to the device."""

    def unload(self, name: str) -> None:
        """Give the device's memory back."""

    def stage(self, name: str, inputs: Mapping[str, Array]) -> Any:
        """Copy the inputs of one batch to the device."""

    def execute(self, name: str, signature: str, staged: Any) -> Any:
        """Return the outputs of one batch on the device; the model is loaded, the inputs fit."""

    def fetch(self, name: str, signature: str, outputs: Any) -> dict[str, Array]:
        """Copy outputs back from the device."""

    def close(self) -> None:
        """Give everything back; nothing runs any more."""


def default_signature(signatures: Mapping[str, Signature]) -> str:
    """Return the signature that is meant where none is named."""
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures, default="")


def example(signature: Signature, batch: int) -> dict[str, Array]:
    """Return inputs for a batch: numbers from 0 to 1, empty strings; free sizes are 1."""
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
    """Return those batch sizes that a signature takes: all, or the one that it is made for."""
    return [b for b in batches if all(spec.shape[0] in (-1, b) for spec in signature.inputs)]
