"""The figures of docs/control.md: each function returns a matplotlib Figure, units on every axis.

Figures are objects: pyplot and its global state are not used, and no display is needed.
"""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from controllers.design import closed_loop, excite, identify, plant, robustness, tune
from controllers.design.closed_loop import LoopScenario
from controllers.design.identify import Fit
from controllers.design.plant import OperatingPoint, Sampling
from controllers.design.robustness import DEAD_TIMES, PAPER, Controller
from roma.config import file_edit

DPI = 80
EMPTY = 0.15
"""Seconds. In the example, shorter responses mean an empty queue: a request alone takes 0.1 s."""


def plant_figure(point: OperatingPoint) -> Figure:
    """Return the Bode diagram of eq. 6 and of its three discretisations."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    magnitude, phase = figure.subplots(2, 1, sharex=True)
    omega = np.geomspace(0.02, np.pi / point.period, 400)
    curves = {"continuous (eq. 6)": plant.continuous(point)(1j * omega)}
    for sampling, sampled in plant.main(point).items():
        at = np.exp(1j * omega * point.period)
        curves[f"{sampling}: b = {sampled.b:+.2f}"] = sampled.transfer_function()(at)
    for label, values in curves.items():
        magnitude.loglog(omega, np.abs(values), label=label)
        # Of -G: the error takes the sign of eq. 6.
        phase.semilogx(omega, np.degrees(np.unwrap(np.angle(-values))))
    magnitude.set(ylabel="|Δτ/Δu| (s/core)", title="The plant, from cores to response time")
    phase.set(xlabel="frequency ω (rad/s)", ylabel="phase of -Δτ/Δu (°)")
    magnitude.legend()
    return _gridded(figure)


def poles_figure(point: OperatingPoint, tuned: Controller) -> Figure:
    """Return closed-loop poles with 0-3 periods of dead time: the paper's gains, and eq. 12's."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    angle = np.linspace(0, 2 * np.pi, 200)
    sampled = plant.sampled(point, Sampling.MEAN)
    for axes, (title, controller) in zip(
        figure.subplots(1, 2, sharey=True), _compared(tuned, point), strict=True
    ):
        axes.plot(np.cos(angle), np.sin(angle), color="black", linewidth=0.8)
        for verdict, marker in zip(robustness.main(controller, sampled), "osD^", strict=True):
            poles = np.array(verdict.poles)
            label = f"n = {verdict.dead_time}: largest {verdict.radius:.3f}"
            axes.plot(poles.real, poles.imag, marker, fillstyle="none", label=label)
        axes.set(title=title, xlabel="Re z (dimensionless)", aspect="equal", xlim=(-1.15, 1.15))
        axes.legend(loc="lower left", fontsize="small")
    figure.axes[0].set_ylabel("Im z (dimensionless)")
    return _gridded(figure)


def robustness_figure(point: OperatingPoint, tuned: Controller) -> Figure:
    """Return the allowed spread of the plant's gain, and the sensitivity, with 0-3 periods."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    sampled = plant.sampled(point, Sampling.MEAN)
    factors = np.geomspace(0.01, 20, 200)
    panels = figure.subplots(1, 3)
    for axes, (title, controller) in zip(panels[:2], _compared(tuned, point), strict=True):
        for n in DEAD_TIMES:
            loop = controller.open_loop(sampled, n)
            radii = [robustness.radius(loop, float(f)) for f in factors]
            axes.semilogx(factors, radii, label=f"n = {n}")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=title, xlabel="factor on the plant's gain (×)", ylim=(0.7, 1.3))
        axes.set_ylabel("largest pole magnitude (dimensionless)")
        axes.legend()
    for n in DEAD_TIMES:
        omega, response = robustness.frequency_response(tuned.open_loop(sampled, n))
        panels[2].semilogx(omega, 20 * np.log10(1 / np.abs(1 + response)), label=f"n = {n}")
    panels[2].set(title="sensitivity 1/(1+L), eq. 12", xlabel="frequency ω (rad/s)")
    panels[2].set(ylabel="|S| (dB)", xlim=(0.02, np.pi / point.period), ylim=(-30, 15))
    panels[2].legend()
    return _gridded(figure)


def closed_loop_figure(point: OperatingPoint, runs: dict[str, dict[str, LoopScenario]]) -> Figure:
    """Return response and cores over time: one column per title, one curve per scenario."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    columns = figure.subplots(2, len(runs), sharex=True, squeeze=False).T
    for (above, below), (title, scenarios) in zip(columns, runs.items(), strict=True):
        for label, scenario in scenarios.items():
            run = closed_loop.main(point, scenario)
            above.step(run.time, run.response, where="post", label=label, linewidth=1)
            below.step(run.time, run.cores, where="post", linewidth=1)
            above.plot(run.time, run.set_point, "k:", linewidth=0.8)
        above.set(title=title, ylabel="response, window mean (s)")
        below.set(xlabel="time (s)", ylabel="cores in force (cores)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return _gridded(figure)


def identify_figure(fit: Fit) -> Figure:
    """Return the fit: measured against predicted differences, and the residuals."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    series, scatter = figure.subplots(1, 2, width_ratios=(2, 1))
    residual = fit.measured - fit.predicted
    shown = slice(0, 120)
    series.plot(fit.time[shown], fit.measured[shown], ".", label="measured")
    series.plot(fit.time[shown], fit.predicted[shown], linewidth=0.9, label="fitted")
    series.plot(fit.time[shown], residual[shown], linewidth=0.6, color="grey", label="residual")
    series.set(xlabel="time (s)", ylabel="τ(k) - τ(k-1) (s)")
    found = f"k = {fit.plant.k:.3f} ± {fit.k_error:.3f} s/core"
    series.set_title(f"{found}, b = {fit.plant.b:.3f} ± {fit.b_error:.3f}", fontsize="medium")
    series.legend(fontsize="small")
    scatter.plot(fit.predicted, fit.measured, ".", markersize=3)
    ends = [float(fit.predicted.min()), float(fit.predicted.max())]
    scatter.plot(ends, ends, "k", linewidth=0.8)
    scatter.set(xlabel="fitted (s)", ylabel="measured (s)", title=f"R² = {fit.r_squared:.2f}")
    return _gridded(figure)


def scenarios(gains: dict[str, float | str]) -> dict[str, dict[str, LoopScenario]]:
    """Return the runs of docs/control.md: three steps under eq. 12, the paper's PI, the default."""
    laws = {
        "pi, eq. 12": LoopScenario(gains=tuple(gains.items())),
        "pi, K = 0.15, a = 0.11": LoopScenario(gains=tuple(PAPER.items())),
        "late_share": LoopScenario(law="late_share"),
    }
    steps: dict[str, dict[str, Any]] = {
        "set point +20 %": {"set_point": 0.06},
        "load 35 → 40 req/s": {"rate": 5.0},
        "a GPU joins (10 req/s)": {"gpus": 1.0},
    }
    return {
        title: {label: replace(law, **step) for label, law in laws.items()}
        for title, step in steps.items()
    }


def main(point: OperatingPoint, out: Path) -> list[Path]:
    """Write every figure of docs/control.md below `out`; return the files."""
    tuning = tune.main(
        plant.sampled(point, Sampling.MEAN), tune.TuningGoal(set_point=point.response_time)
    )
    excited = identify.main(excite.example(point), least_response=EMPTY)[0]
    figures = {
        "plant": plant_figure(point),
        "poles": poles_figure(point, tuning.controller),
        "robustness": robustness_figure(point, tuning.controller),
        "closed_loop": closed_loop_figure(point, scenarios(tuning.gains)),
        "identify": identify_figure(excited),
    }
    return [save(figure, out / f"{name}.png") for name, figure in figures.items()]


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without the drawing software's version; raises ConfigError."""
    with file_edit.writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
        file_edit.output(path, drawn.getvalue())
    return path


def _compared(tuned: Controller, point: OperatingPoint) -> list[tuple[str, Controller]]:
    paper = robustness.from_gains(PAPER, point.response_time, point.period)
    return [("the paper's K = 0.15, a = 0.11", paper), ("eq. 12", tuned)]


def _gridded(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.3)
    return figure
