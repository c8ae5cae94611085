"""Safe shares of processes whose supervisor hangs, in virtual time."""

import asyncio

import pytest

from roma.config import schema
from roma.deploy import lease

pytestmark = pytest.mark.looptime

CONFIG = """
models: {{{models}}}
workers: [{{name: w, cores: 1.2}}]
"""


class Quota:
    """A group that keeps what it was given."""

    def __init__(self):
        self.given = []

    def set_cores(self, cores):
        self.given.append(round(cores, 3))
        return cores


def configured(names):
    models = ", ".join(f"{name}: {{path: m, sla: {{response_time: 1}}}}" for name in names)
    return schema.parse(CONFIG.format(models=models))


async def test_a_model_that_comes_while_the_supervisor_hangs_has_its_share_too(monkeypatch, caplog):
    """It was given its minimum, for a supervisor to raise: it would never load."""
    config, groups, ticks = configured("ab"), {f"{name}@w": Quota() for name in "ab"}, 1

    async def answers(*_):
        return ticks

    monkeypatch.setattr(lease, "_ticks", answers)
    task = asyncio.create_task(lease.keep_safe("w", lambda: config, lambda: dict(groups)))
    await asyncio.sleep(10)
    assert [quota.given for quota in groups.values()] == [[0.6], [0.6]]  # once
    config, groups["c@w"] = configured("abc"), Quota()
    await asyncio.sleep(10)
    assert [q.given for q in groups.values()] == [[0.6, 0.4], [0.6, 0.4], [0.4]]
    ticks = 2  # it goes on, and hangs again
    await asyncio.sleep(10)
    assert groups["c@w"].given == [0.4, 0.4]
    assert caplog.text.count("no tick for 3 s: safe shares") == 2
    assert not task.done()
    task.cancel()
