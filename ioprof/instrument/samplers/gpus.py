"""Counters of NVIDIA GPUs from NVML (NVML API reference: nvmlDeviceGetUtilizationRates and
following functions).

Counters that a GPU, a driver or a partition of a GPU (MIG) does not support are left out without an
error.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ioprof.instrument.samplers.readings import HOST, Readings


class GpuCounters:
    """Reads all GPUs that the driver lists, also those that the job does not use; no series without
    a driver.

    `nvml` is the module `pynvml`. To read PCIe traffic, NVML measures for 20 ms in each direction;
    the thread sleeps meanwhile.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.notes: list[str] = []
        self._queries: list[tuple[str, Callable[[], float]]] = []
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self._nvml = None
            self.notes.append(f"GPUs are not sampled: {error}")
            return
        try:
            self._queries = [
                query
                for number in range(nvml.nvmlDeviceGetCount())
                for query in self._queries_of(number)
            ]
        except nvml.NVMLError as error:
            self.notes.append(f"GPUs are not sampled: {error}")

    def read(self) -> Readings:
        """The current values. A query that a GPU does not support is not repeated."""
        values = {}
        for name, query in tuple(self._queries):
            try:
                values[name] = query()
            except self._nvml.NVMLError_NotSupported:
                self._queries.remove((name, query))
            except self._nvml.NVMLError:  # a GPU that is lost or busy: retry at the next sample
                continue
        return {HOST: values} if values else {}

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _queries_of(self, number: int) -> Iterator[tuple[str, Callable[[], float]]]:
        nvml, name = self._nvml, f"gpu{number}"
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        except nvml.NVMLError as error:
            self.notes.append(f"{name} is not sampled: {error}")
            return
        yield f"{name}.utilisation", lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        yield f"{name}.memory_used", lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        yield f"{name}.power", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
        yield (
            f"{name}.sm_clock",
            lambda: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        )
        yield (
            f"{name}.pcie_received",
            lambda: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) * 1e3,
        )
        yield (
            f"{name}.pcie_sent",
            lambda: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) * 1e3,
        )
