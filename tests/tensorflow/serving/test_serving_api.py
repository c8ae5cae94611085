"""Paths, status codes, examples and version folders: what needs no model."""

import orjson
import pytest

from roma.serving import api, examples, models, session, versions
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import Code, ModelDirectoryError, ModelLoadError, RequestError
from roma.serving.models import Models, Source
from roma.tensors import jsontext


@pytest.mark.parametrize(
    ("method", "target", "call"),
    [
        ("GET", "/v1/models/m", ServingCall(ServingAction.STATUS, "m")),
        ("GET", "/v1/models/m?x=1", ServingCall(ServingAction.STATUS, "m")),
        ("GET", "/V1/Models/M", ServingCall(ServingAction.STATUS, "M")),
        ("GET", "/v1/models/a%20b", ServingCall(ServingAction.STATUS, "a b")),
        ("GET", "/v1/models/m/versions/007", ServingCall(ServingAction.STATUS, "m", version=7)),
        (
            "GET",
            "/v1/models/m/labels/stable",
            ServingCall(ServingAction.STATUS, "m", label="stable"),
        ),
        ("GET", "/v1/models/m/metadata", ServingCall(ServingAction.METADATA, "m")),
        (
            "GET",
            "/v1/models/m/versions/1/metadata",
            ServingCall(ServingAction.METADATA, "m", version=1),
        ),
        ("POST", "/v1/models/m:predict", ServingCall(ServingAction.PREDICT, "m")),
        (
            "POST",
            "/v1/models/m/versions/3:classify",
            ServingCall(ServingAction.CLASSIFY, "m", version=3),
        ),
        (
            "POST",
            "/v1/models/m/labels/a%2Fb:regress",
            ServingCall(ServingAction.REGRESS, "m", label="a/b"),
        ),
    ],
)
def test_a_path_is_this_call(method, target, call):
    assert api.parse(method, target) == call


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/foo"),
        ("POST", "/v1/foo"),
        ("POST", "/v1/models"),
        ("POST", "/v1/models/foo"),
        ("POST", "/v1/models/foo:PREDICT"),
        ("POST", "/v1/models/foo:train"),
        ("POST", "/v1/models/foo/metadata"),
        ("POST", "/v1/models/foo/version/50:regress"),
        ("POST", "/v1/models/foo/versions/HELLO:regress"),
        ("POST", "/v1/models/foo/versions/50/labels/some:regress"),
        ("GET", "/v1/models/foo:predict"),
        ("GET", "/v1/models/foo/bar"),
        ("GET", "/v1/models/foo/versions/²"),
        ("PUT", "/v1/models/foo:predict"),
        ("DELETE", "/v1/models/foo"),
    ],
)
def test_any_other_path_is_malformed(method, target):
    with pytest.raises(RequestError) as refused:
        api.parse(method, target)
    assert str(refused.value) == f"Malformed request: {method} {target}"
    assert api.HTTP_STATUS[refused.value.code] == 400


@pytest.mark.parametrize(
    ("target", "text", "status"),
    [
        ("/v1/models", "Missing model name in request.", 400),
        (f"/v1/models/m/versions/{2**64}", f"Failed to convert version: {2**64} to numeric.", 400),
        ("/healthz", "Not Found", 404),
        ("/v1", "Not Found", 404),
    ],
)
def test_other_faults_of_a_path(target, text, status):
    with pytest.raises(RequestError) as refused:
        api.parse("GET", target)
    assert (str(refused.value), api.HTTP_STATUS[refused.value.code]) == (text, status)


def test_every_code_has_a_status():
    assert api.HTTP_STATUS.keys() == set(Code)


def test_an_error_may_quote_bytes_that_are_no_text():
    assert orjson.loads(api.error_body("bad \udcff value")) == {"error": "bad ? value"}


def test_examples_become_features_of_one_kind():
    body = b'{"context": {"c": "x"}, "examples": [{"f": [1.5, 2.0], "i": [3, true], "e": []}]}'
    context, (example,) = examples.decode_examples(jsontext.parse(body))
    assert context == {"c": ("bytes", [b"x"])}
    assert example == {"f": ("float", [1.5, 2.0]), "i": ("int64", [3, 1]), "e": (None, [])}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{}", "key 'examples' is expected and was not found"),
        ('{"examples": {}}', "Expecting 'examples' value to be an list/array"),
        ('{"examples": []}', "'examples' value is an empty array"),
        ('{"examples": [1]}', "Example must be JSON object but got JSON Number"),
        ('{"examples": [{"x": null}]}', "Feature: x has element with unexpected JSON type: Null"),
        ('{"examples": [{"x": [[1]]}]}', "Feature: x has element with unexpected JSON type: Array"),
        ('{"examples": [{"\\ud800": 1}]}', 'Feature name is not UTF-8: "\ud800"'),
        (
            '{"examples": [{"x": [1, 2.0]}]}',
            "Unexpected element type in feature: x expecting type: int64",
        ),
        (
            '{"examples": [{"x": 9223372036854775808}]}',
            "Feature: x has uint64_t element. Only int64_t is supported.",
        ),
    ],
)
def test_bad_examples(body, text):
    with pytest.raises(RequestError) as refused:
        examples.decode_examples(jsontext.parse(body.encode()))
    assert text in str(refused.value)


def test_the_latest_version_and_the_labelled_ones_are_served(tmp_path):
    # The last two are beyond an int64.
    for name in ("2", "00000010", "9", "tmp", "3.old", str(2**63), str(2**64 - 1)):
        (tmp_path / name).mkdir()
    (tmp_path / "11").write_text("a file is no version")
    assert versions.choose(tmp_path, {}) == {10: tmp_path / "00000010"}
    assert list(versions.choose(tmp_path, {"stable": 2, "canary": 10})) == [10, 2]
    assert list(versions.choose(tmp_path, {}, versions.latest(2))) == [10, 9]
    (tmp_path / str(2**63 - 1)).mkdir()
    assert list(versions.choose(tmp_path, {})) == [2**63 - 1]


def test_a_folder_that_cannot_be_served_says_why(tmp_path):
    with pytest.raises(ModelDirectoryError, match="No such file"):
        versions.choose(tmp_path / "none", {})
    with pytest.raises(ModelDirectoryError, match="holds no version"):
        versions.choose(tmp_path, {})
    (tmp_path / "1").mkdir()
    with pytest.raises(ModelDirectoryError, match="label old names version 7"):
        versions.choose(tmp_path, {"old": 7})


def test_a_label_moves_when_its_version_has_been_loaded(tmp_path, monkeypatch):
    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
    stable, found = ServingCall(ServingAction.PREDICT, "m", label="stable"), []

    def load(path, _intra_op):
        if path.name != "1":
            found.append(served.find(stable)[0])
        if path.name == "3":
            raise OSError("no model")
        return path

    monkeypatch.setattr(session, "load", load)
    monkeypatch.setattr(models, "warm_up", lambda *_: None)

    def source(version, *others):
        return {"m": Source(tmp_path, {"stable": version}, lambda _: others)}

    served = Models(source(1))
    served.load(1)
    served.follow(source(2))
    assert served.find(stable)[0] == 2
    with pytest.raises(ModelLoadError, match="m version 3: no model"):
        served.follow(source(3))
    assert served.find(stable)[0] == 2
    with pytest.raises(ModelLoadError, match="m version 3: no model"):
        served.follow(source(3, 2))
    assert served.find(stable)[0] == 2
    assert found == [1, 2, 2]


def test_a_label_that_moves_while_it_is_looked_up_is_found(tmp_path, monkeypatch):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(session, "load", lambda path, _intra_op: path)
    monkeypatch.setattr(models, "warm_up", lambda *_: None)

    class Moving(dict):
        def get(self, label):
            served.follow({"m": Source(tmp_path, {label: 2})})
            return self[label]

    served = Models({"m": Source(tmp_path, Moving(stable=1))})
    served.load(1)
    call = ServingCall(ServingAction.PREDICT, "m", label="stable")
    assert served.find(call) == (1, tmp_path / "1")
    assert served.find(call) == (2, tmp_path / "2")


def test_a_load_that_fails_without_a_text_is_named(tmp_path, monkeypatch):
    (tmp_path / "1").mkdir()

    def load(_path, _intra_op):
        raise MemoryError

    monkeypatch.setattr(session, "load", load)
    source = {"m": Source(tmp_path)}
    with pytest.raises(ModelLoadError, match=r"m version 1: MemoryError\(\)"):
        Models(source).load(1)
    with pytest.raises(ModelLoadError, match=r"m version 1: MemoryError\(\)"):
        Models({}).follow(source)
