import base64
import io
from collections import Counter

import numpy as np
import orjson
import pytest
from PIL import Image

from roma.tools.demo import inputs


def test_the_split_is_fixed_and_disjoint() -> None:
    train, held_out = inputs.digits_split()
    again, _ = inputs.digits_split()
    assert np.array_equal(train.images, again.images)
    assert (len(train.images), len(held_out.images)) == (1347, 450)
    # As multisets: scikit-learn has no two equal images, so none may be on both sides.
    trained = {image.tobytes() for image in train.images}
    assert not trained & {image.tobytes() for image in held_out.images}


def test_every_class_is_held_out_in_its_share() -> None:
    counts = Counter(digit for _, digit in inputs.digits_held_out())
    assert set(counts) == set(range(10))
    assert max(counts.values()) - min(counts.values()) <= 3


def test_a_digit_body_is_one_instance_in_the_range_of_scikit_learn() -> None:
    bodies = inputs.digits_held_out()
    (pixels,) = orjson.loads(bodies[0][0])["instances"]
    assert np.asarray(pixels).shape == (8, 8)
    highest = max(np.max(orjson.loads(body)["instances"]) for body, _ in bodies[:50])
    assert highest == 16


def test_photos_are_jpegs_of_bounded_size() -> None:
    bodies = inputs.photo_bodies(20, seed=1)
    sizes = set()
    for body in bodies:
        (instance,) = orjson.loads(body)["instances"]
        assert set(instance) == {"b64"}
        with Image.open(io.BytesIO(base64.b64decode(instance["b64"], validate=True))) as image:
            assert image.format == "JPEG"
            assert all(160 <= side <= 320 for side in image.size)
            sizes.add(image.size)
    assert len(sizes) > 10


def test_the_seed_decides_the_photos() -> None:
    assert inputs.photo_bodies(3, seed=1) == inputs.photo_bodies(3, seed=1)
    assert inputs.photo_bodies(3, seed=1) != inputs.photo_bodies(3, seed=2)
    assert inputs.photo_bodies(3, seed=1) == inputs.photo_bodies(5, seed=1)[:3]


def test_the_predicted_class_is_read_from_an_answer() -> None:
    answer = b'{"predictions": [{"class": 7, "probabilities": [0.0, 1.0]}]}'
    assert inputs.predicted_class(answer) == 7


@pytest.mark.parametrize(
    "answer",
    [
        b'{"error": "busy"}',
        b"",
        b"[]",
        b'{"predictions": []}',
        b'{"predictions": [{"class": 1}, {"class": 2}]}',
        b'{"predictions": [3]}',
    ],
)
def test_what_is_no_answer_of_digits_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match="not an answer of model digits"):
        inputs.predicted_class(answer)
