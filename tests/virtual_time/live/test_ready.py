"""Lines of `roma up` about models that are served, or cannot be."""

from types import SimpleNamespace

import pytest

from roma.config import schema
from roma.config.placement import executables
from roma.deploy.model_servers import model_server
from roma.deploy.ready import summary

TEXT = """
models:
  a: {path: /a, sla: {response_time: 1}}
  b: {path: /b, sla: {response_time: 1}}
workers: [{name: w, cores: 2}]
"""


@pytest.fixture
def two():
    return schema.parse(TEXT)


@pytest.mark.parametrize(
    ("states", "troubles", "said", "is_complete"),
    [
        ({}, {}, "", False),
        ({"a@w": "idle", "b@w": "loading"}, {}, "", False),
        ({"a@w": "idle", "b@w": "busy"}, {}, "ready: 2 models", True),
        (
            {"a@w": "idle", "b@w": "loading"},
            {"b@w": "b@w cannot run here: /b: No such file"},
            "ready: 1 of 2 models; unavailable: b@w cannot run here: /b: No such file",
            False,
        ),
        ({"a@w": "loading", "b@w": "loading"}, {"b@w": "b@w ended (1)"}, "", False),
        # What once failed and runs now is served.
        ({"a@w": "idle", "b@w": "idle"}, {"b@w": "b@w ended (1)"}, "ready: 2 models", True),
    ],
    ids=["silent", "loading", "served", "one cannot run", "one may yet", "put right"],
)
def test_models_are_called_ready_when_they_are(two, states, troubles, said, is_complete):
    children = {n: SimpleNamespace(trouble=troubles.get(n, "")) for n in ("a@w", "b@w")}
    assert summary(two, states, children) == (said, is_complete)


async def test_a_model_server_is_quiet_unless_the_environment_says_otherwise(two, monkeypatch):
    (executable, _) = executables(two)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert model_server(executable, None, 1, None)._env["TF_CPP_MIN_LOG_LEVEL"] == "3"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    assert model_server(executable, None, 1, None)._env["TF_CPP_MIN_LOG_LEVEL"] == "0"
