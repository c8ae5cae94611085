"""The registry of experiments, by name: written out in one place."""

from roma.lab.experiments.ablation import ABLATION
from roma.lab.experiments.base import Experiment
from roma.lab.experiments.clairvoyant_bound import CLAIRVOYANT_BOUND
from roma.lab.experiments.clockwork.isolation import ISOLATION
from roma.lab.experiments.clockwork.low import LOW
from roma.lab.experiments.clockwork.scale import SCALE
from roma.lab.experiments.clockwork.slo import SLO
from roma.lab.experiments.clockwork.thousands import THOUSANDS
from roma.lab.experiments.clockwork.trace import TRACE
from roma.lab.experiments.figure2 import FIGURE2
from roma.lab.experiments.pareto import PARETO
from roma.lab.experiments.parity import PARITY
from roma.lab.experiments.promise import PROMISE
from roma.lab.experiments.qos.compare import QOS_BUSY, QOS_CLUSTER, QOS_SINGLE
from roma.lab.experiments.robustness import ROBUSTNESS
from roma.lab.experiments.sensitivity import SENSITIVITY
from roma.lab.experiments.table2 import TABLE2

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        TABLE2,
        SENSITIVITY,
        FIGURE2,
        PARETO,
        CLAIRVOYANT_BOUND,
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
