"""The demo's two real models: prepared once, cached, served like any other SavedModel.

- `digits`: a small CNN trained here on scikit-learn's handwritten digits. Input `pixels` float32
  [batch, 8, 8] in 0..16; outputs `class` int64 [batch], `probabilities` float32 [batch, 10].
- `photos`: MobileNetV2 at 160 × 160. Input `image_bytes` string [batch] of JPEG files; outputs
  `class` int64 [batch], `score` float32 [batch].

TensorFlow never enters the process that calls `prepare`: a child builds each model, so the caller
keeps its memory small, may fork, and sees none of TensorFlow's log. The functions that build import
it themselves.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from roma.domain.errors import RomaError
from roma.tools.demo import inputs

MODELS = ("digits", "photos")
VERSION = 1
FACTS = "roma_model.json"
"""Name of the file beside the version directory; model servers read only numbered directories."""

LEAST_ACCURACY = 0.975
EPOCHS = 20
SIDE = 160
WEIGHTS_URL = (
    "https://storage.googleapis.com/tensorflow/keras-applications/mobilenet_v2/"
    f"mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_{SIDE}.h5"
)
DOWNLOAD_LIMIT = 10.0
"""Seconds to download the weights' 14 MB; a slower network counts as none."""
BUILD_LIMIT = 600.0
"""Seconds after which a build counts as stuck; two busy cores need about 20."""


class PreparationError(RomaError):
    """A model of the demo could not be built."""


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A SavedModel at `path`/`version`.

    `weights` is `trained`, `imagenet` or `random`. `accuracy` is the share of held-out inputs
    classified correctly by direct execution, None where there are none. `built` is True if this
    call built the model.
    """

    name: str
    path: Path
    version: int
    weights: str
    accuracy: float | None
    built: bool


def prepare(
    cache: Path, *, download: bool = True, on_step: Callable[[str], None] | None = None
) -> dict[str, PreparedModel]:
    """Return both models by name, building under `cache` what is missing or out of date.

    A model is written atomically, and two concurrent calls build it once. Without `download` no
    network is used. `on_step` is called with a description of each slow step.

    Raises PreparationError if a model cannot be built or `digits` is not accurate enough.
    """
    cache.mkdir(parents=True, exist_ok=True)
    stamp = _stamp()
    prepared = {}
    for name in MODELS:
        with _locked(cache):
            built = _facts(cache / name).get("stamp") != stamp
            if built:
                if on_step is not None:
                    on_step(f"building model {name}")
                _build(cache, name, stamp, download=download)
        facts = _facts(cache / name)
        prepared[name] = PreparedModel(
            name, cache / name, VERSION, facts["weights"], facts["accuracy"], built
        )
    return prepared


def _stamp() -> str:
    """Return a digest of what a build depends on: this code, the inputs and the libraries."""
    digest = hashlib.sha256()
    for source in (Path(__file__), Path(inputs.__file__)):
        digest.update(source.read_bytes())
    for library in ("tensorflow", "keras", "scikit-learn"):
        try:
            digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
        except importlib.metadata.PackageNotFoundError:
            raise PreparationError(f"{library} is missing: install the extra `serving`") from None
    return digest.hexdigest()


def _facts(model: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = orjson.loads((model / FACTS).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return facts if (model / str(VERSION) / "saved_model.pb").is_file() else {}


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    # flock, because the kernel releases it however its holder ends.
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(cache: Path, name: str, stamp: str, *, download: bool) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
        target = Path(scratch) / name
        _run_child(name, target, download=download)
        facts = orjson.loads((target / FACTS).read_bytes()) | {"stamp": stamp}
        (target / FACTS).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
        final = cache / name
        if final.exists():
            final.rename(Path(scratch) / "outdated")
        target.rename(final)


def _run_child(name: str, target: Path, *, download: bool) -> None:
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",  # the same training on every machine
    }
    call = (
        f"from roma.tools.demo.models import build; build({name!r}, {str(target)!r}, {download!r})"
    )
    try:
        subprocess.run(
            [sys.executable, "-P", "-c", call],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT,
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-5:]
        raise PreparationError("\n".join([f"model {name} was not built:", *last])) from error
    except subprocess.TimeoutExpired as error:
        raise PreparationError(f"model {name} took more than {BUILD_LIMIT:g} s") from error


def build(name: str, target: str, download: bool) -> None:
    """Build one model into `target`; `prepare` runs this in a child process."""
    builders = {"digits": _build_digits, "photos": _build_photos}
    serve, facts, warm_up = builders[name](download)
    version = Path(target) / str(VERSION)
    _save(serve, version)
    extra = version / "assets.extra"
    extra.mkdir()
    (extra / "roma_warmup.json").write_bytes(warm_up)
    (Path(target) / FACTS).write_bytes(orjson.dumps(facts))


def _save(serve: Any, version: Path) -> None:
    """Write a function of one tensor that returns a dict, its variables made constants.

    Constants let TensorFlow fold batch normalisation into the convolutions when it loads the
    model: `photos` answers in about 0.6 of the time (one thread, median of 40 calls).
    """
    import tensorflow as tf  # noqa: PLC0415 - only in the child
    from tensorflow.python.framework.convert_to_constants import (  # noqa: PLC0415
        convert_variables_to_constants_v2,  # its public name was removed after TensorFlow 1
    )

    concrete = serve.get_concrete_function()
    names = sorted(concrete.structured_outputs)  # flattened dicts are in the order of their keys
    frozen = convert_variables_to_constants_v2(concrete)

    def constant(tensor: Any) -> dict[str, Any]:
        return dict(zip(names, frozen(tensor), strict=True))

    module = tf.Module()
    module.serve = tf.function(constant, input_signature=serve.input_signature)
    tf.saved_model.save(module, str(version), signatures={"serving_default": module.serve})


def _build_digits(_download: bool) -> tuple[Any, dict[str, Any], bytes]:
    import keras  # noqa: PLC0415 - only in the child
    import tensorflow as tf  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((8, 8)),
            layers.Rescaling(1 / 16),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy")
    train, held_out = inputs.digits_split()
    network.fit(train.images, train.classes, epochs=EPOCHS, batch_size=32, verbose=0)

    def classify(pixels: Any) -> dict[str, Any]:
        probabilities = network(pixels, training=False)
        return {"class": tf.argmax(probabilities, axis=-1), "probabilities": probabilities}

    serve = tf.function(
        classify, input_signature=[tf.TensorSpec([None, 8, 8], tf.float32, name="pixels")]
    )
    answers = serve(tf.constant(held_out.images))["class"].numpy()
    accuracy = float((answers == held_out.classes).mean())
    if accuracy < LEAST_ACCURACY:
        raise PreparationError(f"digits: accuracy {accuracy:.4f} must be >= {LEAST_ACCURACY}")
    warm_up = inputs.predict_body([train.images[0].tolist()])
    return serve, {"weights": "trained", "accuracy": accuracy}, warm_up


def _build_photos(download: bool) -> tuple[Any, dict[str, Any], bytes]:
    import keras  # noqa: PLC0415 - only in the child
    import tensorflow as tf  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    network = keras.applications.MobileNetV2(input_shape=(SIDE, SIDE, 3), weights=None)

    def pixels(jpeg: Any) -> Any:
        return tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), (SIDE, SIDE))

    def batch(jpegs: Any) -> Any:
        shape = tf.TensorSpec([SIDE, SIDE, 3], tf.float32)
        return tf.map_fn(pixels, jpegs, fn_output_signature=shape) / 127.5 - 1.0

    published = download and _load_published(network)
    if not published:
        # Statistics of real photos: else random layers would map every image to one answer.
        for layer in network.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = 0.0
        network(batch(tf.constant(inputs.photo_jpegs(16, seed=0))), training=True)

    def classify(image_bytes: Any) -> dict[str, Any]:
        scores = network(batch(image_bytes), training=False)
        return {"class": tf.argmax(scores, axis=-1), "score": tf.reduce_max(scores, axis=-1)}

    serve = tf.function(
        classify, input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")]
    )
    weights = "imagenet" if published else "random"
    return serve, {"weights": weights, "accuracy": None}, inputs.photo_bodies(1, seed=0)[0]


def _load_published(network: Any) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        file = _download(Path(scratch) / "weights.h5")
        try:
            if file is not None:
                network.load_weights(file)
        except (OSError, ValueError):
            return False  # a proxy's error page or a truncated file, not the weights
        return file is not None


def _download(file: Path) -> Path | None:
    """Fetch the published weights; None if the network does not deliver them in time."""

    def fetch() -> None:
        part = file.with_suffix(".part")
        with (
            suppress(OSError),
            urllib.request.urlopen(WEIGHTS_URL, timeout=DOWNLOAD_LIMIT) as answer,  # noqa: S310 - https, fixed
            part.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)
            part.rename(file)

    # A daemon thread, because name resolution has no timeout.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(DOWNLOAD_LIMIT)
    return file if file.exists() else None
