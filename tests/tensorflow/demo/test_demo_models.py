"""The demo's models: really built once, then opened by a TensorFlow of its own process."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from roma.tools.demo import inputs, models
from roma.tools.demo.models import FACTS, PreparationError, PreparedModel, prepare

ROOT = Path(__file__).parents[3]

OPEN_THEM = """
import base64, json, sys
import numpy as np, orjson, tensorflow as tf
from roma.tools.demo import inputs

def spec(specs):
    return {name: [s.dtype.name, s.shape.as_list()] for name, s in specs.items()}

served, seen = {}, {}
for name in ("digits", "photos"):
    module = tf.saved_model.load(f"{sys.argv[1]}/{name}/1")
    serve = served[name] = module.signatures["serving_default"]
    serve.module = module
    seen[name] = {
        "in": spec(serve.structured_input_signature[1]), "out": spec(serve.structured_outputs)
    }

_, held_out = inputs.digits_split()
answers = served["digits"](pixels=tf.constant(held_out.images))
seen["accuracy"] = float((answers["class"].numpy() == held_out.classes).mean())
seen["sums"] = [float(x) for x in answers["probabilities"].numpy().sum(axis=1)[:5]]

jpegs = inputs.photo_jpegs(8, seed=3)
together = served["photos"](image_bytes=tf.constant(jpegs))
alone = [served["photos"](image_bytes=tf.constant([jpeg])) for jpeg in jpegs]
seen["together"] = together["class"].numpy().tolist()
seen["alone"] = [int(one["class"].numpy()[0]) for one in alone]
seen["scores"] = together["score"].numpy().tolist()

def warm_up(name):
    with open(f"{sys.argv[1]}/{name}/1/assets.extra/roma_warmup.json") as file:
        return json.load(file)["instances"]

(digit,) = warm_up("digits")
(photo,) = warm_up("photos")
served["digits"](pixels=tf.constant([digit], tf.float32))
served["photos"](image_bytes=tf.constant([base64.b64decode(photo["b64"])]))
print(json.dumps(seen))
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


@pytest.fixture(scope="session")
def cache(demo_models_built: dict[str, PreparedModel]) -> Path:
    return demo_models_built["digits"].path.parent


@pytest.fixture(scope="session")
def prepared(demo_models_built: dict[str, PreparedModel]) -> dict[str, PreparedModel]:
    return demo_models_built


@pytest.fixture(scope="session")
def seen(prepared: dict[str, PreparedModel], cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(run_python(OPEN_THEM, str(cache)))
    return found


def test_both_models_are_built_and_say_what_they_are(
    prepared: dict[str, PreparedModel], cache: Path
) -> None:
    digits, photos = prepared["digits"], prepared["photos"]
    assert (digits.path, digits.version, digits.weights) == (cache / "digits", 1, "trained")
    assert digits.accuracy is not None
    assert digits.accuracy >= 0.975
    assert (photos.weights, photos.accuracy) == ("random", None)
    assert digits.built
    assert photos.built
    assert orjson.loads((cache / "photos" / FACTS).read_bytes())["weights"] == "random"


def test_nothing_but_the_models_is_left_in_the_cache(
    prepared: dict[str, PreparedModel], cache: Path
) -> None:
    assert {path.name for path in cache.iterdir()} == {"digits", "photos", ".lock"}


def test_a_second_call_builds_nothing(
    prepared: dict[str, PreparedModel], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a cached model was built again")

    monkeypatch.setattr(models, "_run_child", forbidden)
    told: list[str] = []
    again = prepare(cache, on_step=told.append)
    assert told == []
    assert not any(model.built for model in again.values())
    assert again["digits"].accuracy == prepared["digits"].accuracy


def test_the_signatures_are_as_documented(seen: dict[str, Any]) -> None:
    assert seen["digits"] == {
        "in": {"pixels": ["float32", [None, 8, 8]]},
        "out": {"class": ["int64", [None]], "probabilities": ["float32", [None, 10]]},
    }
    assert seen["photos"] == {
        "in": {"image_bytes": ["string", [None]]},
        "out": {"class": ["int64", [None]], "score": ["float32", [None]]},
    }


def test_the_saved_digits_are_as_accurate_as_reported(
    seen: dict[str, Any], prepared: dict[str, PreparedModel]
) -> None:
    assert seen["accuracy"] == prepared["digits"].accuracy
    assert seen["sums"] == pytest.approx([1.0] * 5, abs=1e-5)


def test_photos_answers_depend_on_the_image_and_not_on_its_batch(seen: dict[str, Any]) -> None:
    assert seen["together"] == seen["alone"]
    assert len(set(seen["together"])) > 1
    assert all(0 < score <= 1 for score in seen["scores"])


def test_importing_the_demo_imports_no_tensorflow() -> None:
    heavy = "{'tensorflow', 'keras', 'sklearn', 'PIL'}"
    code = f"import sys, roma.tools.demo.models, roma.tools.demo.inputs; print({heavy} & set(sys.modules))"
    assert run_python(code).strip() == "set()"


class Builder:
    """Stands for the child process: writes a model of two small files."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False

    def __call__(self, name: str, target: Path, *, download: bool) -> None:
        self.calls.append(name)
        (target / "1").mkdir(parents=True)
        (target / "1" / "saved_model.pb").write_text(f"build {len(self.calls)}")
        if self.fails:
            raise PreparationError(f"model {name} was not built")
        (target / FACTS).write_bytes(b'{"weights": "random", "accuracy": null}')


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setattr(models, "_run_child", builder)
    return builder


def test_changed_code_builds_again_and_replaces_the_model(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr(models, "_stamp", lambda: "of changed code")
    assert all(model.built for model in prepare(tmp_path).values())
    assert builder.calls == ["digits", "photos", "digits", "photos"]
    assert (tmp_path / "photos" / "1" / "saved_model.pb").read_text() == "build 4"
    assert not any(model.built for model in prepare(tmp_path).values())


def test_a_damaged_model_is_built_again(builder: Builder, tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "digits" / "1" / "saved_model.pb").unlink()
    (tmp_path / "photos" / FACTS).write_text("{")
    assert all(model.built for model in prepare(tmp_path).values())


def test_a_failed_build_leaves_the_old_model_and_no_scraps(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr(models, "_stamp", lambda: "of broken code")
    builder.fails = True
    with pytest.raises(PreparationError, match="digits was not built"):
        prepare(tmp_path)
    assert (tmp_path / "digits" / "1" / "saved_model.pb").read_text() == "build 1"
    assert {path.name for path in tmp_path.iterdir()} == {"digits", "photos", ".lock"}


def test_two_calls_at_once_build_once(builder: Builder, tmp_path: Path) -> None:
    threads = [threading.Thread(target=prepare, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(builder.calls) == ["digits", "photos"]


def test_a_child_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match=r"model nonsense was not built:\n(.*\n)*.*KeyError"):
        models._run_child("nonsense", tmp_path / "x", download=False)


def test_weights_come_from_the_network_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tmp_path / "published.h5"
    published.write_bytes(b"weights")
    monkeypatch.setattr(models, "WEIGHTS_URL", published.as_uri())
    fetched = models._download(tmp_path / "fetched.h5")
    assert fetched is not None
    assert fetched.read_bytes() == b"weights"
    monkeypatch.setattr(models, "WEIGHTS_URL", (tmp_path / "absent.h5").as_uri())
    assert models._download(tmp_path / "missing.h5") is None


def test_what_is_fetched_but_no_weights_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Network:
        def load_weights(self, file: Path) -> None:
            raise OSError("Unable to open file (file signature not found)")

    page = tmp_path / "page.html"
    page.write_text("<html>please log in</html>")
    monkeypatch.setattr(models, "WEIGHTS_URL", page.as_uri())
    assert not models._load_published(Network())


def test_the_held_out_digits_are_those_the_accuracy_is_measured_on() -> None:
    _, held_out = inputs.digits_split()
    assert [digit for _, digit in inputs.digits_held_out()] == held_out.classes.tolist()
