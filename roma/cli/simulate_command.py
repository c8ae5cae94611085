"""`roma simulate`: the models, promises and loads of a roma.yaml, in virtual time."""

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.table import Table

from controllers.registry import LAWS
from roma.cli.console import wide_console
from roma.cli.loading import checked
from roma.cli.options import ConfigFile
from roma.cli.progress import OnProgress, progress
from roma.config import file_edit, yaml_file
from roma.config.placement import executables
from roma.config.schema import Config
from roma.domain.errors import ConfigError
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation
from roma.telemetry import decision_log
from roma.telemetry.decision_log import DecisionLog


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The command line. `laws` replace the file's.

    `record` is a directory for CSV files, `decision_log` one for what a live run would have
    written.
    """

    laws: Sequence[str]
    seeds: int
    first_seed: int
    json_output: bool
    record: Path | None
    decision_log: Path | None


def command(
    file: ConfigFile,
    law: Annotated[
        list[str] | None, typer.Option(help="Law instead of the file's; repeat to compare.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs to average over.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0)] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print raw numbers as JSON.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write one CSV per executable here, of the first law and seed, for "
            "`roma design identify`."
        ),
    ] = None,
    decision_log: Annotated[
        Path | None,
        typer.Option(
            help="Write every decision of the first seed here as a live run does, for "
            "`roma report`; of several laws into a directory each."
        ),
    ] = None,
    story: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Answer in virtual time what FILE would need: how many cores, how many late requests."""
    if story is not None:
        raise ConfigError("--story: is called --decision-log since 0.2")
    options = SimulateOptions(law or (), seeds, first_seed, json_output, record, decision_log)
    run(checked(file), options)


def run(config: Config, options: SimulateOptions) -> None:
    """Simulate under each law and each seed; print what came of it."""
    laws = list(options.laws) or [config.control.law]
    for law in laws:
        if law not in LAWS:
            raise ConfigError(f"--law = {law}: must be one of {', '.join(LAWS)}")
    logs = {law: _decision_log(config, law, options) for law in laws}
    if options.record is not None:
        if not any(e.controlled for e in executables(config)):
            raise ConfigError(
                f"--record = {options.record}: must be absent: no executable has cores to record"
            )
        file_edit.make(options.record, "--record")
    found: dict[str, list[SimulationResult]] = {}
    with progress("simulate", counts=False) as on_progress:
        tell = partial(_tell, on_progress, len(laws) * options.seeds)
        for law in laws:
            before = partial(tell, len(found) * options.seeds)
            found[law] = _simulate(_under(config, law), options, logs[law], before)
    if options.json_output:
        print(json.dumps({law: [_plain(r) for r in rs] for law, rs in found.items()}, indent=2))
    else:
        _show(found)
    if options.record is not None:
        _save(found[laws[0]][0], options.record)


def _tell(on_progress: OnProgress, runs: int, before: int, done: int, share: float) -> None:
    """Tell a bar of the runs of all laws: those of laws before, those of this one, and a part."""
    on_progress(before + done + share, runs)


def _under(config: Config, law: str) -> Config:
    """Return the configuration under another law; gains belong to the law of the file."""
    if law == config.control.law:
        return config
    data = config.model_dump()
    del data["control"]["gains"]  # a preset fills in those of its own law
    data["control"] |= {"law": law, "gains_file": None}
    # It may have faults: another law has other defaults, such as the least cores of an idle model.
    return yaml_file.validated(Config, data, f"--law = {law}")


def _decision_log(config: Config, law: str, options: SimulateOptions) -> DecisionLog | None:
    """Return where the first run of a law is told: one directory holds the log of one run."""
    if options.decision_log is None:
        return None
    directory = options.decision_log / law if len(options.laws) > 1 else options.decision_log
    ours = {decision_log.decisions(worker.name) for worker in config.workers}
    for file in sorted(directory.glob(f"{decision_log.decisions('*')}.jsonl")):
        if file.name.removesuffix(".jsonl").removesuffix("+1") not in ours:
            raise ConfigError(
                f"--decision-log = {directory}: has {file.name}, of another deployment"
            )
    for file in sorted(directory.glob("*.jsonl")):
        if decision_log.is_live(file):
            raise ConfigError(f"--decision-log = {directory}: has {file.name}, of a live run")
    return DecisionLog(directory, fresh=True, largest=sys.maxsize)


def _simulate(
    config: Config,
    options: SimulateOptions,
    log: DecisionLog | None,
    on_progress: Callable[[int, float], None],
) -> list[SimulationResult]:
    """Simulate under one law; `on_progress` takes the runs done and the present one's share."""
    found: list[SimulationResult] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        is_first = seed == options.first_seed
        write = log.write if log is not None and is_first else None
        record = options.record is not None and is_first
        simulation = Simulation(from_config(config, seed=seed), record=record, decision_log=write)
        found.append(simulation.run(partial(on_progress, len(found))))
    return found


def _show(found: dict[str, list[SimulationResult]]) -> None:
    console = wide_console()
    for law, results in found.items():
        console.print(_models(law, results))
    # GPUs alone take no cores.
    has_cores = any(r.core_seconds for results in found.values() for r in results)
    totals = Table(title="cores" if has_cores else "all models")
    columns = ("core-s", "used", "all cores, always", "saved") if has_cores else ()
    for name in ("law", "late", "refused", *columns):
        totals.add_column(name, justify="left" if name == "law" else "right")
    for law, results in found.items():
        cores = fmean(r.core_seconds for r in results)
        most = results[0].allocatable * results[0].seconds
        used = fmean(r.used_seconds for r in results)
        of_cores = (f"{cores:.1f}", f"{used:.1f}", f"{most:.0f}", f"{1 - cores / most:.0%}")
        totals.add_row(
            law,
            f"{fmean(r.late_share for r in results):.2%}",
            f"{fmean(r.rejected_share for r in results):.2%}",
            *(of_cores if has_cores else ()),
        )
    console.print(totals)


def _models(law: str, results: list[SimulationResult]) -> Table:
    table = Table(title=f"law {law}, {len(results)} run(s) of {results[0].seconds:g} s")
    for name in ("model", "requests", "on GPU", "mean s", "p95 s", "p99 s", "max s", "SLA s"):
        table.add_column(name, justify="left" if name == "model" else "right")
    has_variants = any(m.quality is not None for m in results[0].models)
    for name in ("late", "refused", "seconds over SLA", *(["quality"] if has_variants else ())):
        table.add_column(name, justify="right")
    for models in zip(*(r.models for r in results), strict=True):
        arrivals = max(1, sum(m.arrivals for m in models))
        answered = [m for m in models if m.answered]
        table.add_row(
            models[0].model,
            str(sum(m.arrivals for m in models)),
            f"{sum(m.on_gpu for m in models) / arrivals:.0%}",
            _seconds([m.mean for m in answered]),
            *(_seconds([getattr(m, p) for m in models]) for p in ("p95", "p99")),
            _seconds([max(m.worst for m in answered)] if answered else []),
            f"{models[0].sla:g}",
            f"{sum(m.violations for m in models) / arrivals:.2%}",
            f"{sum(m.rejected for m in models) / arrivals:.2%}",
            f"{fmean(m.windows_over for m in models):.0f}",
            *([_seconds([m.quality for m in models if m.arrivals])] if has_variants else ()),
        )
    return table


def _seconds(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{fmean(known):.3f}" if known else "–"


def _plain(result: SimulationResult) -> dict[str, Any]:
    data = asdict(result)
    del data["samples"]
    for model in data["models"]:
        del model["series"]
        if not model["answered"]:
            model.update(dict.fromkeys(("mean", "deviation", "worst")))
    return data | {"late_share": result.late_share, "windows_over": result.windows_over}


def _save(result: SimulationResult, directory: Path) -> None:
    """Write one CSV per executable: what `roma design identify` fits a plant to."""
    with file_edit.writing(f"--record = {directory}"):
        for name in dict.fromkeys(s.executable for s in result.samples):
            text = io.StringIO()
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(("time", "applied", "response_time", "throughput"))
            for s in (s for s in result.samples if s.executable == name):
                response_time = "" if s.response_time is None else s.response_time
                rows.writerow((s.time, s.applied, response_time, s.throughput))
            file_edit.output(directory / f"{name}.csv", text.getvalue())
