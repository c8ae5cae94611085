"""k and b of eq. 8 by least squares from a recorded run; the user provides an exciting run.

    τ(k) - τ(k-1) = k·(u(k-d) - b·u(k-d-1)) + c

u is what was applied, not its deviation: the intercept c = -k·(1-b)·ū holds the operating point.
Differencing removes the integrator: random arrivals, which make the queue a random walk, become
noise without memory of earlier periods. Periods without a response, and gaps, drop the differences
that would need them. Without a given `dead_time` d, it is chosen by the residual.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controllers.design.plant import OperatingPoint, Plant, Sampling, sampled
from roma.domain.errors import ConfigError, in_words

COLUMNS = ("time", "applied", "response_time", "throughput")
"""s, cores in force in the period, s (empty: nothing was answered), req/s."""

MOST_DEAD_TIME = 3
FEWEST = 20
"""Differences below which three parameters are guesswork."""


@dataclass(frozen=True, slots=True)
class IdentificationRun:
    """A run, one entry per period; a response is NaN where nothing was answered."""

    time: Any
    applied: Any
    response: Any
    throughput: Any

    @property
    def period(self) -> float:
        """T in s, the median, so that gaps do not count."""
        return float(np.median(np.diff(self.time)))


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted plant of a run, with standard errors, and how well it explains the run.

    `measured` and `predicted` are τ(k) - τ(k-1) in s at `time`; `spread` is the standard deviation
    of the residuals in s; `cores` is ū, `throughput` and `response_time` are means of the run.
    """

    plant: Plant
    k_error: float
    b_error: float
    dead_time: int
    cores: float
    throughput: float
    response_time: float
    spread: float
    r_squared: float
    time: Any
    measured: Any
    predicted: Any

    @property
    def per_core(self) -> float:
        """μC in req/s per core: k·(1 - b) is -(μC/r̄o)·T in every discretisation."""
        return -self.plant.k * (1 - self.plant.b) * self.throughput / self.plant.period

    def at(self, response_time: float) -> Plant:
        """Return the plant at another response time in s: k and b change with it, μC does not.

        The response is taken as a window mean.
        """
        period = self.plant.period
        point = OperatingPoint(self.throughput, response_time, self.per_core, period=period)
        return sampled(point, Sampling.MEAN)

    @property
    def warnings(self) -> list[str]:
        """Reasons not to use this plant."""
        found = []
        if self.plant.k >= 0:
            found.append("k >= 0: more cores did not shorten the response; was there a queue?")
        if self.r_squared < 0.3:
            found.append(f"R² = {self.r_squared:.2f}: arrivals moved the response, not cores")
        if self.k_error > abs(self.plant.k) / 4:
            found.append(f"k is known to ±{self.k_error / abs(self.plant.k):.0%} only")
        return found


def read(path: Path) -> IdentificationRun:
    """Read a CSV with the columns of `COLUMNS`; raise `ConfigError` naming line and column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {in_words(error)}") from error
    header = rows[0] if rows else []
    for column in COLUMNS:
        if header.count(column) != 1:
            raise ConfigError(f"{path}:1: column {column}: must be there once")
    at = {column: header.index(column) for column in COLUMNS}
    values: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise ConfigError(f"{path}:{line}: {len(row)} columns: must be {len(header)}")
        for column in COLUMNS:
            values[column].append(_number(f"{path}:{line}", column, row[at[column]]))
        time = values["time"]
        if len(time) > 1 and time[-1] <= time[-2]:
            raise ConfigError(f"{path}:{line}: time = {time[-1]:g}: must be > {time[-2]:g} s")
    if (count := len(values["time"])) < FEWEST:
        raise ConfigError(f"{path}: {count} periods: must be >= {FEWEST}")
    return IdentificationRun(*(np.array(values[column]) for column in COLUMNS))


def _number(where: str, column: str, text: str) -> float:
    if column == "response_time" and not text.strip():
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {column} = {text!r}: must be a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{where}: {column} = {text}: must be finite and >= 0")
    return value


def fit(record: IdentificationRun, dead_time: int, least_response: float = 0.0) -> Fit:
    """Return the least-squares fit for one dead time; raise `ConfigError` if data are lacking.

    Responses below `least_response` s are left out: there the queue was empty, and eq. 4 does not
    apply.
    """
    T, u = record.period, record.applied
    tau = np.where(record.response >= least_response, record.response, np.nan)
    # A difference needs d + 2 consecutive periods without a gap.
    rows = np.arange(dead_time + 1, len(u))
    steady = np.abs(record.time[rows] - record.time[rows - dead_time - 1] - (dead_time + 1) * T)
    difference = tau[rows] - tau[rows - 1]
    usable = (steady < 0.25 * T) & np.isfinite(difference)
    rows, measured = rows[usable], difference[usable]
    if len(rows) < FEWEST:
        raise ConfigError(f"{len(rows)} usable differences of the response: must be >= {FEWEST}")
    if not measured.any():
        raise ConfigError("response_time: must move, or nothing tells k and b")
    now, before = u[rows - dead_time], u[rows - dead_time - 1]
    matrix = np.column_stack([now, before, np.ones(len(rows))])
    if np.linalg.matrix_rank(matrix - matrix.mean(axis=0) * [1, 1, 0], tol=1e-6) < 3:
        raise ConfigError("applied: must move, in steps of its own: k and b cannot be told apart")
    (first, second, intercept), *_ = np.linalg.lstsq(matrix, measured, rcond=None)
    residual = measured - matrix @ [first, second, intercept]
    spread = math.sqrt(float(residual @ residual) / (len(rows) - 3))
    total = float(np.sum((measured - measured.mean()) ** 2))
    covariance = spread**2 * np.linalg.inv(matrix.T @ matrix)[:2, :2]
    slope = np.array([second / first**2, -1 / first])
    return Fit(
        plant=Plant(float(first), float(-second / first), T),
        k_error=math.sqrt(covariance[0, 0]),
        b_error=math.sqrt(float(slope @ covariance @ slope)),
        dead_time=dead_time,
        cores=float(-intercept / (first + second)),
        throughput=float(record.throughput.mean()),
        response_time=float(np.nanmean(tau)),
        spread=spread,
        r_squared=1 - float(residual @ residual) / total if total else 0.0,
        time=record.time[rows],
        measured=measured,
        predicted=measured - residual,
    )


def main(
    record: IdentificationRun, dead_time: int | None = None, least_response: float = 0.0
) -> list[Fit]:
    """Return the fits for the given dead time, or for all, the best first."""
    tried = range(MOST_DEAD_TIME + 1) if dead_time is None else [dead_time]
    return sorted((fit(record, d, least_response) for d in tried), key=lambda f: f.spread)
