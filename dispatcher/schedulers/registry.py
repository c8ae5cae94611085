"""Scheduling policies by their names in roma.yaml, which `roma.config.names` lists."""

from dispatcher.schedulers.base import Scheduler
from roma.config import names

GPU: dict[str, type[Scheduler]] = {
    name: names.load(path)[0] for name, path in names.GPU_POLICIES.items()
}

CPU: dict[str, type[Scheduler]] = {
    name: names.load(path)[0] for name, path in names.CPU_POLICIES.items()
}
