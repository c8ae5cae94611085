import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_event_loop_by_accident() -> None:
    # looptime asks for the current loop also around tests that have none. Until a loop was set
    # once, asyncio answers by making one, which nobody closes; after this it says "none".
    asyncio.set_event_loop(None)
