"""Scenes of the live page, and where things are on it."""

from dataclasses import replace

from roma.ui.dashboard.rows import Worker
from tests.support.fake_board import WORKER, Actor, FakeBoard

AWAY = ("Failed to load resource", "net::ERR")
"""Chromium's own messages when a server is gone."""

SHORT = {"limit": "worker_short", "demand": 2.0, "allocation": 0.9, "applied": 0.9, "used": 0.88}
LATE = {"time": 0.9, "late": 10, "waiting": 40, "oldest": 1.3, "cores": SHORT}
HOSTILE = "<img src=x onerror=document.title='owned'> Permission denied"


def crowd():
    """A scene in which everything is wrong at once."""
    fake_board = FakeBoard(
        Actor("calm"),
        Actor("busy", **LATE),
        Actor("gone", executor="lost"),
        Actor("starting", executor="loading"),
        Actor("far-away", worker="far"),
        Actor("watched", worker="watch", time=0.8),
        Actor("rehearsed", worker="dry"),
        Actor("unused", rate=0, time=None),
        Actor("close", time=0.4),
        Actor("stuck", time=0.7, cores={"limit": "failure", "failure": HOSTILE}),
        workers=(
            replace(WORKER, capacity=1.5),
            Worker("far", "http://far", False, 34.0, "no answer within 0.5 s"),
            Worker("watch", "http://watch", True, mode="observe-only: no rights", capacity=4.0),
            Worker("dry", "http://dry", True, mode="dry-run", capacity=4.0),
        ),
    )
    fake_board.past(120)
    return fake_board


def row(page, model):
    """Return the row of a model."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=model, exact=True))


async def order(page):
    """Return the names of the models, from the top."""
    return await page.locator("tbody a.name").all_text_contents()
