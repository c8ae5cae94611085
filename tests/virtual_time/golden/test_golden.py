"""Small simulations beside their results: `<name>.yaml` and `<name>.json`.

Who changes a result on purpose writes the files anew and reviews their difference:

    .venv/bin/python tests/virtual_time/golden/test_golden.py
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from roma.config import schema
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

HERE = Path(__file__).parent
CASES = sorted(file.stem for file in HERE.glob("*.yaml"))


def result(name):
    """Return a run's result as plain data; floats with nine digits, below any decision's reach."""
    scenario = from_config(schema.load(HERE / f"{name}.yaml"))
    return rounded(asdict(Simulation(scenario).run()))


def rounded(value):
    match value:
        case dict():
            return {key: rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [rounded(part) for part in value]
        case float():
            return float(f"{value:.9g}")
    return value


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_the_one_on_file(name):
    assert result(name) == json.loads((HERE / f"{name}.json").read_text())


def test_the_files_on_record_cover_what_can_become_of_a_request():
    totals = [
        m for name in CASES for m in json.loads((HERE / f"{name}.json").read_text())["models"]
    ]
    for count in ("answered", "on_gpu", "late", "rejected", "windows_over"):
        assert any(m[count] for m in totals), count


if __name__ == "__main__":
    for case in CASES:
        (HERE / f"{case}.json").write_text(json.dumps(result(case), indent=2) + "\n")
