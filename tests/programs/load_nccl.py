"""Lets the real NCCL load its profiler plugin and report a collective to it, without a GPU.
Argument: libnccl.so.2.

A communicator cannot be made without CUDA. So NCCL's own functions for the plugin are called with
structures that are zero except for what those functions read. They are not exported: their
addresses come from the symbols of the library, and the places of fields from its debug information,
by gdb. Prints NCCL's version, and what it logs by NCCL_DEBUG=INFO.
"""

import ctypes
import re
import subprocess
import sys
import time
from typing import Any

FIELDS = (
    "ncclComm.profilerContext",
    "ncclComm.commHash",
    "ncclComm.nRanks",
    "ncclComm.rank",
    "ncclComm.nNodes",
    "ncclKernelPlan.comm",
    "ncclKernelPlan.collTaskQueue",
    "ncclTaskColl.func",
    "ncclTaskColl.count",
    "ncclTaskColl.datatype",
    "ncclTaskColl.eActivationMask",
    "ncclTaskColl.eventHandle",
    "ncclProxySubArgs.profilerContext",
    "ncclProxySubArgs.taskEventHandle",
    "ncclProxySubArgs.eActivationMask",
)
BYTES = 64 << 20
"""More than any of the structures has."""
ALL_REDUCE, FLOAT = 4, 7
EVENTS = 0b1000110
TIMER_NS, KERNEL_NS = 1_700_000_000_000_000_000, 4_000_000


def offsets(library: str) -> dict[str, int]:
    """Where the fields are in their structures."""
    asked = [
        f"-ex=print (long)&((struct {name.split('.')[0]}*)0)->{name.split('.')[1]}"
        for name in FIELDS
    ]
    found = subprocess.run(
        ["gdb", "-batch", "-nx", *asked, library], capture_output=True, text=True, check=True
    ).stdout
    return dict(
        zip(FIELDS, map(int, re.findall(r"^\$\d+ = (\d+)$", found, re.MULTILINE)), strict=True)
    )


class Functions:
    """Functions of the library that it does not export, by their names."""

    def __init__(self, library: str, exported: Any) -> None:
        lines = subprocess.run(
            ["nm", library], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        self._places = {
            line.split()[-1]: int(line.split()[0], 16) for line in lines if len(line.split()) == 3
        }
        self._profiler = [each for each in self._places if "ncclProfiler" in each]
        self._base = (ctypes.cast(exported, ctypes.c_void_p).value or 0) - self._places[
            "ncclGetVersion"
        ]

    def has(self, name: str) -> bool:
        return bool(self._symbols(name))

    def _symbols(self, name: str) -> list[str]:
        return [each for each in self._profiler if re.fullmatch(rf"_Z\d+{name}P[^.]*", each)]

    def call(self, name: str, *arguments: Any) -> None:
        (symbol,) = self._symbols(name)
        types = (
            ctypes.c_uint64 if isinstance(each, int) else ctypes.c_void_p for each in arguments
        )
        function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._base + self._places[symbol])
        assert 0 == function(
            *(each if isinstance(each, int) else ctypes.addressof(each) for each in arguments)
        )


class Zeros:
    """A structure of NCCL's, of zeros."""

    def __init__(self, name: str, places: dict[str, int]) -> None:
        self.memory = ctypes.create_string_buffer(BYTES)
        self._name, self._places = name, places

    def put(self, field: str, value: int, kind: Any = ctypes.c_uint64) -> None:
        kind.from_buffer(self.memory, self._places[f"{self._name}.{field}"]).value = value

    def get(self, field: str) -> int:
        return int(
            ctypes.c_uint64.from_buffer(self.memory, self._places[f"{self._name}.{field}"]).value
        )


def main(library: str) -> None:
    nccl, version, places = ctypes.CDLL(library), ctypes.c_int(), offsets(library)
    nccl.ncclGetVersion(ctypes.byref(version))
    print(version.value, flush=True)
    functions = Functions(library, nccl.ncclGetVersion)
    communicator, plan, task, proxy = (
        Zeros(name, places)
        for name in ("ncclComm", "ncclKernelPlan", "ncclTaskColl", "ncclProxySubArgs")
    )
    communicator.put("commHash", 0x1234ABCD)
    for field, value in (("nRanks", 8), ("rank", 5), ("nNodes", 2)):
        communicator.put(field, value, ctypes.c_int)
    functions.call("ncclProfilerPluginInit", communicator.memory)
    plan.put("comm", ctypes.addressof(communicator.memory))
    plan.put("collTaskQueue", ctypes.addressof(task.memory))
    task.put("count", 1000)
    task.put("func", ALL_REDUCE, ctypes.c_uint8)
    task.put("datatype", FLOAT, ctypes.c_uint8)
    task.put("eActivationMask", EVENTS, ctypes.c_int)
    for name in ("StartGroupEvent", "StartTaskEvents", "StopTaskEvents", "StopGroupEvent"):
        functions.call(f"ncclProfiler{name}", plan.memory)
    proxy.put("profilerContext", communicator.get("profilerContext"))
    proxy.put("taskEventHandle", task.get("eventHandle"))
    proxy.put("eActivationMask", EVENTS, ctypes.c_int)
    begun_ns = time.monotonic_ns()
    for name, timer in (("Start", begun_ns), ("Stop", begun_ns + KERNEL_NS)):
        if functions.has("ncclProfilerStartKernelChEvent"):  # from 2.26 on
            functions.call(f"ncclProfiler{name}KernelChEvent", proxy.memory, 0, TIMER_NS + timer)
        time.sleep(KERNEL_NS / 1e9)
    functions.call("ncclProfilerPluginFinalize", communicator.memory)


if __name__ == "__main__":
    main(sys.argv[1])
