"""Validates a worker's capabilities before the dispatcher's state is built on them.

The core trusts the capabilities: it counts pages and looks up times by them. So a worker whose
capabilities are inconsistent is refused as a whole, with one line that gives the reason.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from roma import device_protocol
from roma.device_protocol import BYTES, Hello
from roma.domain.actions import MOST_BATCH, Capabilities, ModelCapabilities
from roma.domain.errors import WireError
from roma.tensors.arrays import ServingSignature, ServingTensorSpec
from roma.tensors.tfjson import DEFAULT_SIGNATURE

TYPES: Mapping[str, str] = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    BYTES: "string",
}
"""TensorFlow's names of the types that NumPy calls differently."""


SHOWN: Final = 5
"""Most names of models in one line of the log."""


def checked(hello: Hello, models: Collection[str]) -> Capabilities:
    """Return the capabilities for the core; raises WireError.

    Inputs of several requests are joined along their first dimension, the batch. A model that has
    another free dimension takes requests that cannot be joined: it runs them one by one.
    """
    offer = hello.offer
    missing = sorted(set(models) - offer.models.keys())
    if missing:
        raise WireError(
            f"models: lacks {_some(missing)} of roma.yaml, has {_some(offer.models) or 'none'}"
        )
    if offer.pages < 1:
        raise WireError(f"pages = {offer.pages}: must be ≥ 1")
    for name, model in offer.models.items():
        _check(name, model)
        if name in models and 1 not in model.executions:
            # The remainder of any number of requests can be run one by one.
            raise WireError(f"models.{name}: batch sizes: must have 1")
    unknown = sorted(set(offer.loaded) - offer.models.keys())
    if unknown or len(set(offer.loaded)) < len(offer.loaded):
        raise WireError(f"loaded: names {', '.join(unknown) or 'a model twice'}")
    taken = sum(offer.models[name].pages for name in offer.loaded)
    if taken > offer.pages:
        raise WireError(f"loaded = {taken} pages: must be ≤ {offer.pages}")
    return replace(
        offer,
        models={
            name: model if _joins(hello.signatures.get(name, {})) else _one_by_one(model)
            for name, model in offer.models.items()
        },
    )


def check_agreement(
    variants: Sequence[str], signatures: Mapping[str, Mapping[str, device_protocol.Signature]]
) -> None:
    """Raise WireError if a request for one of a model's variants would not fit all."""
    first = signatures.get(variants[0], {})
    for other in variants[1:]:
        told = signatures.get(other, {})
        for key in ("inputs", "outputs"):
            one, two = (_tensors(s.get(DEFAULT_SIGNATURE), key) for s in (first, told))
            if one != two:
                raise WireError(
                    f"variants {variants[0]}, {other}: {key} of {DEFAULT_SIGNATURE}: must be the "
                    f"same, are {_listed(one)}; {_listed(two)}"
                )


def _tensors(
    signature: device_protocol.Signature | None, key: str
) -> frozenset[device_protocol.TensorSpec] | None:
    return None if signature is None else frozenset(getattr(signature, key))


def _listed(specs: frozenset[device_protocol.TensorSpec] | None) -> str:
    if not specs:
        return "none"
    return ", ".join(sorted(f"{s.name} {s.dtype} {list(s.shape)}" for s in specs))


def _some(names: Collection[str]) -> str:
    """Return the first few names."""
    shown = ", ".join(sorted(names)[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown


def readable(signatures: Mapping[str, device_protocol.Signature]) -> dict[str, ServingSignature]:
    """Return a model's signatures for reading JSON requests."""
    return {
        name: ServingSignature(name, _specs(signature.inputs), _specs(signature.outputs))
        for name, signature in signatures.items()
    }


def _check(name: str, model: ModelCapabilities) -> None:
    """Check what `roma.device_protocol.headers` does not: bounds of times and batch sizes."""
    if model.load < 0:
        raise WireError(f"models.{name}.load = {model.load}: must be seconds, ≥ 0")
    for batch, seconds in model.executions.items():
        if not 1 <= batch <= MOST_BATCH:
            raise WireError(f"models.{name}: batch = {batch}: must be from 1 to {MOST_BATCH}")
        if seconds <= 0:
            raise WireError(f"models.{name}: batch {batch} = {seconds}: must be seconds, > 0")


def _joins(signatures: Mapping[str, device_protocol.Signature]) -> bool:
    signature = signatures.get(DEFAULT_SIGNATURE)
    return signature is None or all(-1 not in spec.shape[1:] for spec in signature.inputs)


def _one_by_one(model: ModelCapabilities) -> ModelCapabilities:
    alone = {b: t for b, t in model.executions.items() if b == 1}
    return replace(model, executions=alone, any_batch=False)


def _specs(specs: tuple[device_protocol.TensorSpec, ...]) -> dict[str, ServingTensorSpec]:
    return {
        spec.name: ServingTensorSpec(spec.name, TYPES.get(spec.dtype, spec.dtype), spec.shape)
        for spec in specs
    }
