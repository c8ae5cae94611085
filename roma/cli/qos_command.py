"""`roma qos train`: a policy for devices of the QoS paper, learned in virtual time."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roma.cli import extras
from roma.domain.errors import ConfigError

if TYPE_CHECKING:
    from roma.lab.experiments.qos.setting import Part
    from roma.lab.learning.training import TrainingRound

command = typer.Typer(
    help="Policies that choose batch size and variant.", no_args_is_help=True, add_completion=False
)

MOST_DEVICES = 100
ROUNDS = 100
"""Some four minutes for one device and seven for ten, on two cores that have nothing else to do."""


@command.callback()
def _qos() -> None:
    """Policies that choose batch size and variant."""


@command.command()
def train(
    out: Annotated[Path, typer.Argument(help="The policy file to write.", metavar="OUT")],
    devices: Annotated[
        str, typer.Option(help="Types of the paper's Table 1 and their numbers, e.g. 'g2*5,p2*5'.")
    ] = "p2",
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same file.")] = 1,
    hours: Annotated[str, typer.Option(help="Part of the day to learn from.")] = "9-12",
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=20_000,  # more than MOST_DEVICES answer
            help="Mean queries per second then. Default: the experiments' own.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, max=10_000)] = ROUNDS,
    traces: Annotated[
        Path | None,
        typer.Option(envvar="ROMA_TRACES", help="Directory of public traces; see docs/lab.md."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="To simulate in.")] = 2,
) -> None:
    """Learn a policy for `scheduling.gpu: qos-rl` and write it to OUT."""
    extras.required("roma qos train", "serving", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from roma.config import policy_file
    from roma.lab.experiments.qos import jobs
    from roma.lab.learning import training

    types, part = _types(devices), _part(hours)
    if out.is_dir() or not Path(os.path.realpath(out)).parent.is_dir():
        raise ConfigError(f"out = {out}: must be a file in a directory that exists")
    kinds = [name for name, count in types for _ in range(count)]
    task = jobs.task(kinds, part, traces, rate=rate)
    asked = "" if rate is None else f" --rate {rate:g}"
    command = (
        f"roma qos train {out.name} --devices '{devices}' --seed {seed} --hours {hours}{asked}"
    )
    told = policy_file.PolicyTraining(
        command=f"{command} --rounds {rounds}{' --traces DIR' if traces else ''}",
        seed=seed,
        hours=hours,
        rounds=rounds,
        score=0,
        teacher=0,
    )
    course = training.Course(rounds, processes=processes)
    policy = training.train(
        task, training.empty(task, types), course, told, on_progress=_on_progress
    )
    policy_file.save(policy, out)
    print(f"wrote {out}: mean quality {policy.training.score:.4f}")


def _on_progress(progress: "TrainingRound") -> None:
    print(
        f"round {progress.round}: mean quality {progress.score:.4f}, "
        f"best {progress.best:.4f}, qos {progress.teacher:.4f}",
        flush=True,
    )


def _types(text: str) -> list[tuple[str, int]]:
    from roma.lab.experiments.qos.setting import THROUGHPUTS

    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition("*")
        known = name in THROUGHPUTS and name not in found
        if not (known and re.fullmatch(r"[1-9]\d{0,2}", count or "1", re.ASCII)):
            names = ", ".join(THROUGHPUTS)
            raise ConfigError(f"devices = {text}: must be of {names}, each once, like g2*5,p2*5")
        found[name] = int(count or 1)
    if sum(found.values()) > MOST_DEVICES:
        raise ConfigError(f"devices = {text}: must be ≤ {MOST_DEVICES} together")
    return list(found.items())


def _part(text: str) -> "Part":
    from roma.lab.experiments.qos.setting import TRAINING, Part

    found = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text, re.ASCII)
    begin, end = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
    if not (begin + 0.5 <= end <= 24):
        raise ConfigError(f"hours = {text}: must be half an hour of a day or more, like 9-12")
    return Part(begin, end, TRAINING.single, TRAINING.busy)
