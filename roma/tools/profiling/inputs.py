"""Inputs to send: the caller's own, the model's warm-up body, or generated ones.

Only numbers can be generated. A model that reads text or images would refuse them, or answer from
its error path, so such a model needs real inputs.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from roma.domain.errors import ConfigError
from roma.serving import versions
from roma.serving.warmup import WARM_UP_FILE
from roma.tensors.tfjson import DEFAULT_SIGNATURE
from roma.tools.load import read_bodies

DIFFERENT_BODIES = 32
"""Most different bodies per batch size; requests cycle through them."""

MOST_VALUES = 10_000_000
"""Most numbers that are generated for one instance."""

_FLOATS = frozenset({"DT_FLOAT", "DT_DOUBLE"})
_INTEGERS = frozenset(
    {"DT_INT8", "DT_INT16", "DT_INT32", "DT_INT64", "DT_UINT8", "DT_UINT32", "DT_UINT64"}
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Instances of one model, and the other keys of its predict bodies (`signature_name`)."""

    instances: Sequence[Any]
    keys: Mapping[str, Any]

    def bodies(self, batch: int) -> list[bytes]:
        """Return bodies of `batch` instances each; instances repeat when they run out."""
        n = len(self.instances)
        return [
            orjson.dumps(
                {
                    **self.keys,
                    "instances": [self.instances[(i * batch + j) % n] for j in range(batch)],
                }
            )
            for i in range(min(n, DIFFERENT_BODIES))
        ]


def from_file(file: Path, source: str) -> Inputs:
    """Read predict bodies (one, or a .jsonl file of them); raise ConfigError naming `source`."""
    instances: list[Any] = []
    keys: dict[str, Any] = {}
    for body in read_bodies(file):
        document = orjson.loads(body)
        found = document.pop("instances", None) if isinstance(document, dict) else None
        if not isinstance(found, list) or not found:
            raise ConfigError(f'{source}: each body must hold "instances", a list of at least one')
        instances += found
        keys |= document
    return Inputs(instances, keys)


def from_model(directory: Path) -> Inputs | None:
    """Return the warm-up body of the version that is served; None if the model has none."""
    (version,) = versions.choose(directory, {}).values()
    file = version / WARM_UP_FILE
    return from_file(file, str(file)) if file.exists() else None


def invented(model: str, metadata: Mapping[str, Any]) -> Inputs:
    """Return one instance in the shape of a signature: random floats, zeros for the rest.

    `metadata` is TensorFlow Serving's answer to a metadata call. Raises ConfigError, with the
    reason, if nothing can be generated.
    """
    try:
        signature = metadata["metadata"]["signature_def"]["signature_def"][DEFAULT_SIGNATURE]
        tensors = {name: _invent(name, info) for name, info in signature["inputs"].items()}
        if not tensors:
            raise _CannotInventError("its signature takes no input")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = (
            str(error)
            if isinstance(error, _CannotInventError)
            else (f"it has no signature {DEFAULT_SIGNATURE}")
        )
        raise ConfigError(
            f"models.{model}: no inputs to measure with: {reason}; "
            f"give real ones with --body {model}=FILE"
        ) from error
    (first, *others) = tensors.values()
    return Inputs([tensors if others else first], {})


class _CannotInventError(ValueError):
    """The reason, in words for the user."""


def _invent(name: str, info: Mapping[str, Any]) -> Any:
    shape, dtype = info["tensor_shape"], str(info["dtype"])
    sizes = [int(dim["size"]) for dim in shape.get("dim", ())]
    if shape.get("unknown_rank") or not sizes:
        raise _CannotInventError(f'the shape of input "{name}" is open')
    if sizes[0] >= 0:
        raise _CannotInventError(f'input "{name}" takes batches of {sizes[0]} only')
    if dtype not in _FLOATS | _INTEGERS | {"DT_BOOL"}:
        raise _CannotInventError(f'input "{name}" is {dtype}, which cannot be guessed')
    sizes = [size if size >= 0 else 1 for size in sizes[1:]]
    if math.prod(sizes) > MOST_VALUES:
        raise _CannotInventError(f'input "{name}" holds {math.prod(sizes)} values')
    draw = random.Random(0)
    return _nested(sizes, dtype, draw)


def _nested(sizes: Sequence[int], dtype: str, draw: random.Random) -> Any:
    if sizes:
        return [_nested(sizes[1:], dtype, draw) for _ in range(sizes[0])]
    if dtype in _FLOATS:
        return round(draw.random(), 4)
    # 0 is a valid index of any vocabulary; a random integer may not be.
    return 0 if dtype in _INTEGERS else False
