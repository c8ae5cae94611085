"""Build of a report: from a directory of records to a page and pictures."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from roma.ui.report.clock import Clock
from roma.ui.report.episodes import episodes, words
from roma.ui.report.figures import Artist, png, svg
from roma.ui.report.page import SHOWN, Content, page
from roma.ui.report.read import RecordedRun, read
from roma.ui.report.summary import summaries, worker_cores
from roma.ui.report.verdict import verdict


@dataclass(frozen=True, slots=True)
class RunReport:
    """A finished page, and the verdict on the run."""

    html: str
    said: list[str]
    notes: list[str]


def build(directory: Path, *, title: str | None = None, pictures: Path | None = None) -> RunReport:
    """Return the report on a run; write its pictures as PNG if a directory for them is given.

    Raises DecisionLogError if the run cannot be read, OSError if a picture cannot be written.
    """
    run = read(directory)
    clock = Clock(run.whole, virtual=run.virtual)
    found = episodes(run)
    artist = Artist(run, clock, found)
    drawn = {}
    for key, figure in _figures(run, artist):
        drawn[key] = svg(figure, key)
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            png(figure, pictures / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', key)}.png")
    totals = summaries(run)
    said = verdict(run, totals, found, clock) if totals else []
    content = Content(
        title=title or f"Run {directory.resolve().name}",
        run=run,
        clock=clock,
        step=artist.grid.step,
        said=said,
        summaries=totals,
        workers=worker_cores(run),
        episodes=found,
        words=[words(run, episode) for episode in found[:SHOWN]],
        pictures=drawn,
    )
    return RunReport(page(content), said, run.notes)


def _figures(run: RecordedRun, artist: Artist) -> Iterator[tuple[str, Figure]]:
    for name in sorted(run.models):
        yield f"model {name}", artist.model(name)
    for name in sorted({t.model for t in run.executables.values()} - run.models.keys()):
        yield f"model {name}", artist.cores(name)
    for name in sorted(run.workers):
        yield f"worker {name}", artist.worker(name)
