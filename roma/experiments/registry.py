"""Every experiment by name: written out, in one place."""

from roma.experiments.ablation import ABLATION
from roma.experiments.base import Experiment
from roma.experiments.clockwork.isolation import ISOLATION
from roma.experiments.clockwork.low import LOW
from roma.experiments.clockwork.scale import SCALE
from roma.experiments.clockwork.slo import SLO
from roma.experiments.clockwork.thousands import THOUSANDS
from roma.experiments.clockwork.trace import TRACE
from roma.experiments.figure2 import FIGURE2
from roma.experiments.hindsight import HINDSIGHT
from roma.experiments.pareto import PARETO
from roma.experiments.parity import PARITY
from roma.experiments.promise import PROMISE
from roma.experiments.qos.compare import QOS_BUSY, QOS_CLUSTER, QOS_SINGLE
from roma.experiments.robustness import ROBUSTNESS
from roma.experiments.sensitivity import SENSITIVITY
from roma.experiments.table2 import TABLE2

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        TABLE2,
        SENSITIVITY,
        FIGURE2,
        PARETO,
        HINDSIGHT,
        ROBUSTNESS,
        ABLATION,
        PARITY,
        PROMISE,
        SLO,
        THOUSANDS,
        TRACE,
        SCALE,
        LOW,
        ISOLATION,
        QOS_SINGLE,
        QOS_CLUSTER,
        QOS_BUSY,
    )
}
