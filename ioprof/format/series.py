"""The sampled series of a run: names, units, and the meaning of high and low values.

A name consists of the source (`disk`, `process`, `gpu0`), the instance if there are several, and
the quantity. `{...}` in this table stands for the part that depends on the machine. Times are in
seconds and amounts in bytes, whatever unit the kernel uses. A cumulative series only grows; use its
differences. Any other series is the state at the time of the sample.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

COUNTER_FORMAT: Final = "ioprof.spool.counters/1"
"""Identifies a sample file in its first line; `ioprof.instrument.samplers.file` specifies the
format."""


@dataclass(frozen=True)
class Series:
    """Unit and meaning of the values of a series."""

    unit: str
    cumulative: bool
    meaning: str
    """What is counted, what a high value means and, if it is not just the opposite, what a low
    value means."""


def _total(unit: str, meaning: str) -> Series:
    return Series(unit, True, meaning)


def _state(unit: str, meaning: str) -> Series:
    return Series(unit, False, meaning)


_HOST: Final = {
    "cpu.user": _total(
        "s",
        "CPU time in user mode, all CPUs and all users of the host. Near CPUs × time: no core is"
        " free for more workers.",
    ),
    "cpu.system": _total(
        "s",
        "CPU time in the kernel. High with a low user time: many small reads, page faults or"
        " copies.",
    ),
    "cpu.irq": _total(
        "s", "CPU time in interrupts. High: network or NVMe completions on few cores."
    ),
    "cpu.idle": _total(
        "s", "Time in which a CPU was idle. Low: more workers would only compete with each other."
    ),
    "cpu.iowait": _total(
        "s",
        "Idle time during which a task of that CPU waited for a disk. High: storage. Low proves"
        " nothing: waits on Lustre do not count.",
    ),
    "cpu.steal": _total(
        "s",
        "Time that the hypervisor gave to other guests. High: the rates of this run depend on other"
        " guests.",
    ),
    "memory.available": _state(
        "bytes",
        "Memory that can be allocated without swapping. Low: the page cache shrinks and reads"
        " become storage reads.",
    ),
    "memory.cached": _state(
        "bytes",
        "File pages in memory. As large as the dataset: epochs after the first need no storage.",
    ),
    "memory.dirty": _state(
        "bytes",
        "Written, but not yet on storage. High: checkpoints or converters compete with reads.",
    ),
    "vm.paged_in": _total(
        "bytes",
        "Read from block devices into memory, swap included. Network file systems do not count"
        " here.",
    ),
    "vm.swapped_in": _total(
        "bytes",
        "Read back from swap. Above 0 while the job runs: memory is too small, whatever else is"
        " slow.",
    ),
    "vm.major_faults": _total(
        "faults",
        "Page faults of all processes that had to read. High: memory-mapped reads (LMDB) or"
        " swapping.",
    ),
    "pressure.io.some": _total(
        "s", "Time in which at least one task was stalled on I/O. Mostly does not include Lustre."
    ),
    "pressure.io.full": _total(
        "s",
        "Time in which no task could run because all were stalled on I/O. High: storage is the"
        " bound.",
    ),
    "pressure.cpu.some": _total(
        "s",
        "Time in which at least one runnable task had no CPU. High: too many workers or threads.",
    ),
    "pressure.memory.some": _total(
        "s",
        "Time in which at least one task was stalled on memory. High: pages are evicted and read"
        " again.",
    ),
    "pressure.memory.full": _total(
        "s", "Time in which all tasks were stalled on memory. High: thrashing."
    ),
}

_DEVICES: Final = {
    "disk.{device}.reads": _total(
        "requests",
        "Reads that the device completed. Stacked devices (dm, md, loop) count in addition to those"
        " below them: do not add.",
    ),
    "disk.{device}.read_bytes": _total(
        "bytes", "Bytes that the device delivered, readahead and other programs included."
    ),
    "disk.{device}.read_time": _total(
        "s", "Sum of the times of all reads. Its growth over that of `reads` is the mean latency."
    ),
    "disk.{device}.writes": _total("requests", "Writes that the device completed."),
    "disk.{device}.write_bytes": _total(
        "bytes", "Bytes written. High during training: checkpoints, or other users."
    ),
    "disk.{device}.in_flight": _state(
        "requests",
        "Requests in flight. Near 1: a single reader waits for one read at a time; more workers"
        " would help.",
    ),
    "disk.{device}.busy_time": _total(
        "s",
        "Time with a request in flight. Equal to the elapsed time: always busy, which for an SSD"
        " does not mean saturated.",
    ),
    "disk.{device}.queue_time": _total(
        "s",
        "Requests in flight, summed over time. Its growth over the elapsed time is the mean queue"
        " depth.",
    ),
    "network.{interface}.received_bytes": _total(
        "bytes",
        "Bytes received. `lo` is traffic within the host, such as Gloo between ranks.",
    ),
    "network.{interface}.sent_bytes": _total("bytes", "Bytes sent."),
    "infiniband.{port}.received_bytes": _total(
        "bytes",
        "Bytes received by an InfiniBand port, RDMA included: Lustre and NCCL traffic that"
        " `network` does not show.",
    ),
    "infiniband.{port}.sent_bytes": _total("bytes", "Bytes sent by an InfiniBand port."),
}

_SERVERS: Final = {
    "lustre.{file_system}.read_bytes": _total(
        "bytes",
        "Returned by read calls of this host, page-cache hits included; reads through a mapping are"
        " not.",
    ),
    "lustre.{file_system}.reads": _total(
        "calls", "Read calls of this host. Low `read_bytes` per call: reads are too small."
    ),
    "lustre.{file_system}.read_time": _total(
        "s",
        "Sum of the times of all read calls. Its growth over that of `reads` is the mean, hits"
        " included. Not before 2.14.",
    ),
    "lustre.{file_system}.opens": _total(
        "calls", "Files opened. As many as samples: one request to a metadata server for each."
    ),
    "lustre.{file_system}.open_time": _total(
        "s", "Sum of the times of all opens. High per open: the metadata servers are the bound."
    ),
    "lustre.{file_system}.page_faults": _total(
        "faults", "Faults in mapped files (LMDB). Each may be a request of one page."
    ),
    "lustre.{file_system}.page_fault_time": _total("s", "Sum of the times of these faults."),
    "lustre.{file_system}.readahead_hits": _total("pages", "Pages that a read found in the cache."),
    "lustre.{file_system}.readahead_misses": _total(
        "pages",
        "Pages that a read had to wait for. High relative to the hits: access is random, or records"
        " are too small for readahead.",
    ),
    "lustre.{file_system}.fetched_bytes": _total(
        "bytes", "Bytes that the servers sent to this host, data on metadata servers included."
    ),
    "lustre.{file_system}.fetched_bytes_least": _total(
        "bytes",
        "Lower bound of the bytes that the servers sent: requests are counted by the power of two"
        " of their pages. Used if `fetched_bytes` is not available.",
    ),
    "lustre.{file_system}.fetched_bytes_most": _total(
        "bytes", "Upper bound of the same; the last page of a file counts as whole."
    ),
    "lustre.{file_system}.read_requests": _total(
        "requests", "Read requests to servers. Many per record: pages are fetched one by one."
    ),
    "lustre.{file_system}.read_request_time": _total(
        "s", "Sum of the times of these requests: network and server."
    ),
    "lustre.{file_system}.metadata.{operation}": _total(
        "requests",
        "Requests to metadata servers; `intent_lock` is an open or a look-up, `read_page` a part of"
        " a listing.",
    ),
    "nfs.{mount}.read_bytes": _total(
        "bytes",
        "Returned by read calls, page-cache hits included; mounts of one export share counters.",
    ),
    "nfs.{mount}.fetched_bytes": _total(
        "bytes", "Bytes that the server sent for reads, readahead included."
    ),
    "nfs.{mount}.requests": _total(
        "requests",
        "All requests. Many more than `read_requests`: opens and look-ups are the bound.",
    ),
    "nfs.{mount}.retransmissions": _total(
        "requests", "Requests sent again because of a timeout. Above 0: network or server."
    ),
    "nfs.{mount}.read_requests": _total("requests", "Read requests to the server."),
    "nfs.{mount}.read_round_trip_time": _total(
        "s", "Sum of the times from sending a read request to its reply."
    ),
    "nfs.{mount}.read_request_time": _total(
        "s",
        "The same plus the time before sending. High relative to round trips: requests queue on the"
        " client; use nconnect=8.",
    ),
}

_PROCESSES: Final = {
    "process.cpu_user": _total(
        "s",
        "CPU time in user mode, all threads. Growing as fast as time: one full core, mostly"
        " decoding in a worker.",
    ),
    "process.cpu_system": _total("s", "CPU time in the kernel, all threads."),
    "process.rss": _state(
        "bytes",
        "Resident memory, including shared pages: the sum over workers counts these several times.",
    ),
    "process.private_dirty": _state(
        "bytes",
        "Memory of a forked process that it shares with no other. Growing in loader workers: pages"
        " inherited from the training process are copied as reference counts change"
        " (copy-on-write); hold the dataset's index in arrays, not Python objects.",
    ),
    "process.pss": _state(
        "bytes",
        "Memory of a forked process, each shared page divided by the number of processes that"
        " share it.",
    ),
    "process.threads": _state(
        "threads",
        "Threads. Many times the number of cores in every worker: set OMP_NUM_THREADS=1 there.",
    ),
    "process.minor_faults": _total(
        "faults",
        "Page faults without a read, all threads: memory that is used for the first time, or anew"
        " after it was freed. Thousands in each step: the allocator gives memory back.",
    ),
    "process.major_faults": _total(
        "faults", "Page faults that had to read, all threads. High: memory-mapped reads."
    ),
    "process.rchar": _total(
        "bytes",
        "Returned by read calls, cache hits and pipes included. Jumps when a child is reaped: the"
        " kernel adds the child's to it.",
    ),
    "process.syscr": _total(
        "calls", "Read calls. Low `rchar` per call: reads are too small. Includes reaped children."
    ),
    "process.read_bytes": _total(
        "bytes",
        "Submitted by this process to storage or, on Lustre and NFS, to the network. Always 0 on"
        " FUSE. Includes reaped children.",
    ),
    "process.write_bytes": _total(
        "bytes", "Bytes written to the page cache or storage. Includes reaped children."
    ),
    "process.block_delay": _total(
        "s",
        "Time that the main thread waited for block devices; only where kernel.task_delayacct=1.",
    ),
    "process.voluntary_switches": _total(
        "switches",
        "Voluntary context switches of the main thread (only that one). High: it waits often.",
    ),
    "process.involuntary_switches": _total(
        "switches",
        "Involuntary context switches of the main thread. High: more runnable threads than cores.",
    ),
    "process.run_delay": _total(
        "s",
        "Run-queue delay: time in which threads could have run but had no CPU, summed over them."
        " Its growth plus that of the CPU time, over the elapsed time, is the mean number of"
        " threads that ran or could have run. High: too few cores for them.",
    ),
    "process.main_cpu": _total(
        "s", "CPU time of the main thread, user and system, counted in nanoseconds."
    ),
    "process.main_run_delay": _total(
        "s", "Run-queue delay of the main thread. High beside its CPU time: too few cores."
    ),
    "process.cpus_allowed": _state(
        "cores",
        "CPUs that the process may use (sched_setaffinity, cpusets). Fewer than the host has:"
        " taskset, a scheduler, or a library that binds threads, whose binding workers inherit.",
    ),
}

_CGROUPS: Final = {
    "cgroup.{group}.cpu_quota": _state(
        "cores", "CPU time per elapsed time that the group may use. Below the cores: a limit."
    ),
    "cgroup.{group}.cpu_periods": _total(
        "periods", "Periods of the quota, mostly of 0.1 s, in which the group ran."
    ),
    "cgroup.{group}.cpu_throttled_periods": _total(
        "periods",
        "Those in which the quota was used up and all threads of the group stopped. High relative"
        " to all: the quota is the bound.",
    ),
    "cgroup.{group}.cpu_throttled_time": _total(
        "s", "Time that the group was stopped, summed over the CPUs that it ran on."
    ),
}

_WRITTEN_AT_THE_END: Final = {
    "process.gc_short_time": _total(
        "s",
        "Time in collections of Python's garbage collector of less than 1 ms; longer ones are"
        " spans. All threads stop for them.",
    ),
    "process.gc_short_collections": _total(
        "collections", "Number of these. High: the code makes many small containers."
    ),
}

_GPUS: Final = {
    "gpu{number}.utilisation": _state(
        "%",
        "Share of the driver's last sampling interval with a kernel running. 100 does not mean that"
        " the kernels fill the device.",
    ),
    "gpu{number}.memory_used": _state("bytes", "Device memory in use by all processes."),
    "gpu{number}.pcie_received": _state(
        "bytes/s",
        "PCIe traffic to the device in the 20 ms before the sample. Low while copies are slow:"
        " pageable memory.",
    ),
    "gpu{number}.pcie_sent": _state(
        "bytes/s", "PCIe traffic from the device in the 20 ms before the sample."
    ),
    "gpu{number}.power": _state("W", "Power draw. Far below the limit: the device is idle."),
    "gpu{number}.sm_clock": _state(
        "MHz",
        "Clock of the multiprocessors. Lower than at the start under the same load: power or heat"
        " limits it.",
    ),
}

_SAMPLER: Final = {
    "groups.own": _state(
        "groups",
        "Groups among which the scheduler shares the cores (control groups, sessions), of the job's"
        " processes since the start: those of little CPU time count less.",
    ),
    "groups.others": _state(
        "groups",
        "The same of other programs in groups without a process of the job. Above 0: more threads"
        " of the job do not get more of the cores that these want.",
    ),
    "groups.others_beside": _total(
        "s", "CPU time that other programs used in groups of the job's processes."
    ),
    "sampler.cpu": _total(
        "s",
        "CPU time of the sampling thread itself. Its growth over the elapsed time is its cost in"
        " cores.",
    ),
    "sampler.period": _state(
        "s", "Present time between two samples. Longer than requested: samples were too expensive."
    ),
    "sampler.processes": _state("processes", "Processes of the job that were alive at the sample."),
    "sampler.lost": _total(
        "lines",
        "Lines that could not be written because the spool was full or gone; above 0, series have"
        " gaps.",
    ),
}

SERIES: Final[dict[str, Series]] = (
    _HOST | _DEVICES | _SERVERS | _PROCESSES | _CGROUPS | _WRITTEN_AT_THE_END | _GPUS | _SAMPLER
)
"""All series by name; `{...}` stands for a device, an interface or a number."""


def find_series(name: str) -> Series | None:
    """The definition of a series by its full name, e.g. `disk.vda.reads`; None for unknown
    names.
    """
    return SERIES.get(name) or next(
        (series for pattern, series in _PATTERNS if pattern.fullmatch(name)), None
    )


_PATTERNS: Final[tuple[tuple[re.Pattern[Any], Series], ...]] = tuple(
    (re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(template))), series)
    for template, series in SERIES.items()
    if "{" in template
)
