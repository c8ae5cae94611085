"""Fixtures that several folders share."""

import asyncio
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import dispatcher.core
from roma.tools.demo import models
from tests.support import caretaker

# Before any module copies the environment.
caretaker.mark()

# A test must not fail because its machine was busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_session() -> Iterator[None]:
    with caretaker.watching():
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_event_loop_by_accident() -> None:
    # looptime asks for the current loop also around tests that have none. Until a loop was set
    # once, asyncio answers by making one, which nobody closes; after this it says "none".
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session", autouse=True)
def _the_build_that_is_meant() -> None:
    """`make test` says which build a run is about: a wrong path must not test the other one."""
    is_compiled = not dispatcher.core.__file__.endswith(".py")
    assert is_compiled == bool(os.environ.get("ROMA_COMPILED")), dispatcher.core.__file__


@pytest.fixture(scope="session", autouse=True)
def _one_framework_per_process() -> Iterator[None]:
    """Both in one end in a segmentation fault, in whatever test comes next (roma/tensors/frameworks.py)."""
    yield
    assert not {"tensorflow", "torch"} <= set(sys.modules)


@pytest.fixture(scope="session")
def demo_models_built(tmp_path_factory):
    """The demo's models, really built once per run; nothing is downloaded."""
    return models.prepare(tmp_path_factory.mktemp("demo-models"), download=False)


@pytest.fixture(scope="session")
def demo_models(demo_models_built):
    """SavedModel folders by model name."""
    return {name: model.path for name, model in demo_models_built.items()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skipped test is a failure: a permission that is missing there is a fault."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
