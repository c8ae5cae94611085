"""This host's GPUs as NVML sees them: their number, utilization and memory.

A missing package, library, driver or GPU is normal, means no GPUs and is logged once. A GPU that
fails while it is read is left out of that reading. NVML is only read here: nothing on a GPU is ever
set, and no GPU failure raises. Source: https://docs.nvidia.com/deploy/nvml-api/
"""

import contextlib
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

try:
    import pynvml
except ImportError:  # the extra `gpu` is not installed
    pynvml = None

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU at one moment; None is a value that this GPU does not report.

    `index` follows the PCI bus, as CUDA's does with CUDA_DEVICE_ORDER=PCI_BUS_ID. `utilization`, 0
    to 1, is the share of NVML's last sample period (1/6 s to 1 s) in which a kernel ran; memory is
    in bytes. A GPU split by MIG reports no utilization; one that shares the host's memory may
    report no memory of its own.
    """

    index: int
    name: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None


class Gpus:
    """The GPUs of this host, while entered with `with`; no GPUs before and after.

    Both entering and `read` block: milliseconds, but seconds on a GPU that sleeps or is in trouble.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._count = 0
        self._failing: set[int] = set()

    def __enter__(self) -> Self:
        if pynvml is None:
            log.info("no GPUs: the package nvidia-ml-py (extra `gpu`) is not installed")
            return self
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            # NVML looks for GPUs once, when it is initialised: a lost one keeps its index.
            self._count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            log.info("no GPUs: NVML: %s", error)
        else:
            if not self._count:
                log.info("no GPUs: NVML finds none")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        nvml, self._nvml, self._count = self._nvml, None, 0
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def read(self) -> tuple[GpuReading, ...]:
        """Return the present reading of each GPU that answers, by index."""
        readings = []
        for index in range(self._count):
            try:
                readings.append(_read(self._nvml, index))
            except self._nvml.NVMLError as error:
                if index not in self._failing:  # once per failure, not once per reading
                    log.warning("GPU %d cannot be read: %s", index, error)
                self._failing.add(index)
            else:
                self._failing.discard(index)
        return tuple(readings)


def _read(nvml: Any, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    rates = memory = None
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuReading(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        utilization=None if rates is None else rates.gpu / 100,
        memory_used=None if memory is None else memory.used,
        memory_total=None if memory is None else memory.total,
    )
