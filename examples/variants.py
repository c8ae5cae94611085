"""Two variants of one model, for docs/howto/variants.md: who reads digits well, and who fast.

    python examples/variants.py models

writes the SavedModels models/digits-large and models/digits-small (of scikit-learn's handwritten
digits) and says which part of those that they have not seen each of them reads right.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

FEATURES = {"digits-large": 2000, "digits-small": 120}
SEEN = 1200


def save(hidden, out, path):
    """Write a network of two layers as a SavedModel that takes any batch."""
    module = tf.Module()
    module.hidden, module.out = (tf.Variable(x, dtype=tf.float32) for x in (hidden, out))

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="pixels")])
    def serve(pixels):
        return {"scores": tf.nn.relu(pixels @ module.hidden) @ module.out}

    tf.saved_model.save(module, str(path), signatures={"serving_default": serve})


def main(folder):
    """Fit both by least squares, on features that are random, and write them."""
    pixels, digits = load_digits(return_X_y=True)
    for name, size in FEATURES.items():
        hidden = np.random.default_rng(1).normal(size=(64, size)) / 16
        features = np.maximum(pixels @ hidden, 0)
        seen, wanted = features[:SEEN], np.eye(10)[digits[:SEEN]]
        out = np.linalg.solve(seen.T @ seen + 10 * np.eye(size), seen.T @ wanted)
        right = (features[SEEN:] @ out).argmax(axis=1) == digits[SEEN:]
        save(hidden, out, folder / name)
        sys.stdout.write(f"{name}: {right.mean():.3f}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
