"""Reads Kineto's records of the GPU: spans on CLOCK_MONOTONIC of their host, from the files that `ioprof.record.gpu` leaves.

A file is Chrome JSON as torch.profiler writes it, plain or gzipped, and may be cut, garbled, or from any version. What can be
understood is kept, what cannot is counted in `Window.damage`, what Kineto recorded and cannot be in `Window.left_out`.

    in the file                                      span
    kernel of NCCL or RCCL, one-shot all-reduce      comm      name: the collective, numbered within its step: "AllReduce 0"
    gpu_memcpy HtoD                                  h2d       bytes; name: the memory it came from, "pageable" or "pinned"
    gpu_memcpy DtoH                                  d2h       bytes; name: the memory it went to
    any other kernel or copy, gpu_memset             kernel    name: the function, or "Memcpy DtoD", "Memset"

`stream` is CUDA's, plus 65536 times the number of the device. `step` is the one in which the span was *launched*, which is the
same on all ranks; where the launch was not recorded, the one in which it began. In the file times are of the wall clock, as
microseconds with three decimals since `baseTimeNanoseconds`, or since 1970 before torch 2.4.
"""

from ioprof.spool.kineto.reader import add_windows, read_window, read_windows
from ioprof.spool.kineto.spans import PAGEABLE
from ioprof.spool.kineto.window import Window

__all__ = ["PAGEABLE", "Window", "add_windows", "read_window", "read_windows"]
