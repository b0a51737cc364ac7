"""Counters of NVIDIA GPUs, from NVML (NVML API reference: nvmlDeviceGetUtilizationRates and its neighbours).

Whatever a GPU, a driver or a partition of a GPU (MIG) does not offer is left out; nothing here raises for want of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ioprof.record.samplers.readings import HOST, Readings


class GpuCounters:
    """Reads every GPU that the driver shows, whether the job uses it or not; no series where there is no driver.

    `nvml` is the module `pynvml`. Reading PCIe traffic makes NVML watch the bus for 20 ms each way, asleep.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.notes: list[str] = []
        self._questions: list[tuple[str, Callable[[], float]]] = []
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self._nvml = None
            self.notes.append(f"GPUs are not sampled: {error}")
            return
        try:
            self._questions = [question for number in range(nvml.nvmlDeviceGetCount()) for question in self._about(number)]
        except nvml.NVMLError as error:
            self.notes.append(f"GPUs are not sampled: {error}")

    def read(self) -> Readings:
        """All values at about this instant. A question that a GPU does not support is not asked again."""
        values = {}
        for name, ask in tuple(self._questions):
            try:
                values[name] = ask()
            except self._nvml.NVMLError_NotSupported:
                self._questions.remove((name, ask))
            except self._nvml.NVMLError:  # a GPU that is lost or busy: perhaps next time
                continue
        return {HOST: values} if values else {}

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _about(self, number: int) -> Iterator[tuple[str, Callable[[], float]]]:
        nvml, name = self._nvml, f"gpu{number}"
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        except nvml.NVMLError as error:
            self.notes.append(f"{name} is not sampled: {error}")
            return
        yield f"{name}.utilisation", lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        yield f"{name}.memory_used", lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        yield f"{name}.power", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
        yield f"{name}.sm_clock", lambda: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))
        yield f"{name}.pcie_received", lambda: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) * 1e3
        yield f"{name}.pcie_sent", lambda: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) * 1e3
