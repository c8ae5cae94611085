"""`roma up` and a change of its file that cannot be in force yet: it is tried again."""

import asyncio
import logging

import pytest

from roma.config import schema
from roma.deploy import up

pytestmark = pytest.mark.looptime

ONE = """
models: {a: {path: /nowhere, sla: {response_time: 1}}}
workers: [{cores: 1}]
control: {dry_run: true}
tokens: {exchange: token}
"""
TWO = ONE.replace("}}}", "}}, b: {path: /nowhere, sla: {response_time: 1}}}")


async def tried(file, seconds):
    """Follow a file, in which there is a model more, for so long; return why that ended, if so."""
    file.write_text(ONE)
    deployment = up.Deployment(schema.load(file), file.with_name("accepted.yaml"), None, None)
    file.write_text(TWO)
    following = asyncio.create_task(up._follow(deployment, file, asyncio.Event()))
    await asyncio.wait([following], timeout=seconds)
    following.cancel()
    (found,) = await asyncio.gather(following, return_exceptions=True)
    return None if isinstance(found, asyncio.CancelledError) else found


async def test_a_token_that_is_being_replaced_ends_nothing(tmp_path, caplog):
    assert await tried(tmp_path / "roma.yaml", 10) is None
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert f"not all of it is in force yet: tokens.exchange: {tmp_path}/token: cannot be" in line
