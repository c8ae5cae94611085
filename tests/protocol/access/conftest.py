"""The event loops on which a dispatcher's TLS is tested."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """The dispatcher runs on uvloop, whose TLS is not asyncio's: test both."""
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return (
        both
        if item.path.stem in ("test_silent_clients", "test_tls")
        else {"asyncio": asyncio.new_event_loop}
    )
