"""Real inputs for the demo's two models, from data bundled with scikit-learn.

Nothing is downloaded, and the same arguments always give the same bytes. scikit-learn and Pillow
are imported on first use: importing this module is cheap.
"""

import base64
import io
import random
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

HELD_OUT = 450
"""Digits that are never trained on: a quarter of 1,797, which resolves accuracy to 0.22 %."""

SPLIT_SEED = 0
SMALLEST_CROP = 160
LARGEST_CROP = 320
JPEG_QUALITY = 85


class Digits(NamedTuple):
    """Images float32 [n, 8, 8] with values 0..16, and their classes int64 [n]."""

    images: NDArray[np.float32]
    classes: NDArray[np.int64]


def digits_split() -> tuple[Digits, Digits]:
    """Return the digits to train on and the held-out ones, stratified by class."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - see the module docstring
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    data = load_digits()
    train_images, held_images, train_classes, held_classes = train_test_split(
        data.images.astype(np.float32),
        data.target.astype(np.int64),
        test_size=HELD_OUT,
        random_state=SPLIT_SEED,
        stratify=data.target,
    )
    return Digits(train_images, train_classes), Digits(held_images, held_classes)


def digits_held_out() -> list[tuple[bytes, int]]:
    """Return a predict body and the true class for each held-out digit."""
    _, held_out = digits_split()
    return [
        (predict_body([image.tolist()]), int(digit))
        for image, digit in zip(held_out.images, held_out.classes, strict=True)
    ]


def predicted_class(answer: bytes) -> int:
    """Return the class in an answer of model `digits` to a body with one instance.

    Raises ValueError for anything else, such as an error body.
    """
    try:
        (prediction,) = orjson.loads(answer)["predictions"]
        return int(prediction["class"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not an answer of model digits: {answer[:200]!r}") from error


def photo_jpegs(n: int, seed: int) -> list[bytes]:
    """Return `n` JPEG files: random crops, 160 to 320 pixels a side, of two photographs."""
    from PIL import Image  # noqa: PLC0415 - see the module docstring
    from sklearn.datasets import load_sample_images  # noqa: PLC0415

    photographs = load_sample_images().images
    draw = random.Random(seed)
    files = []
    for _ in range(n):
        photograph = draw.choice(photographs)
        rows, columns = photograph.shape[:2]
        height = draw.randint(SMALLEST_CROP, LARGEST_CROP)
        width = draw.randint(SMALLEST_CROP, LARGEST_CROP)
        top, left = draw.randint(0, rows - height), draw.randint(0, columns - width)
        file = io.BytesIO()
        crop = photograph[top : top + height, left : left + width]
        Image.fromarray(crop).save(file, format="JPEG", quality=JPEG_QUALITY)
        files.append(file.getvalue())
    return files


def photo_bodies(n: int, seed: int) -> list[bytes]:
    """Return `n` predict bodies for model `photos`, each with one JPEG of `photo_jpegs`."""
    return [
        predict_body([{"b64": base64.b64encode(jpeg).decode("ascii")}])
        for jpeg in photo_jpegs(n, seed)
    ]


def predict_body(instances: list[Any]) -> bytes:
    """Return a predict body in TensorFlow Serving's row format."""
    return orjson.dumps({"instances": instances})
