"""`roma design`: options in, tables or JSON out; python-control is imported when a command runs.

The defaults are the paper's operating point; docs/control.md says what the numbers mean.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roma.cli import design_report as report
from roma.cli import extras
from roma.cli.options import choice
from roma.domain.errors import ConfigError, naming

if TYPE_CHECKING:
    from controllers.design.identify import Fit
    from controllers.design.plant import OperatingPoint, Plant

command = typer.Typer(
    help="Design a control law: plant, identification, tuning, robustness, pictures.",
    no_args_is_help=True,
    add_completion=False,
)

UNITS = {"set_point": " s", "rate": " req/s", "gpus": ""}

Gains = dict[str, float | str]
Throughput = Annotated[float, typer.Option(help="Throughput of the model in req/s.")]
ResponseTime = Annotated[float, typer.Option(help="Response time and set point R° in s.")]
PerCore = Annotated[float, typer.Option(help="Service rate μC of a core in req/s.")]
Period = Annotated[float, typer.Option(help="Control period T in s.")]
Sampled = Annotated[str, typer.Option(help="What a sample is: mean, backward or zoh.")]
GainsFile = Annotated[Path | None, typer.Option(help="A file that `roma design tune` wrote.")]
ErrorName = Annotated[str, typer.Option("--error", help="Error form: rt, inverse or log.")]
KOption = Annotated[float | None, typer.Option("--K", help="Gain as in roma.yaml.")]
AOption = Annotated[float | None, typer.Option("--a", help="Zero as in roma.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@command.callback()
def _needs_its_extra() -> None:
    extras.required("roma design", "design", "control", "matplotlib")


LEAST_PERIODS = 40
"""Of a closed loop's run: it has to settle before and after its step."""


@command.command()
def plant(
    throughput: Throughput = 35.0,
    response_time: ResponseTime = 0.304,
    per_core: PerCore = 10.0,
    period: Period = 1.0,
    json_output: Json = False,
) -> None:
    """The plant from cores to response time, k·(z - b)/(z - 1), in three discretisations."""
    from controllers.design import plant as design

    point = _point(throughput, response_time, per_core, period)
    plants = design.main(point)
    if json_output:
        report.as_json({str(name): {"k": p.k, "b": p.b} for name, p in plants.items()})
        return
    title = f"{point.throughput:g} req/s, {point.cores:.3g} cores, {point.queue:.3g} requests"
    rows = [[str(name), f"{p.k:.4f}", f"{p.b:+.4f}"] for name, p in plants.items()]
    report.table(title, ["sample", "k (s/core)", "b"], rows)


@command.command()
def identify(
    record: Annotated[
        Path | None,
        typer.Argument(
            help="CSV: time,applied,response_time,throughput. Default: a synthetic run.",
            metavar="[FILE]",
        ),
    ] = None,
    dead_time: Annotated[
        int | None, typer.Option(min=0, max=10, help="Periods; default: the best of 0-3.")
    ] = None,
    least_response: Annotated[
        float, typer.Option(min=0, help="Leave out shorter responses (s): an empty queue.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Directory for the fit picture.")] = None,
    json_output: Json = False,
) -> None:
    """Fit k and b to a recorded run by least squares."""
    from controllers.design import excite, figures
    from controllers.design import identify as design
    from controllers.design.plant import OperatingPoint

    run = excite.example(OperatingPoint()) if record is None else design.read(record)
    fits = _fitted(record, run, dead_time, least_response)
    best = fits[0]
    if out is not None:
        drawn = figures.save(figures.identify_figure(best), out / "identify.png")
        typer.echo(drawn, err=json_output)
    if json_output:
        report.as_json([report.fit_as_data(fit) for fit in fits])
        return
    rows = [
        [
            str(fit.dead_time),
            f"{fit.plant.k:.3f} ± {fit.k_error:.3f}",
            f"{fit.plant.b:+.2f} ± {fit.b_error:.2f}",
            f"{fit.spread:.3f}",
            f"{fit.r_squared:.2f}",
            str(len(fit.measured)),
            f"{fit.per_core:.2f}",
        ]
        for fit in fits
    ]
    columns = ["n", "k (s/core)", "b", "residual (s)", "R²", "rows", "μC"]
    title = f"{best.throughput:.1f} req/s, {best.response_time:.3f} s, {best.cores:.2f} cores"
    report.table(title, columns, rows)
    report.warn(best.warnings)


@command.command()
def tune(
    q: Annotated[float, typer.Option(help="Where both closed-loop poles go.")] = 0.85,
    dead_time: Annotated[int, typer.Option(help="Periods the loop must survive.")] = 3,
    error: ErrorName = "rt",
    throughput: Throughput = 35.0,
    response_time: ResponseTime = 0.304,
    per_core: PerCore = 10.0,
    period: Period = 1.0,
    sampling: Sampled = "mean",
    record: Annotated[
        Path | None, typer.Option(help="Take throughput, μC and period from a recorded run.")
    ] = None,
    least_response: Annotated[
        float, typer.Option(min=0, help="With --record: leave out shorter responses (s).")
    ] = 0.0,
    k: Annotated[float | None, typer.Option("--k", help="Plant gain in s/core, < 0.")] = None,
    b: Annotated[float | None, typer.Option("--b", help="Plant zero; goes with --k.")] = None,
    allow_fast: Annotated[bool, typer.Option("--allow-fast", help="Permit q < 0.7.")] = False,
    out: Annotated[Path | None, typer.Option(help="Gains file to write.")] = None,
    date: Annotated[str | None, typer.Option(help="A date for the gains file.")] = None,
    json_output: Json = False,
) -> None:
    """Gains by the paper's eq. 12 with guards, and a gains file that says where they come from."""
    from controllers.design import tune as design
    from controllers.design.plant import Plant
    from controllers.error import ErrorForm

    if (k is None) != (b is None):
        raise ConfigError("--k and --b: both must be given, or none")
    if k is not None and record is not None:
        raise ConfigError("--k and --b: must be absent with --record, whose plant is fitted")
    point = _point(throughput, response_time, per_core, period)
    if k is not None and b is not None:
        chosen, source = Plant(k, b, period), {"from": "given k and b", "period": period}
        cost = 1 / per_core
    elif record is not None:
        fit = _fitted(record, None, None, least_response)[0]
        report.warn(fit.warnings)
        chosen, cost = fit.at(response_time), 1 / fit.per_core
        source = {"from": str(record), "period": chosen.period, "per_core": fit.per_core}
    else:
        chosen, cost = _sampled(point, sampling), 1 / per_core
        source = {"from": "operating point", "sampling": sampling} | asdict(point)
        del source["per_gpu"]
    goal = design.TuningGoal(
        q=q,
        dead_time=dead_time,
        error=choice("--error", error, ErrorForm),
        set_point=response_time,
        cost=cost,
        allow_fast=allow_fast,
    )
    tuning = design.main(chosen, goal)
    if out is not None:
        design.write(tuning, out, source, date)
    if json_output:
        report.as_json(tuning.document(source, date))
        return
    print(f"law: pi\ngains: {json.dumps(tuning.gains)}")
    report.judged(tuning.controller, chosen)
    report.warn(tuning.warnings)


@command.command()
def robustness(
    gains: GainsFile = None,
    K: KOption = None,  # noqa: N803 - the paper's letter
    a: AOption = None,
    error: ErrorName = "rt",
    throughput: Throughput = 35.0,
    response_time: ResponseTime = 0.304,
    per_core: PerCore = 10.0,
    period: Period = 1.0,
    sampling: Sampled = "mean",
    json_output: Json = False,
) -> None:
    """Poles, margins, sensitivity peak and gain spread with 0-3 periods of dead time."""
    from controllers.design import robustness as design

    point = _point(throughput, response_time, per_core, period)
    law, given = _gains(point, gains, K, a, error)
    if law != "pi":
        raise ConfigError(f"law = {law}: must be pi, the only linear one")
    controller = design.from_gains(given, response_time, period, 1 / per_core)
    report.judged(controller, _sampled(point, sampling), json_output=json_output)


@command.command()
def closed_loop(
    law: Annotated[
        str | None, typer.Option(help="pi or late_share; default: that of --gains, else pi.")
    ] = None,
    gains: GainsFile = None,
    K: KOption = None,  # noqa: N803 - as above
    a: AOption = None,
    error: ErrorName = "rt",
    set_point: Annotated[float, typer.Option(help="Step of the set point in s.")] = 0.0,
    rate: Annotated[float, typer.Option(help="Step of the arrivals in req/s.")] = 0.0,
    gpus: Annotated[float, typer.Option(help="Step of u_G: GPUs that join.")] = 0.0,
    per_gpu: Annotated[float, typer.Option(help="Service rate μG of a GPU in req/s.")] = 10.0,
    dead_time: Annotated[int, typer.Option(min=1, max=20, help="Periods.")] = 1,
    age: Annotated[bool, typer.Option(help="Measure the oldest request's age too.")] = True,
    seconds: Annotated[float, typer.Option(min=40, max=86400)] = 120.0,
    throughput: Throughput = 35.0,
    response_time: ResponseTime = 0.304,
    per_core: PerCore = 10.0,
    period: Period = 1.0,
    out: Annotated[Path | None, typer.Option(help="Directory for the picture.")] = None,
    json_output: Json = False,
) -> None:
    """Production's step() against the queue after a step; by default each of three steps."""
    from controllers.design import closed_loop as design
    from controllers.design import figures

    if seconds < LEAST_PERIODS * period:
        raise ConfigError(
            f"--seconds = {seconds:g}: must be at least {LEAST_PERIODS} periods of {period:g} s"
        )
    if law not in (None, "pi") and gains is None and (K, a) != (None, None):
        raise ConfigError(f"--K and --a: must be absent with --law {law}: they are gains of pi")
    point = _point(throughput, response_time, per_core, period, per_gpu)
    given: Gains = {}
    chosen = law or "pi"
    if chosen == "pi" or gains is not None:
        chosen, given = _gains(point, gains, K, a, error)
    if law not in (None, chosen):
        raise ConfigError(f"--law = {law}: must be {chosen}, the law of {gains}")
    wished = {"set_point": set_point, "rate": rate, "gpus": gpus}
    usual = {"set_point": 0.2 * response_time, "rate": throughput / 7, "gpus": 1.0}
    steps = {n: v for n, v in (wished if any(wished.values()) else usual).items() if v}
    scenarios = {
        f"{name} {value:+.2g}{UNITS[name]}": design.LoopScenario(
            law=chosen,
            gains=tuple(given.items()),
            seconds=seconds,
            dead_time=dead_time,
            age=age,
            most_cores=max(6.0, 2 * point.cores),
            **{name: value},
        )
        for name, value in steps.items()
    }
    runs = {title: design.main(point, scenario) for title, scenario in scenarios.items()}
    if out is not None:
        curves = {title: {chosen: scenario} for title, scenario in scenarios.items()}
        drawn = figures.save(figures.closed_loop_figure(point, curves), out / "closed_loop.png")
        typer.echo(drawn, err=json_output)
    if json_output:
        columns = ("time", "response", "set_point", "cores")
        report.as_json(
            {t: {c: getattr(run, c).tolist() for c in columns} for t, run in runs.items()}
        )
        return
    rows = [
        [
            title,
            "no" if run.settled_after is None else f"{run.settled_after:.0f}",
            f"{run.worst:.3f}",
            f"{run.final_error:+.3f}",
            f"{run.swing:.3f}",
            f"{run.cores[-1]:.2f}",
        ]
        for title, run in runs.items()
    ]
    shown = ["step", "settles (s)", "worst (s)", "error (s)", "swing (s)", "cores"]
    report.table(f"{chosen} {json.dumps(given)}", shown, rows)


@command.command("figures")
def pictures(
    out: Annotated[Path, typer.Option(help="Directory for the pictures.")],
    throughput: Throughput = 35.0,
    response_time: ResponseTime = 0.304,
    per_core: PerCore = 10.0,
    period: Period = 1.0,
) -> None:
    """Draw the pictures of docs/control.md."""
    from controllers.design import figures

    point = _point(throughput, response_time, per_core, period)
    for path in figures.main(point, out):
        print(path)


def _point(
    throughput: float,
    response_time: float,
    per_core: float,
    period: float,
    per_gpu: float = 10.0,
) -> "OperatingPoint":
    from controllers.design.plant import OperatingPoint

    return OperatingPoint(throughput, response_time, per_core, per_gpu, period)


def _sampled(point: "OperatingPoint", name: str) -> "Plant":
    from controllers.design.plant import Sampling, sampled

    return sampled(point, choice("--sampling", name, Sampling))


def _gains(
    point: "OperatingPoint", file: Path | None, gain: float | None, zero: float | None, error: str
) -> tuple[str, Gains]:
    """Return the gains of a file, else those given, else eq. 12's."""
    from controllers.design import tune as design
    from controllers.error import ErrorForm

    if file is not None:
        if (gain, zero) != (None, None):
            raise ConfigError(f"--K and --a: must be absent with --gains: {file} has them")
        return design.read(file)
    form = choice("--error", error, ErrorForm)
    if (gain is None) != (zero is None):
        raise ConfigError("--K and --a: both must be given, or none")
    if gain is not None and zero is not None:
        return "pi", {"error": str(form), "K": gain, "a": zero}
    goal = design.TuningGoal(error=form, set_point=point.response_time, cost=1 / point.per_core)
    return "pi", design.main(_sampled(point, "mean"), goal).gains


def _fitted(
    file: Path | None, run: Any, dead_time: int | None, least_response: float
) -> "list[Fit]":
    from controllers.design import identify as design

    if run is None and file is not None:
        run = design.read(file)
    with naming(str(file or "synthetic run")):
        return design.main(run, dead_time, least_response)
