"""Figures of a run: one per model and per worker, for the page (SVG) and for papers (PNG)."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roma.config import file_edit
from roma.ui.report.clock import Clock
from roma.ui.report.columns import Grid, Numbers, Span
from roma.ui.report.episodes import Episode
from roma.ui.report.read import ExecutableTrack, ModelTrack, RecordedRun
from roma.ui.report.style import LIGHT, by_role

POINTS = 480
"""Most time buckets in a picture; more than one per pixel column would show no more detail."""

WIDTH = 9.6
HEIGHT = 1.55
"""Height of one panel in inches."""

DPI = 160
"""Resolution of PNGs, for a column of a paper or a slide."""

ETA_SHOWN = 2.0
"""Largest η drawn; higher values are drawn here, as the worker has more than enough cores."""

_STYLE: Any = {
    "font.size": 8.5,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["ink"],
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LIGHT["rule"],
    "legend.frameon": False,
    "legend.labelcolor": LIGHT["ink"],
    "svg.fonttype": "none",
}

_LEANER = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        # Inline SVG in HTML needs no namespaces, and the page sets the size.
        (r' (?:xmlns(?::xlink)?|version)="[^"]*"| (?:width|height)="[\d.]+pt"', ""),
        ("xlink:href", "href"),
        # Group ids and a global style would affect the other pictures on the page.
        (r'<g id="[a-z_.A-Z\d]+">', "<g>"),
        (r"<style.*?</style>", ""),
        (r"\s*\n\s*", " "),
    )
)

# Round coordinates to a tenth of a point; text in the picture stays unchanged.
_ATTRIBUTE = re.compile(r' (?:d|x|y|transform|points)="[^"]*"')
_DIGITS = re.compile(r"(\d\.\d)\d+")

Panel = Callable[[Axes], None]


class Artist:
    """Artist that draws the pictures of one run."""

    def __init__(self, run: RecordedRun, clock: Clock, episodes: list[Episode]) -> None:
        self._run = run
        self._clock = clock
        self._episodes = episodes
        self.grid = Grid(run.whole, POINTS)

    def model(self, name: str) -> Figure:
        """Draw a model: response time, requests, cores, queue."""
        track, serving = self._run.models[name], self._run.serving(name)
        panels: list[Panel] = [
            lambda axes: self._response(axes, track),
            lambda axes: self._requests(axes, track),
        ]
        if serving:
            panels.append(lambda axes: self._cores(axes, serving))
        panels.append(lambda axes: self._queue(axes, track))
        return self._figure(panels)

    def cores(self, name: str) -> Figure:
        """Draw a model for which only its cores are known."""
        return self._figure([lambda axes: self._cores(axes, self._run.serving(name))])

    def worker(self, name: str) -> Figure:
        """Draw a worker: the demand for its cores, and η."""
        tracks = self._run.workers[name]
        wanted, capacity = self._any(tracks, "total"), self._any(tracks, "capacity")
        return self._figure(
            [
                lambda axes: self._wanted(axes, tracks, wanted, capacity),
                lambda axes: self._eta(axes, tracks, wanted, capacity),
            ]
        )

    def _figure(self, panels: list[Panel]) -> Figure:
        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=(WIDTH, HEIGHT * len(panels) + 0.35), layout="constrained")
            rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
            for axes, draw in zip(rows, panels, strict=True):
                draw(axes)
                axes.grid(axis="y", linewidth=0.5)
                axes.set_axisbelow(True)
                axes.margins(x=0, y=0.08)
                axes.set_ylim(bottom=0)
                if axes.get_legend_handles_labels()[0]:
                    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
            marks, whole = self._clock.marks(), self._run.whole
            rows[-1].set_xlim(whole.start, whole.end)
            rows[-1].set_xticks(marks, [self._clock.time(t) for t in marks])
            rows[-1].set_xlabel(self._clock.axis)
            figure.align_ylabels()
        return figure

    def _response(self, axes: Axes, track: ModelTrack) -> None:
        axes.set_ylabel("response time\nms")
        self._bad(axes, track.name)
        response = self._worst(track, track.response)
        self._line(axes, 1000 * response, "response", f"{track.statistic.value}, or oldest inside")
        for name, role, label in (("sla", "sla", "SLA"), ("set_point", "aim", "aim")):
            values = self._worst(track, track[name])
            self._line(axes, 1000 * values, role, label, linestyle="--", linewidth=1.0)
        self._gaps(axes, track.gaps)

    def _requests(self, axes: Axes, track: ModelTrack) -> None:
        axes.set_ylabel("requests/s")
        below = np.zeros(len(self.grid.edges) - 1)
        for name in ("late", "refused", "failed"):
            rate = self.grid.rate(track["start"], track["at"], track[name])
            if np.nansum(rate) > 0:
                self._area(axes, below, below + rate, name)
            below = below + rate
        self._line(
            axes,
            self.grid.rate(track["start"], track["at"], track["arrivals"]),
            "arrivals",
            "arrived",
        )
        self._gaps(axes, track.gaps)

    def _cores(self, axes: Axes, tracks: list[ExecutableTrack]) -> None:
        axes.set_ylabel("cores")
        used = self._sum(tracks, lambda t: self.grid.worst(t["at"] - t["dt"], t["at"], t["used"]))
        self._area(axes, np.zeros(len(used)), used, "used")
        for name, role, width in (
            ("allocation", "allocated", 3.0),
            ("wanted", "demanded", 1.0),
            ("applied", "applied", 1.0),
        ):
            values = self._sum(tracks, lambda t, name=name: self._held(t, name))  # type: ignore[misc]
            style = "--" if role == "demanded" else "-"
            self._line(axes, values, role, role, linewidth=width, linestyle=style)
        self._gaps(axes, [gap for track in tracks for gap in track.gaps])

    def _queue(self, axes: Axes, track: ModelTrack) -> None:
        axes.set_ylabel("requests\nwaiting")
        self._line(axes, self._worst(track, track["waiting"]), "queue", "waiting")
        self._gaps(axes, track.gaps)

    def _wanted(
        self, axes: Axes, tracks: list[ExecutableTrack], wanted: Numbers, capacity: Numbers
    ) -> None:
        axes.set_ylabel("cores")
        self._line(axes, wanted, "demanded", "demanded by all")
        applied = self._sum(tracks, lambda t: self._held(t, "applied"))
        self._line(axes, applied, "applied", "applied to all")
        self._line(axes, capacity, "sla", "capacity", linestyle="--", linewidth=1.0)
        self._gaps(axes, [gap for track in tracks for gap in track.gaps])

    def _eta(
        self, axes: Axes, tracks: list[ExecutableTrack], wanted: Numbers, capacity: Numbers
    ) -> None:
        axes.set_ylabel("η")
        with np.errstate(divide="ignore"):
            eta = np.minimum(capacity / wanted, ETA_SHOWN)
        self._line(axes, eta, "response", f"η, at most {ETA_SHOWN:g}")
        axes.axhline(1.0, color=LIGHT["sla"], linewidth=1.0, linestyle="--", label="just enough")
        axes.set_ylim(0, 1.05 * ETA_SHOWN)
        self._gaps(axes, [gap for track in tracks for gap in track.gaps])

    def _worst(self, track: ModelTrack, values: Numbers) -> Numbers:
        return self.grid.worst(track["start"], track["at"], values)

    def _held(self, track: ExecutableTrack, name: str) -> Numbers:
        return self.grid.worst(track["at"], track.end, track[name])

    def _sum(
        self, tracks: list[ExecutableTrack], of: Callable[[ExecutableTrack], Numbers]
    ) -> Numbers:
        """Sum over executables; NaN where a value of a present executable is unknown."""
        total = np.zeros(len(self.grid.edges) - 1)
        anyone = np.zeros(len(total), bool)
        for track in tracks:
            values = of(track)
            there = (self.grid.edges[1:] > track["at"][0]) & (self.grid.edges[:-1] < track.end[-1])
            anyone |= there
            total = total + np.where(there, values, 0.0)
        return np.where(anyone, total, np.nan)

    def _any(self, tracks: list[ExecutableTrack], name: str) -> Numbers:
        """Return a value common to all executables of a worker, from any that has it."""
        found = np.full(len(self.grid.edges) - 1, np.nan)
        for track in tracks:
            found = np.fmax(found, self._held(track, name))
        return found

    def _line(
        self,
        axes: Axes,
        values: Numbers,
        role: str,
        label: str,
        *,
        linewidth: float = 1.2,
        linestyle: str = "-",
    ) -> None:
        axes.stairs(
            values,
            self.grid.edges,
            baseline=None,
            color=LIGHT[role],
            label=label,
            linewidth=linewidth,
            linestyle=linestyle,
        )

    def _area(self, axes: Axes, low: Numbers, high: Numbers, role: str) -> None:
        axes.stairs(
            high,
            self.grid.edges,
            baseline=np.where(np.isnan(high), np.nan, low),
            fill=True,
            color=LIGHT[role],
            linewidth=0,
            label=role,
        )

    def _bad(self, axes: Axes, model: str) -> None:
        spans = [e.span for e in self._episodes if e.model == model]
        self._shade(axes, spans, "promise broken", color=LIGHT["bad"])

    def _gaps(self, axes: Axes, gaps: list[Span]) -> None:
        spans = sorted(set(gaps), key=lambda gap: gap.start)
        style = {"facecolor": "none", "edgecolor": LIGHT["gap"], "hatch": "////"}
        self._shade(axes, spans, "not recorded", **style)

    def _shade(self, axes: Axes, spans: list[Span], label: str, **style: Any) -> None:
        if spans:
            where, transform = [(s.start, s.seconds) for s in spans], axes.get_xaxis_transform()
            axes.broken_barh(where, (0, 1), transform=transform, label=label, linewidth=0, **style)


def svg(figure: Figure, name: str) -> str:
    """Return a picture for a page, without references that need the network."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Unique ids, because a page has several pictures.
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    found = text.getvalue()
    found = found[found.index("<svg") :]
    for pattern, instead in _LEANER:
        found = pattern.sub(instead, found)
    found = _ATTRIBUTE.sub(lambda value: _DIGITS.sub(r"\1", value[0]), found)
    return by_role(found)


def png(figure: Figure, path: Path) -> None:
    """Write a picture for a paper; raise OSError that names the file."""
    drawn = io.BytesIO()
    paper, nothing = LIGHT["paper"], {"Software": None}
    figure.savefig(drawn, format="png", dpi=DPI, facecolor=paper, metadata=nothing)
    file_edit.output(path, drawn.getvalue())
