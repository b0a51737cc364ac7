"""The sampled series of a run: their names, their units, and how to read them high and low.

A name is made of what was asked (`disk`, `process`, `gpu0`), which one where there are several, and the quantity. `{...}` in this
table stands for the part that differs from machine to machine. Times are seconds and amounts are bytes throughout, whatever the
kernel counts in. A cumulative series only grows and is read by its differences; any other is the state at that instant.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

COUNTER_FORMAT: Final = "ioprof.spool.counters/1"
"""The first thing in every file of samples; the grammar stands in `ioprof.record.samplers.file`."""


@dataclass(frozen=True)
class Series:
    """What the values of a series are."""

    unit: str
    cumulative: bool
    meaning: str
    """What is counted and by whom, what a high value means and, where it is not just the contrary, a low one."""


def _grows(unit: str, meaning: str) -> Series:
    return Series(unit, True, meaning)


def _state(unit: str, meaning: str) -> Series:
    return Series(unit, False, meaning)


_HOST: Final = {
    "cpu.user": _grows(
        "s",
        "CPU time in user mode, all CPUs and all users of the host. Near CPUs × time: no core is left for more workers.",
    ),
    "cpu.system": _grows("s", "CPU time in the kernel. High beside a low user time: many small reads, page faults or copies."),
    "cpu.irq": _grows("s", "CPU time in interrupts. High: network or NVMe completions on few cores."),
    "cpu.idle": _grows("s", "Time in which a CPU had nothing to do. Low: more workers would only take time from each other."),
    "cpu.iowait": _grows(
        "s",
        "Idle time during which something on that CPU waited for a disk. High: storage. Low proves nothing: waits on Lustre do "
        "not count.",
    ),
    "cpu.steal": _grows(
        "s",
        "Time that the hypervisor gave to other guests. High: rates of this run say more about the neighbours.",
    ),
    "memory.available": _state(
        "bytes",
        "Memory that can be had without swapping. Low: the page cache shrinks and reads become storage reads.",
    ),
    "memory.cached": _state("bytes", "File pages in memory. As large as the dataset: epochs after the first need no storage."),
    "memory.dirty": _state("bytes", "Written and not yet on storage. High: checkpoints or converters compete with reads."),
    "vm.paged_in": _grows("bytes", "Read from block devices into memory, swap included. Network file systems do not count here."),
    "vm.swapped_in": _grows("bytes", "Read back from swap. Above 0 while the job runs: memory is short, whatever else is slow."),
    "vm.major_faults": _grows(
        "faults",
        "Page faults of all processes that had to read. High: memory-mapped reads (LMDB) or swapping.",
    ),
    "pressure.io.some": _grows("s", "Time in which at least one task was stalled on I/O. Mostly blind to Lustre."),
    "pressure.io.full": _grows("s", "Time in which no task could run because all were stalled on I/O. High: storage is the bound."),
    "pressure.cpu.some": _grows("s", "Time in which at least one runnable task had no CPU. High: too many workers or threads."),
    "pressure.memory.some": _grows(
        "s",
        "Time in which at least one task was stalled on memory. High: pages are thrown out and read again.",
    ),
    "pressure.memory.full": _grows("s", "Time in which all tasks were stalled on memory. High: thrashing."),
}

_DEVICES: Final = {
    "disk.{device}.reads": _grows(
        "requests",
        "Reads that the device completed. Stacked devices (dm, md, loop) count beside those below them: do not add.",
    ),
    "disk.{device}.read_bytes": _grows("bytes", "Bytes that the device delivered, readahead and other programs included."),
    "disk.{device}.read_time": _grows("s", "Sum of the times of all reads. Its growth over that of `reads` is the mean latency."),
    "disk.{device}.writes": _grows("requests", "Writes that the device completed."),
    "disk.{device}.write_bytes": _grows("bytes", "Bytes written. High during training: checkpoints, or other users."),
    "disk.{device}.in_flight": _state(
        "requests",
        "Requests that the device was at work on. Near 1: one reader waits for one read at a time; more workers would help.",
    ),
    "disk.{device}.busy_time": _grows(
        "s",
        "Time with a request in flight. Equal to the time passed: always busy, which for an SSD is not yet full.",
    ),
    "disk.{device}.queue_time": _grows(
        "s",
        "Requests in flight, summed over time. Its growth over the time passed is the mean queue.",
    ),
    "network.{interface}.received_bytes": _grows(
        "bytes",
        "Bytes received. `lo` is traffic within the host, such as Gloo between ranks.",
    ),
    "network.{interface}.sent_bytes": _grows("bytes", "Bytes sent."),
    "infiniband.{port}.received_bytes": _grows(
        "bytes",
        "Bytes received by an InfiniBand port, RDMA included: Lustre and NCCL traffic that `network` does not show.",
    ),
    "infiniband.{port}.sent_bytes": _grows("bytes", "Bytes sent by an InfiniBand port."),
}

_SERVERS: Final = {
    "lustre.{file_system}.read_bytes": _grows(
        "bytes",
        "Returned by read calls of this host, page-cache hits included; what is read by way of a mapping is not.",
    ),
    "lustre.{file_system}.reads": _grows("calls", "Read calls of this host. Low `read_bytes` per call: reads are too small."),
    "lustre.{file_system}.read_time": _grows(
        "s",
        "Sum of the times of all read calls. Its growth over that of `reads` is the mean, hits included. Not before 2.14.",
    ),
    "lustre.{file_system}.opens": _grows("calls", "Files opened. As many as samples: one request to a metadata server for each."),
    "lustre.{file_system}.open_time": _grows(
        "s", "Sum of the times of all opens. High per open: the metadata servers are the bound."
    ),
    "lustre.{file_system}.page_faults": _grows("faults", "Faults in mapped files (LMDB). Each may be a request of one page."),
    "lustre.{file_system}.page_fault_time": _grows("s", "Sum of the times of these faults."),
    "lustre.{file_system}.readahead_hits": _grows("pages", "Pages that a read found in the cache."),
    "lustre.{file_system}.readahead_misses": _grows(
        "pages",
        "Pages that a read had to wait for. High beside the hits: access is random, or records are too small for readahead.",
    ),
    "lustre.{file_system}.fetched_bytes": _grows(
        "bytes", "Bytes that the servers sent to this host, data on metadata servers included."
    ),
    "lustre.{file_system}.fetched_bytes_least": _grows(
        "bytes",
        "Lower bound of the bytes that the servers sent: requests are counted by the power of two of their pages. Where "
        "`fetched_bytes` is not to be had.",
    ),
    "lustre.{file_system}.fetched_bytes_most": _grows("bytes", "Upper bound of the same; the last page of a file counts as whole."),
    "lustre.{file_system}.read_requests": _grows(
        "requests", "Read requests to servers. Many per record: pages are fetched one by one."
    ),
    "lustre.{file_system}.read_request_time": _grows("s", "Sum of the times of these requests: network and server."),
    "lustre.{file_system}.metadata.{operation}": _grows(
        "requests",
        "Requests to metadata servers; `intent_lock` is an open or a look-up, `read_page` a part of a listing.",
    ),
    "nfs.{mount}.read_bytes": _grows(
        "bytes", "Returned by read calls, page-cache hits included; mounts of one export share counters."
    ),
    "nfs.{mount}.fetched_bytes": _grows("bytes", "Bytes that the server sent for reads, readahead included."),
    "nfs.{mount}.requests": _grows("requests", "All requests. Many beside `read_requests`: opens and look-ups are the bound."),
    "nfs.{mount}.retransmissions": _grows("requests", "Sent again because no answer came. Above 0: the network or the server."),
    "nfs.{mount}.read_requests": _grows("requests", "Read requests to the server."),
    "nfs.{mount}.read_round_trip_time": _grows("s", "Sum of the times from sending a read request to its answer."),
    "nfs.{mount}.read_request_time": _grows(
        "s",
        "The same with the time before sending. High beside the round trips: requests queue here; mount with nconnect=8.",
    ),
}

_PROCESSES: Final = {
    "process.cpu_user": _grows(
        "s",
        "CPU time in user mode, all threads. Growing as fast as time: one core's worth, mostly decode in a worker.",
    ),
    "process.cpu_system": _grows("s", "CPU time in the kernel, all threads."),
    "process.rss": _state("bytes", "Resident memory, shared pages included: the sum over workers counts those many times."),
    "process.threads": _state("threads", "Threads. Many times the number of cores in every worker: set OMP_NUM_THREADS=1 there."),
    "process.major_faults": _grows("faults", "Page faults that had to read, all threads. High: memory-mapped reads."),
    "process.rchar": _grows(
        "bytes",
        "Returned by read calls, cache hits and pipes included. Jumps when a child is reaped: the kernel adds the child's to it.",
    ),
    "process.syscr": _grows("calls", "Read calls. Low `rchar` per call: reads are too small. Adds reaped children's."),
    "process.read_bytes": _grows(
        "bytes",
        "Submitted by this process to storage or, on Lustre and NFS, to the network. 0 on FUSE whatever was read. Adds reaped "
        "children's.",
    ),
    "process.write_bytes": _grows("bytes", "Made dirty or written. Adds reaped children's."),
    "process.block_delay": _grows("s", "Time that the main thread waited for block devices; only where kernel.task_delayacct=1."),
    "process.voluntary_switches": _grows(
        "switches",
        "Times that the main thread (only that one) gave up its CPU to wait. High: it waits often.",
    ),
    "process.involuntary_switches": _grows(
        "switches",
        "Times that the main thread lost its CPU to another task. High: more runnable threads than cores.",
    ),
}

_GPUS: Final = {
    "gpu{number}.utilisation": _state(
        "%",
        "Share of the driver's last sampling interval with a kernel running. 100 does not mean that the kernels fill the device.",
    ),
    "gpu{number}.memory_used": _state("bytes", "Device memory in use by all processes."),
    "gpu{number}.pcie_received": _state(
        "bytes/s",
        "PCIe traffic to the device in the 20 ms before the sample. Low while copies are slow: pageable memory.",
    ),
    "gpu{number}.pcie_sent": _state("bytes/s", "PCIe traffic from the device in the 20 ms before the sample."),
    "gpu{number}.power": _state("W", "Power draw. Far below the limit: the device waits."),
    "gpu{number}.sm_clock": _state(
        "MHz",
        "Clock of the multiprocessors. Lower than at the start under the same load: power or heat limits it.",
    ),
}

_SAMPLER: Final = {
    "sampler.cpu": _grows("s", "CPU time of the sampling thread itself. Its growth over the time passed is its cost in cores."),
    "sampler.period": _state("s", "Time between two samples as it is now. Longer than asked: a sample had become too dear."),
    "sampler.processes": _state("processes", "Processes of the job that were alive at the sample."),
    "sampler.lost": _grows(
        "lines",
        "Lines that could not be written because the spool was full or gone; above 0, series have gaps.",
    ),
}

SERIES: Final[dict[str, Series]] = _HOST | _DEVICES | _SERVERS | _PROCESSES | _GPUS | _SAMPLER
"""Every series there can be, by its name; `{...}` stands for a device, an interface or a number."""


def described(name: str) -> Series | None:
    """What a series called `name` holds, e.g. `disk.vda.reads`; None for a name that ioprof does not give."""
    return SERIES.get(name) or next((series for pattern, series in _PATTERNS if pattern.fullmatch(name)), None)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(template)))


_PATTERNS: Final[tuple[tuple[re.Pattern[Any], Series], ...]] = tuple(
    (_pattern(template), series) for template, series in SERIES.items() if "{" in template
)
