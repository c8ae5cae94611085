"""k and b come back from noisy runs; a bad file is named by line, column, value and bound."""

from dataclasses import replace

import control
import numpy as np
import pytest

from controllers.design import excite, identify, plant
from controllers.design.identify import IdentificationRun
from controllers.design.plant import OperatingPoint, Plant
from roma.domain.errors import ConfigError

HEADER = "time,applied,response_time,throughput\n"


def record(truth, *, dead_time=0, noise=0.02, periods=400, seed=1):
    """A run of the linear plant around 3.5 cores with random cores and arrivals."""
    random = np.random.default_rng(seed)
    time = np.arange(periods) * truth.period
    u = random.choice([-0.3, 0.3], periods)
    moved = control.forced_response(truth.transfer_function(dead_time), time, u).outputs
    walk = np.cumsum(random.normal(scale=noise, size=periods))
    return IdentificationRun(time, 3.5 + u, 5.0 + moved + walk, np.full(periods, 35.0))


@pytest.mark.parametrize(
    "truth", [Plant(-0.37, 0.23), Plant(-0.23, -0.24), Plant(-0.09, -2.29, 2.0)]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_k_and_b_come_back_within_their_errors(truth, seed):
    (fit,) = identify.main(record(truth, seed=seed), dead_time=0)
    assert abs(fit.plant.k - truth.k) < 4 * fit.k_error
    assert abs(fit.plant.b - truth.b) < 4 * fit.b_error
    assert fit.k_error < 0.05 * abs(truth.k)
    assert fit.plant.period == truth.period
    assert fit.spread == pytest.approx(0.02, rel=0.2)
    assert fit.cores == pytest.approx(3.5, abs=0.05)
    assert fit.warnings == []


@pytest.mark.parametrize("dead_time", [0, 1, 2, 3])
def test_the_dead_time_is_the_one_that_explains_most(dead_time):
    fits = identify.main(record(Plant(-0.23, -0.24), dead_time=dead_time))
    assert [fits[0].dead_time, len(fits)] == [dead_time, 4]
    assert fits[0].r_squared > 0.8
    assert fits[0].plant.k == pytest.approx(-0.23, rel=0.05)


def test_unanswered_periods_and_gaps_cost_only_their_own_differences():
    whole = record(Plant(-0.23, -0.24), noise=0.0)
    response = whole.response.copy()
    response[[50, 51, 200]] = np.nan
    kept = np.delete(np.arange(len(response)), [100, 300])
    holed = IdentificationRun(
        *(x[kept] for x in (whole.time, whole.applied, response, whole.throughput))
    )
    (fit,) = identify.main(holed, dead_time=0)
    assert fit.plant.k == pytest.approx(-0.23)
    assert fit.plant.b == pytest.approx(-0.24)
    assert len(fit.measured) == 399 - 2 * 2 - 3 - 2  # two gaps, two NaN side by side, one alone
    assert np.all(np.isfinite(fit.measured))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_queue_itself_is_identified_in_closed_loop(seed):
    """Nonlinear, closed loop, Poisson arrivals: within 15 % of the linearisation at 1 s."""
    run = excite.example(OperatingPoint(), seed=seed)
    fit = identify.main(run, least_response=0.15)[0]
    truth = plant.sampled(OperatingPoint(response_time=1.0), plant.Sampling.MEAN)
    assert fit.dead_time == 0
    assert fit.plant.k == pytest.approx(truth.k, rel=0.15)
    assert fit.plant.b == pytest.approx(truth.b, abs=0.1)
    assert fit.per_core == pytest.approx(10.0, rel=0.15)
    # What is designed with: the same μC at the set point.
    at = fit.at(0.304)
    assert at.b == pytest.approx(-0.2438, abs=1e-3)
    assert at.k == pytest.approx(-0.2297, rel=0.15)


def test_a_run_without_excitation_is_refused():
    still = replace(record(Plant(-0.23, -0.24)), applied=np.full(400, 3.5))
    with pytest.raises(ConfigError, match="applied: must move"):
        identify.main(still)
    constant = replace(record(Plant(-0.23, -0.24)), response=np.full(400, 0.5))
    with pytest.raises(ConfigError, match="response_time: must move, or nothing tells k and b"):
        identify.main(constant)


def test_a_run_that_shows_no_queue_warns():
    run = record(Plant(-0.23, -0.24))
    noise = np.random.default_rng(1).normal(0.1, 0.01, 400)
    (fit,) = identify.main(replace(run, response=noise), dead_time=0)
    assert any("R²" in warning for warning in fit.warnings)
    (wrong,) = identify.main(record(Plant(0.23, -0.24)), dead_time=0)
    assert any("k >= 0" in warning for warning in wrong.warnings)


def rows(count=30):
    return [f"{i},{3 + i % 3},{0.3 + 0.01 * (i % 7)},35" for i in range(count)]


def test_a_byte_order_mark_belongs_to_no_column(tmp_path):
    file = tmp_path / "excel.csv"
    file.write_text("\n".join([",".join(identify.COLUMNS), *rows()]), encoding="utf-8-sig")
    assert identify.read(file).time[0] == 0


def test_a_file_is_read_whatever_the_order_of_its_columns(tmp_path):
    path = tmp_path / "run.csv"
    lines = [f"35,{0.1 * (i % 4) if i else ''},x,{i / 2},{i % 3}" for i in range(30)]
    path.write_text("throughput,response_time,note,time,applied\n" + "\n".join(lines) + "\n")
    run = identify.read(path)
    assert (run.period, run.throughput[3], run.applied[4]) == (0.5, 35.0, 1.0)
    assert np.isnan(run.response[0])
    assert run.response[1] == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lines: ["time,applied,throughput", *lines[1:]],
            ":1: column response_time: must be there",
        ),
        (lambda lines: lines[:5], ": 4 periods: must be >= 20"),
        (
            lambda lines: [*lines[:7], "6,four,0.3,35", *lines[8:]],
            ":8: applied = 'four': must be a number",
        ),
        (
            lambda lines: [*lines[:7], "6,-1,0.3,35", *lines[8:]],
            ":8: applied = -1: must be finite and >= 0",
        ),
        (
            lambda lines: [*lines[:7], "6,1,inf,35", *lines[8:]],
            ":8: response_time = inf: must be finite",
        ),
        (lambda lines: [*lines[:7], "6,1,0.3", *lines[8:]], ":8: 3 columns: must be 4"),
        (lambda lines: [*lines[:7], "5,1,0.3,35", *lines[8:]], ":8: time = 5: must be > 5 s"),
        (
            lambda lines: [*lines[:7], "6,1,0.3,", *lines[8:]],
            ":8: throughput = '': must be a number",
        ),
        (lambda lines: [], ":1: column time: must be there once"),
    ],
)
def test_a_bad_file_names_line_column_value_and_bound(tmp_path, change, message):
    path = tmp_path / "run.csv"
    path.write_text("\n".join(change([HEADER.strip(), *rows()])))
    with pytest.raises(ConfigError) as caught:
        identify.read(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_missing_or_binary_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read: No such file or directory$"):
        identify.read(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        identify.read(tmp_path / "binary.csv")
