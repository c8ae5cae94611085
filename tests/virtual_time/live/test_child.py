"""Programs that are kept running: what is said of one that cannot run, and for how long."""

import asyncio
import signal
import sys

import pytest

from roma.deploy import child as children
from roma.deploy.child import Child
from tests.support.waiting import until

SCRIPT = """
import os, pathlib, sys, time
model = pathlib.Path({!r})
if not model.exists():
    if "ROMA_FAULT_FILE" in os.environ:
        pathlib.Path(os.environ["ROMA_FAULT_FILE"]).write_text("no such model")
    sys.exit({})
model.with_name("running").touch()
time.sleep(60)
"""


@pytest.fixture
async def broken(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "LONGEST_DELAY", 0.05)
    made = []

    def make(status=2, **how):
        argv = [sys.executable, "-c", SCRIPT.format(str(tmp_path / "model"), status)]
        made.append(Child("server", argv, **how))
        made[-1].start()
        return made[-1]

    yield make, tmp_path / "model"
    for child in made:
        await child.stop()


async def test_what_keeps_trying_has_its_fault_until_it_runs(broken, caplog):
    make, model = broken
    child = make(keeps_trying=True)
    await until(lambda: child.restarts >= 3)
    await until(lambda: child.fault is not None)
    assert "server cannot run here" in str(child.fault)
    assert sum("cannot run here" in r.message for r in caplog.records) == 1
    assert not child.fatal.done()
    model.touch()
    await until(model.with_name("running").exists)
    assert child.fault is None
    assert child.pid is not None


async def test_what_does_not_keep_trying_gives_up(broken):
    make, _ = broken
    child = make()
    async with asyncio.timeout(20):
        assert "server cannot run here" in str(await child.fatal)
    assert child.restarts == 0


async def test_what_ran_before_does_not_give_up(broken, caplog):
    make, model = broken
    model.touch()
    child = make()
    running = model.with_name("running")
    await until(running.exists)
    running.unlink()
    model.unlink()
    child.signal(signal.SIGTERM)
    await until(lambda: child.restarts >= 3)
    assert not child.fatal.done()
    assert sum("cannot run here" in r.message for r in caplog.records) == 1
    model.touch()
    await until(running.exists)


@pytest.mark.parametrize(
    ("status", "words"),
    [(2, "server cannot run here: no such model"), (1, "server ended (1): no such model")],
)
async def test_why_a_program_does_not_stay_up_is_known_also_while_it_is_tried(
    broken, tmp_path, monkeypatch, status, words
):
    monkeypatch.setattr(children, "FIRST_DELAY", 0.05)
    make, model = broken
    child = make(status, keeps_trying=True, fault_file=tmp_path / "server.fault")
    assert child.trouble == ""
    await until(lambda: child.restarts >= 1 and child.pid is not None)
    assert child.trouble == words
    model.touch()
    await until(model.with_name("running").exists)
    monkeypatch.setattr(children, "STEADY", 0.5)
    await until(lambda: not child.trouble)  # it has run for STEADY seconds
    assert child.pid is not None
    assert not (tmp_path / "server.fault").exists()


async def test_a_change_that_is_told_while_a_program_starts_waits_until_it_listens(tmp_path):
    heard = tmp_path / "heard"
    script = f"""
import asyncio, os, pathlib, signal, time
from roma.config.reload import listen

async def main():
    os.kill(os.getpid(), signal.SIGHUP)
    told = asyncio.Event()
    listen(told)
    await told.wait()
    pathlib.Path({str(heard)!r}).touch()
    await asyncio.sleep(60)

asyncio.run(main())
"""
    child = Child("program", [sys.executable, "-c", script], hears=True)
    child.start()
    try:
        await until(heard.exists)
    finally:
        await child.stop()
    assert child.restarts == 0
