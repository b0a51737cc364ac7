"""Reads Kineto traces of the GPU, which `ioprof.instrument.gpu` writes: spans on CLOCK_MONOTONIC of
their host.

A file is Chrome JSON as written by torch.profiler, plain or gzipped. It may be truncated, corrupt,
or from any version. Valid events are kept, unreadable ones are counted in `Window.damage`, and
events with impossible times in `Window.left_out`.

    in the file                                      span
    kernel of NCCL or RCCL, one-shot all-reduce      comm      name: the collective, numbered within its step: "AllReduce 0"
    gpu_memcpy HtoD                                  h2d       bytes; name: the source memory, "pageable" or "pinned"
    gpu_memcpy DtoH                                  d2h       bytes; name: the target memory
    any other kernel or copy, gpu_memset             kernel    name: the function, or "Memcpy DtoD", "Memset"
    call in which a thread waited for the device     sync      name: the call; `tid` instead of `stream`. Which: see `waits.py`

`stream` is the CUDA stream plus 65536 times the number of the device. `step` is the step in which
the span was *launched*, which is the same on all ranks; if the launch was not recorded, the step in
which it started. A `sync` is on the thread of the host that waited, in the step in which it began.
Times in the file are wall clock times, in microseconds with three decimals, since
`baseTimeNanoseconds`, or since 1970 before torch 2.4.
"""  # noqa: E501

from ioprof.ingest.kineto.foreign import ForeignTrace, read_foreign
from ioprof.ingest.kineto.reader import (
    add_windows,
    read_window,
    read_windows,
)
from ioprof.ingest.kineto.spans import PAGEABLE
from ioprof.ingest.kineto.window import Window

__all__ = [
    "PAGEABLE",
    "ForeignTrace",
    "Window",
    "add_windows",
    "read_foreign",
    "read_window",
    "read_windows",
]
