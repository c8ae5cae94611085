"""Registry of scheduling policies by their names in roma.yaml, written out in one place."""

from dispatcher.schedulers.balance import CpuBalance
from dispatcher.schedulers.base import Scheduler
from dispatcher.schedulers.clockwork.policy import Clockwork, ClockworkPaper
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from dispatcher.schedulers.gpu_savings_first import GpuSavingsFirst
from dispatcher.schedulers.head_of_line import Edf, Fcfs
from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.learned import QosRl
from dispatcher.schedulers.qos.optimal import QosOpt
from dispatcher.schedulers.roma import Roma
from dispatcher.schedulers.round_robin import RoundRobin

GPU: dict[str, type[Scheduler]] = {
    "roma": Roma,
    "round_robin": RoundRobin,
    "fcfs": Fcfs,
    "edf": Edf,
    "gpu_savings_first": GpuSavingsFirst,
    "clockwork": Clockwork,
    "clockwork_paper": ClockworkPaper,
    "fixed": Fixed,
    "qos": Qos,
    "qos-opt": QosOpt,
    "qos-rl": QosRl,
}

CPU: dict[str, type[Scheduler]] = {
    "round_robin": CpuRoundRobin,
    "balance": CpuBalance,
}
