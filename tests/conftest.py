"""Fixtures that several folders share."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import dispatcher.core
from roma.tools.demo import models
from tests.support import caretaker, command_line
from tests.support.examples import PROFILE

# Before any module copies the environment.
caretaker.mark()

# A test must not fail because its machine was busy, hence no deadline. `ci` is what CI runs; `dev`
# tries a quarter of the examples (tests that set their own number take it from `examples`).
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", parent=settings.get_profile("ci"), max_examples=25)
settings.load_profile(PROFILE)

MARKERS = {
    "unit": "one module or a few, without a socket",
    "properties": "Hypothesis state machines over the cores",
    "virtual_time": "the live code and the simulator, on a clock that is not the machine's",
    "protocol": "real sockets, no framework",
    "stories": "whole interactions as text",
    "tensorflow": "imports TensorFlow",
    "pytorch": "imports PyTorch, in a process of its own",
    "system": "an engine, a browser, cgroups or whole deployments",
}
"""By folder of tests/."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare a marker for each folder."""
    config.addinivalue_line("markers", "long: seconds of computation; left out of `make test`")
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by its folder."""
    for item in items:
        item.add_marker(_folder(item))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture
def roma(capfd: pytest.CaptureFixture[str]) -> command_line.Roma:
    """Run `roma` with arguments, in this process."""
    return command_line.runner(capfd)


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
def _one_framework_per_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both in one end in a segmentation fault, in whatever test comes next (roma/tensors/frameworks.py).

    None belongs in the fast tests, whose every process would load it.
    """
    yield
    frameworks = {"tensorflow", "torch"} & set(sys.modules)
    folders = {_folder(item) for item in request.session.items}
    assert len(frameworks) <= (1 if folders & {"tensorflow", "pytorch", "system"} else 0)


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
