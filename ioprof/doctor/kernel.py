"""Which of the kernel's interfaces this user can use."""

import os
import resource
from collections.abc import Callable
from typing import Final

from ioprof.doctor.finding import Finding, Surroundings, content, limited, missing, ok
from ioprof.instrument.faults import RING_BYTES, refusal
from ioprof.instrument.perf_events import RefusedError
from ioprof.storage.mounts import mount_in

# of each CPU, with the kernel's page of state
_RING_KIB: Final = (RING_BYTES + resource.getpagesize()) // 1024
_MIN_OPEN_FILES: Final = 1024
_FAST_CLOCKS: Final = (
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "timebase",
    "riscv_clocksource",
)
"""Clock sources that a process reads without a system call."""


def page_faults(
    _surroundings: Surroundings, find_refusal: Callable[[], RefusedError | None] = refusal
) -> Finding:
    """Whether the job's page faults can be recorded: opens everything that a recording opens, and
    closes it again.
    """
    refused = find_refusal()
    if refused is None:
        seen = "the kernel reports major page faults of other processes of this user"
        return ok("page faults", seen, "memory-mapped reads (LMDB) are recorded")
    means = (
        "memory-mapped reads (LMDB, np.memmap) are recorded only where ioprof's hooks run, without"
        " file and offset"
    )
    return missing("page faults", refused.seen, means, refused.to_type)


def locked_memory(surroundings: Surroundings) -> Finding:
    """Whether the buffers for page faults get their full size."""
    name = "locked memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    allowed = int(surroundings.kernel_setting("kernel.perf_event_mlock_kb") or 0)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit // 1024} KiB"
    seen = f"RLIMIT_MEMLOCK is {shown}, kernel.perf_event_mlock_kb is {allowed}"
    if (
        allowed >= _RING_KIB
        or limit == resource.RLIM_INFINITY
        or limit >= _RING_KIB * 1024 * (os.cpu_count() or 1)
    ):
        return ok(name, seen, "buffers for page faults have their full size")
    return limited(
        name,
        seen,
        "buffers for page faults are smaller: bursts of faults may be lost, and are then counted",
        "ulimit -l unlimited",
    )


def io_counters(surroundings: Surroundings) -> Finding:
    """Whether the kernel's I/O counters of a process can be compared with the recorded reads."""
    name = "proc io counters"
    try:
        text = (surroundings.proc / "self/io").read_text()
    except OSError as error:
        means = "the completeness of a recording is unknown"
        return missing(
            name,
            f"/proc/self/io: {error.strerror}",
            means,
            "a kernel built with CONFIG_TASK_IO_ACCOUNTING=y",
        )
    counters = ", ".join(line.split(":")[0] for line in text.splitlines()[:4])
    return ok(
        name,
        f"/proc/self/io shows {counters}, ...",
        "completeness is checked against the kernel's byte counters",
    )


def processes(surroundings: Surroundings) -> Finding:
    """Whether /proc shows other processes."""
    name = "other processes"
    hidden = hidepid(content(surroundings.proc / "self/mountinfo") or "")
    if hidden in ("0", "off"):
        return ok(
            name,
            "/proc shows all processes",
            "every process of the job is sampled, including those of another user",
        )
    means = (
        "processes of the job that run as another user are not sampled; the host's other users are"
        " not listed"
    )
    return limited(
        name, f"/proc is mounted with hidepid={hidden}", means, "mount -o remount,hidepid=0 /proc"
    )


def hidepid(mountinfo: str) -> str:
    """The mount option `hidepid` of /proc (man proc); 0 or "off": all processes are visible."""
    mounts = (mount_in(os.fsencode(line)) for line in mountinfo.splitlines())
    hidden = (mount.option("hidepid") for mount in mounts if mount and mount.point == "/proc")
    return next(hidden, None) or "0"


def pressure(surroundings: Surroundings) -> Finding:
    """Whether the kernel reports stall times (pressure stall information, PSI)."""
    name = "pressure"
    try:
        text = (surroundings.proc / "pressure/io").read_text()
    except OSError as error:
        means = "the host's stall times on I/O, CPU and memory are not sampled"
        return missing(
            name,
            f"/proc/pressure/io: {error.strerror}",
            means,
            "psi=1 on the kernel's command line (grubby --update-kernel=ALL --args=psi=1)",
        )
    return ok(
        name,
        f"/proc/pressure/io: {text.splitlines()[0]}",
        "the host's stall times are sampled; they do not include waits on Lustre",
    )


def block_delay(surroundings: Surroundings) -> Finding:
    """Whether the kernel reports how long each process waited for block devices (delay
    accounting).
    """
    name = "block delay"
    value = surroundings.kernel_setting("kernel.task_delayacct")
    if value == "1":
        return ok(
            name,
            "kernel.task_delayacct is 1",
            "each process's wait time for block devices is sampled",
        )
    means = (
        "wait times of processes for block devices are not sampled; the durations of reads are"
        " recorded anyway"
    )
    return limited(
        name,
        f"kernel.task_delayacct is {value or 'absent'}",
        means,
        "sysctl -w kernel.task_delayacct=1",
    )


def clock(surroundings: Surroundings) -> Finding:
    """Whether the clock can be read without a system call."""
    name = "clock"
    folder = surroundings.sys / "devices/system/clocksource/clocksource0"
    current = content(folder / "current_clocksource") or "unknown"
    if current in _FAST_CLOCKS:
        return ok(name, f"clock source {current}", "reading the time needs no system call")
    others = (content(folder / "available_clocksource") or "").split()
    fast = next((other for other in others if other in _FAST_CLOCKS), None)
    to_type = (
        f"echo {fast} > {folder / 'current_clocksource'}"
        if fast
        else "tsc=reliable on the kernel's command line"
    )
    return limited(
        name,
        f"clock source {current}",
        "every span costs two more system calls; the report shows the cost",
        to_type,
    )


def open_files(_surroundings: Surroundings) -> Finding:
    """Whether a process may open the capture files in addition to its own files."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = f"RLIMIT_NOFILE is {soft:,} of at most {hard:,}"
    if soft >= _MIN_OPEN_FILES:
        return ok(name, seen, "enough for capture files and one descriptor per CPU")
    return limited(
        name,
        seen,
        "a process near its limit may not be able to open its capture file; the report then lists"
        " it as not recorded",
        f"ulimit -n {max(hard, soft)}",
    )


def tracing(surroundings: Surroundings) -> Finding:
    """Whether other processes may be traced; ioprof does not need it."""
    scope = surroundings.kernel_setting("kernel.yama.ptrace_scope")
    return ok(
        "ptrace",
        f"kernel.yama.ptrace_scope is {scope or 'absent'}",
        "not needed: ioprof never stops or traces a process",
    )
