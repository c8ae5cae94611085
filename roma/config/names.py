"""Names of laws and policies in roma.yaml, each with the code behind it: the place to register one.

The code is named as text, because nothing here may import what is built on it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

LAWS: Final = {
    "captain": "controllers.captain:CaptainGains captain_step",
    "late_share": "controllers.late_share:LateShareGains late_share_step",
    "paper": "controllers.paper:PaperGains paper_step",
    "pi": "controllers.pi:PiGains pi_step",
    "rules": "controllers.rules:RulesGains rules_step",
    "static": "controllers.static:StaticGains static_step",
    "usage": "controllers.usage:UsageGains usage_step",
}
"""`control.law`: the gains' class and the step function of each law."""

GPU_POLICIES: Final = {
    "roma": "dispatcher.schedulers.roma:Roma",
    "round_robin": "dispatcher.schedulers.round_robin:RoundRobin",
    "fcfs": "dispatcher.schedulers.head_of_line:Fcfs",
    "edf": "dispatcher.schedulers.head_of_line:Edf",
    "gpu_savings_first": "dispatcher.schedulers.gpu_savings_first:GpuSavingsFirst",
    "clockwork": "dispatcher.schedulers.clockwork.policy:Clockwork",
    "clockwork_paper": "dispatcher.schedulers.clockwork.policy:ClockworkPaper",
    "fixed": "dispatcher.schedulers.qos.heuristic:Fixed",
    "qos": "dispatcher.schedulers.qos.heuristic:Qos",
    "qos-opt": "dispatcher.schedulers.qos.optimal:QosOpt",
    "qos-rl": "dispatcher.schedulers.qos.learned:QosRl",
}
"""`scheduling.gpu`: the class of each policy."""

CPU_POLICIES: Final = {
    "round_robin": "dispatcher.schedulers.cpu_round_robin:CpuRoundRobin",
    "balance": "dispatcher.schedulers.balance:CpuBalance",
}
"""`scheduling.cpu`: the class of each policy."""

if TYPE_CHECKING:
    LawName = str
    GpuPolicyName = str
    CpuPolicyName = str
else:
    LawName = Literal[tuple(LAWS)]
    GpuPolicyName = Literal[tuple(GPU_POLICIES)]
    CpuPolicyName = Literal[tuple(CPU_POLICIES)]


def load(path: str) -> list[Any]:
    """Return the objects that `module:name name …` means."""
    module, _, names = path.partition(":")
    found = import_module(module)
    return [getattr(found, name) for name in names.split()]
