"""Eq. 12 really gives double poles, and its guards refuse what it is blind to."""

import control
import numpy as np
import pytest
import yaml

from controllers import registry
from controllers.design import plant, robustness, tune
from controllers.design.plant import OperatingPoint, Plant, Sampling
from controllers.design.tune import TuningGoal
from controllers.error import ErrorForm
from roma.domain.errors import ConfigError

MEAN = plant.sampled(OperatingPoint(), Sampling.MEAN)
TABLE = [
    (k, b, q)
    for k in (0.01, 0.087, 0.23, 1.0, 25.0)
    for b in (-2.29, -0.24, 0.0, 0.23, 0.6, 0.78)
    for q in (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
    if abs(q - b) > 0.05 and abs(q - 2 * b + 1) > 0.05
]


@pytest.mark.parametrize(("k", "b", "q"), TABLE)
def test_eq_12_places_both_poles_in_q(k, b, q):
    found = tune.eq_12(k, b, q)
    law = control.tf([found.K, -found.K * found.a], [1, -1], 1.0)
    closed = control.feedback(law * control.tf([k, -k * b], [1, -1], 1.0), 1)
    characteristic = closed.den[0][0] / closed.den[0][0][0]
    assert characteristic == pytest.approx([1, -2 * q, q * q], abs=1e-7)
    # A double root is known to the square root of the coefficients' precision.
    assert closed.poles() == pytest.approx([q, q], abs=2e-3)


def test_the_tuned_gains_are_those_of_the_document():
    tuning = tune.main(MEAN, TuningGoal())
    gain = tuning.controller.K
    assert gain == pytest.approx(1.276, abs=5e-4)
    assert tuning.gains["K"] == pytest.approx(1.276 * 0.304, abs=5e-4)
    assert tuning.gains["a"] == pytest.approx(0.9202, abs=5e-5)
    assert all(v.stable for v in tuning.verdicts)
    assert tuning.warnings == ()


@pytest.mark.parametrize(
    ("system", "goal", "message"),
    [
        (Plant(0.23, -0.24), TuningGoal(), "k = 0.23 s/core: must be < 0"),
        (Plant(0.0, -0.24), TuningGoal(), "k = 0 s/core: must be < 0"),
        (Plant(float("nan"), 0.2), TuningGoal(), "k = nan s/core: must be < 0"),
        (Plant(-5e-324, -0.24), TuningGoal(), "k = -4.94066e-324 s/core: must be < 0, from"),
        (Plant(-0.23, 1.0), TuningGoal(), "b = 1: must be < 1"),
        (Plant(-0.23, -1e300), TuningGoal(), "must be < 1 and >= -1e"),
        (Plant(-0.23, -0.24), TuningGoal(q=1.0), r"q = 1: must be in \(0, 1\)"),
        (Plant(-0.23, -0.24), TuningGoal(q=0.65), "q = 0.65: must be >= 0.7"),
        (Plant(-0.23, 0.84), TuningGoal(q=0.85), "q = 0.85: must differ from b = 0.84"),
        (Plant(-0.23, 0.925), TuningGoal(q=0.85), "must differ from 2b - 1"),
        (MEAN, TuningGoal(q=0.7), r"unstable with dead_time = 2 \(pole at 1.015\)"),
        (MEAN, TuningGoal(dead_time=-1), "dead_time = -1: must be from 0"),
        (MEAN, TuningGoal(set_point=0.0), "set_point = 0.0: must be finite and > 0"),
        (Plant(-1e-5, -0.24), TuningGoal(), r"control.gains.K = .*less than or equal to 100"),
        (
            Plant(-0.23, -0.24, period=0.01),
            TuningGoal(),
            r"control.gains.a = -.*greater than or equal",
        ),
    ],
)
def test_guards_name_what_must_not_be(system, goal, message):
    with pytest.raises(ConfigError, match=message):
        tune.main(system, goal)


def test_backward_euler_at_half_is_unstable_with_the_dead_step_it_ignores():
    backward = plant.sampled(OperatingPoint(), Sampling.BACKWARD)
    assert tune.main(backward, TuningGoal(q=0.5, dead_time=0, allow_fast=True)).warnings
    with pytest.raises(ConfigError, match="unstable with dead_time = 1"):
        tune.main(backward, TuningGoal(q=0.5, dead_time=1, allow_fast=True))


def test_more_dead_time_than_asked_for_is_a_warning():
    tuning = tune.main(MEAN, TuningGoal(q=0.7, dead_time=1))
    assert [warning.split(" (")[0] for warning in tuning.warnings] == [
        "unstable with dead_time = 2",
        "unstable with dead_time = 3",
    ]


@pytest.mark.parametrize("form", list(ErrorForm))
@pytest.mark.parametrize("period", [0.5, 1.0, 2.0])
def test_gains_come_back_as_the_controller_they_were_made_from(form, period):
    system = plant.sampled(OperatingPoint(period=period), Sampling.MEAN)
    tuning = tune.main(system, TuningGoal(error=form, q=0.9))
    back = robustness.from_gains(tuning.gains, 0.304, period, cost=0.1)
    expected = (tuning.controller.K, tuning.controller.a)
    assert (back.K, back.a) == pytest.approx(expected, rel=1e-5)


def test_a_gains_file_says_where_it_comes_from_and_production_reads_it(tmp_path):
    path = tmp_path / "new" / "gains.yaml"
    tuning = tune.main(MEAN, TuningGoal())
    tune.write(tuning, path, {"from": "a test"})
    document = yaml.safe_load(path.read_text())
    provenance = document["provenance"]
    assert provenance["made_by"] == "roma design tune"
    assert provenance["plant"] == {"from": "a test", "k": -0.229714, "b": -0.243781}
    assert (provenance["q"], provenance["dead_time"]) == (0.85, 3)
    assert [p["largest"] < 1 for p in provenance["poles"]] == [True] * 4
    assert "date" not in provenance
    assert tune.read(path) == ("pi", tuning.gains)
    registry.build(document["law"], document["gains"])
    tune.write(tuning, path, {}, date="2020-02-20")
    assert yaml.safe_load(path.read_text())["provenance"]["date"] == "2020-02-20"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("law: pi\n", "must have `law`, a name, and `gains`"),
        ("- 1\n", "must have `law`, a name, and `gains`"),
        ("law: pi\ngains: {K: 0}\n", r"control.gains.K = 0"),
        ("law: [\n", "not valid YAML"),
    ],
)
def test_a_bad_gains_file_is_named(tmp_path, text, message):
    path = tmp_path / "gains.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        tune.read(path)
    assert str(caught.value).startswith(str(path))


def test_a_faster_wish_is_a_larger_gain():
    gains = [tune.eq_12(0.23, -0.24, q).K for q in (0.95, 0.9, 0.8, 0.7)]
    assert np.all(np.diff(gains) > 0)
