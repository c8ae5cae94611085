"""`roma-sensitivity`: Table 2 again with every assumed service time 0.7 and 1.4 times as long."""

from roma.lab.experiments.base import Check, Experiment, Output
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.table2 import compare
from roma.lab.experiments.workloads import TABLE1

FACTORS = (0.7, 1.4)


def _run(lab: Lab) -> Output:
    outputs = {
        factor: compare(
            lab,
            [test.scaled(factor) for test in TABLE1],
            f"roma-sensitivity-{factor:g}",
            f"Table 2, every service time × {factor:g}",
        )
        for factor in FACTORS
    }
    return Output(
        tuple(table for output in outputs.values() for table in output.tables),
        checks=tuple(
            Check(f"× {factor:g}: {check.claim}", check.holds, is_aim=True)
            for factor, output in outputs.items()
            for check in output.checks
        ),
    )


SENSITIVITY = Experiment(
    "roma-sensitivity",
    "Table 2 with every service time × 0.7 and × 1.4: what depends on the assumed plant",
    _run,
    seeds=5,
)
