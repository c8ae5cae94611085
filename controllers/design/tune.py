"""Eq. 12 with guards: gains that place both closed-loop poles in q, and a file with their proof.

    (z - 1)² + |k|·K·(z - a)·(z - b) = (1 + |k|·K)·(z - q)²

Eq. 12 is right, but it divides by (q - b)², assumes the sign, and ignores dead time.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controllers import registry
from controllers.design.plant import LARGEST, Plant, error_slope
from controllers.design.robustness import Controller, Verdict, judge
from controllers.error import ErrorForm
from roma.config import file_edit, yaml_file
from roma.domain.errors import ConfigError

LEAST_Q = 0.7
"""Below it one or two periods of dead time make the loop unstable, whatever b."""

MOST_DEAD_TIME = 20
"""Each period is one more pole to find; no real loop has as many."""

SINGULAR = 0.05
"""K grows as 1/(q - b)²: closer than this the gain is an artefact of the formula."""


@dataclass(frozen=True, slots=True)
class TuningGoal:
    """The goal: poles in `q`, and stability with up to `dead_time` periods.

    `set_point` R° in s and `cost` in core-s (for `inverse`) turn K in cores/s into production's.
    """

    q: float = 0.85
    dead_time: int = 3
    error: ErrorForm = ErrorForm.RT
    set_point: float = 0.304
    cost: float = 0.1
    allow_fast: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """A controller in cores/s, production's gains, and the proof."""

    goal: TuningGoal
    plant: Plant
    controller: Controller
    gains: dict[str, float | str]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]

    def document(self, source: dict[str, Any], date: str | None = None) -> dict[str, Any]:
        """Return the gains file's content; `source` describes the origin of the plant."""
        provenance: dict[str, Any] = {
            "made_by": "roma design tune",
            "plant": source | {"k": _short(self.plant.k), "b": _short(self.plant.b)},
            "q": self.goal.q,
            "dead_time": self.goal.dead_time,
            "set_point": self.goal.set_point,
            "K_cores_per_s": _short(self.controller.K),
            "poles": [
                {"dead_time": v.dead_time, "largest": _short(v.radius)} for v in self.verdicts
            ],
        }
        if self.warnings:
            provenance["warnings"] = list(self.warnings)
        if date is not None:
            provenance["date"] = date
        return {"law": "pi", "gains": self.gains, "provenance": provenance}


def eq_12(k: float, b: float, q: float) -> Controller:
    """Return the paper's eq. 12 for |k| in s/core: K in cores/s and a."""
    K = 4 * (_zero(b, q) - 1) * (b - 1) / (k * (b - _zero(b, q)) ** 2)
    return Controller(K, _zero(b, q))


def _zero(b: float, q: float) -> float:
    return ((2 - b) * q - b) / (q - 2 * b + 1)


def main(plant: Plant, goal: TuningGoal) -> Tuning:
    """Return gains for a plant; raise `ConfigError` naming the violated condition."""
    warnings = _guard(plant, goal)
    controller = eq_12(abs(plant.k), plant.b, goal.q)
    verdicts = tuple(judge(controller, plant, n) for n in range(max(3, goal.dead_time) + 1))
    for verdict in verdicts:
        if verdict.stable:
            continue
        fault = f"unstable with dead_time = {verdict.dead_time} (pole at {verdict.radius:.3f})"
        if verdict.dead_time <= goal.dead_time:
            raise ConfigError(f"q = {goal.q}: {fault}: must be < 1; ask for a larger q")
        warnings.append(fault)
    # Production scales the integral with the measured period: K·(1 - a)·e·dt.
    a = 1 - (1 - controller.a) / plant.period
    slope = error_slope(goal.error, goal.set_point, goal.cost)
    gains: dict[str, float | str] = {
        "error": str(goal.error),
        "K": _short(controller.K / slope),
        "a": _short(a),
    }
    # Production's own bounds apply last: K in (0, 100], a in [0, 1).
    registry.checked_gains("pi", gains)
    return Tuning(goal, plant, controller, gains, verdicts, tuple(warnings))


def _guard(plant: Plant, goal: TuningGoal) -> list[str]:
    k, b, q = plant.k, plant.b, goal.q
    for name, value in (("set_point", goal.set_point), ("cost", goal.cost)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} = {value}: must be finite and > 0")
    if not -LARGEST <= k <= -1 / LARGEST:
        bound = f"must be < 0, from {-LARGEST:g} to {-1 / LARGEST:g}"
        raise ConfigError(f"k = {k:g} s/core: {bound}: more cores must shorten the response")
    if not -LARGEST <= b < 1:
        why = "a zero outside would turn the sign of K"
        raise ConfigError(f"b = {b:g}: must be < 1 and >= {-LARGEST:g}: {why}")
    if not 0 < q < 1:
        raise ConfigError(f"q = {q:g}: must be in (0, 1)")
    if not 0 <= goal.dead_time <= MOST_DEAD_TIME:
        bound = f"must be from 0 to {MOST_DEAD_TIME} periods"
        raise ConfigError(f"dead_time = {goal.dead_time}: {bound}")
    if abs(q - b) < SINGULAR:
        raise ConfigError(
            f"q = {q:g}: must differ from b = {b:g} by {SINGULAR}: K has a pole there"
        )
    if abs(q - 2 * b + 1) < SINGULAR:
        raise ConfigError(f"q = {q:g}: must differ from 2b - 1 by {SINGULAR}: a has a pole there")
    if q < LEAST_Q and not goal.allow_fast:
        raise ConfigError(f"q = {q:g}: must be >= {LEAST_Q} (--allow-fast to try a faster loop)")
    return [f"q = {q:g} is below {LEAST_Q}"] if q < LEAST_Q else []


def write(tuning: Tuning, path: Path, source: dict[str, Any], date: str | None = None) -> None:
    """Write the gains file: `law` and `gains` go into the `control` section of roma.yaml."""
    text = yaml_file.dump(tuning.document(source, date))
    with file_edit.writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        file_edit.output(path, text)


def read(path: Path) -> tuple[str, dict[str, float | str]]:
    """Return law and gains of a gains file; raise `ConfigError` naming the fault."""
    document = yaml_file.read(yaml_file.text_of(path), source=str(path))
    found = document if isinstance(document, dict) else {}
    law, gains = found.get("law"), found.get("gains")
    if not isinstance(law, str) or not isinstance(gains, dict):
        raise ConfigError(f"{path}: must have `law`, a name, and `gains`, a mapping")
    try:
        registry.checked_gains(law, gains)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return law, gains


def _short(value: float) -> float:
    return float(f"{value:.6g}")
