"""Two variants that read handwritten digits, for `bench.variants`: built, evaluated and timed.

    python -m bench.readers build DIRECTORY
    python -m bench.readers times DIRECTORY

Both convolve twice with random kernels, pool, and mix at random. Only the last layer is fitted, by
least squares: the same weights on every machine, in seconds. `large` sees 8 × 8 pixels, `small` the
means of 2 × 2 of them. Batches cost less than single requests, as on a GPU: the weights of `large`
are 105 MB, which are read once per batch.
"""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

LARGE, SMALL = "digits-large", "digits-small"
BATCHES = (1, 2, 4, 8, 16, 32)
RUNS = 15
"""Of each batch size; times are medians."""

SEEN = 1200
"""Pictures for the fit; the other 597 are by other writers, and are the requests."""

SIDE = 8
FACTS = "facts.json"


class Shape(NamedTuple):
    """Pixels of a side that become one, kernels of each convolution, and width before the end."""

    coarse: int
    kernels: int
    width: int


SHAPES = {LARGE: Shape(1, 384, 4096), SMALL: Shape(2, 384, 1024)}


def held_out() -> tuple[list[list[float]], list[int]]:
    """Return the pictures that no variant has seen, and their digits."""
    pixels, digits = load_digits(return_X_y=True)
    return pixels[SEEN:].tolist(), digits[SEEN:].tolist()


def build(folder: Path, shapes: dict[str, Shape] = SHAPES) -> dict[str, float]:
    """Write each variant as a SavedModel, and its accuracy on the held-out pictures."""
    import tensorflow as tf  # noqa: PLC0415 - the pictures alone do not need it

    tf.config.threading.set_inter_op_parallelism_threads(1)
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32)
    found = {}
    for name, shape in shapes.items():
        module = _weights(tf, shape)
        features = partial(_features, tf, shape, module)
        parts = [features(part).numpy() for part in np.array_split(pixels[:SEEN], 20)]
        module.last = tf.Variable(_fitted(np.concatenate(parts), digits[:SEEN]))
        module.serve = _serving(tf, features, module.last)
        tf.saved_model.save(
            module, str(folder / name), signatures={"serving_default": module.serve}
        )
        read = module.serve(pixels[SEEN:])["scores"].numpy().argmax(axis=1)
        found[name] = float((read == digits[SEEN:]).mean())
    (folder / FACTS).write_text(json.dumps(found))
    return found


def times(folder: Path) -> dict[str, dict[int, float]]:
    """Return the seconds of batches as a planned device measures them, by variant and size."""
    from roma.device import profile, registry  # noqa: PLC0415 - brings TensorFlow
    from roma.device.registry import RuntimeKind  # noqa: PLC0415 - likewise

    paths = registry.models((), folder, RuntimeKind.TENSORFLOW)
    runtime = registry.make(RuntimeKind.TENSORFLOW, paths, "cpu", 1, BATCHES)
    offers = asyncio.run(profile.measure(runtime, 1000, RUNS, BATCHES))
    return {name: dict(offer.executions) for name, offer in offers.items()}


def _weights(tf: Any, shape: Shape) -> Any:
    """Return the layers that stay random."""
    numbers, k = np.random.default_rng(1), shape.kernels

    def drawn(*size: int) -> Any:
        """Return weights that keep the variance through a rectifier."""
        scale = (2 / np.prod(size[:-1])) ** 0.5
        return tf.Variable((scale * numbers.standard_normal(size)).astype(np.float32))

    module = tf.Module()
    module.kernels = [drawn(3, 3, 1, k), drawn(3, 3, k, k)]
    module.mixed = drawn((SIDE // shape.coarse // 2) ** 2 * k, shape.width)
    return module


def _features(tf: Any, shape: Shape, module: Any, pixels: Any) -> Any:
    """Return the input of the last layer."""
    x = tf.reshape(pixels / 16, [-1, SIDE, SIDE, 1])
    if shape.coarse > 1:
        x = tf.nn.avg_pool2d(x, shape.coarse, shape.coarse, "VALID")
    for kernels in module.kernels:
        x = tf.nn.relu(tf.nn.conv2d(x, kernels, 1, "SAME"))
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [-1, module.mixed.shape[0]])
    return tf.nn.relu(x @ module.mixed)


def _serving(tf: Any, features: Any, last: Any) -> Any:
    """Return the module to save."""

    @tf.function(input_signature=[tf.TensorSpec([None, SIDE * SIDE], tf.float32, name="pixels")])
    def serve(pixels: Any) -> dict[str, Any]:
        return {"scores": features(pixels) @ last}

    return serve


def _fitted(seen: Any, digits: Any) -> Any:
    """Return the last layer by least squares, in the dual: features outnumber pictures."""
    seen = seen.astype(np.float64)
    gram = seen @ seen.T
    ridge = 0.01 * np.trace(gram) / len(gram)
    wanted = 2 * np.eye(10)[digits] - 1
    return (seen.T @ np.linalg.solve(gram + ridge * np.eye(len(gram)), wanted)).astype(np.float32)


if __name__ == "__main__":
    act = {"build": build, "times": times}[sys.argv[1]]
    json.dump(act(Path(sys.argv[2])), sys.stdout)
