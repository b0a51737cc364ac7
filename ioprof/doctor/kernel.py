"""What the kernel lets this user see."""

import os
import resource
from typing import Final

from ioprof.doctor.finding import Finding, Surroundings, content, limited, missing, ok
from ioprof.record.faults import RING_BYTES, refusal

_RING_KIB: Final = (RING_BYTES + resource.getpagesize()) // 1024  # of each CPU, with the kernel's page of state
_FEWEST_FILES: Final = 1024
_FAST_CLOCKS: Final = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase", "riscv_clocksource")
"""Clock sources that a process reads without a system call."""


def page_faults(_surroundings: Surroundings) -> Finding:
    """Whether the kernel tells us of the job's page faults: all that a recording opens is opened, and closed again."""
    refused = refusal()
    if refused is None:
        seen = "the kernel tells of major page faults of other processes of this user"
        return ok("page faults", seen, "memory-mapped reads (LMDB) are seen")
    means = "memory-mapped reads (LMDB, np.memmap) are seen only where ioprof's hooks run, without file and offset"
    return missing("page faults", refused.seen, means, refused.to_type)


def locked_memory(surroundings: Surroundings) -> Finding:
    """Whether the buffers for page faults get their full size."""
    name = "locked memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    allowed = int(surroundings.kernel_setting("kernel.perf_event_mlock_kb") or 0)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit // 1024} KiB"
    seen = f"RLIMIT_MEMLOCK is {shown}, kernel.perf_event_mlock_kb is {allowed}"
    if allowed >= _RING_KIB or limit == resource.RLIM_INFINITY or limit >= _RING_KIB * 1024 * (os.cpu_count() or 1):
        return ok(name, seen, "buffers for page faults have their full size")
    return limited(
        name, seen, "buffers for page faults are smaller: bursts of faults may be lost, and are then counted", "ulimit -l unlimited"
    )


def process_books(surroundings: Surroundings) -> Finding:
    """Whether the kernel's own count of a process's reads can be compared with ours."""
    name = "process books"
    try:
        text = (surroundings.proc / "self/io").read_text()
    except OSError as error:
        means = "how complete a recording is cannot be said"
        return missing(name, f"/proc/self/io: {error.strerror}", means, "a kernel built with CONFIG_TASK_IO_ACCOUNTING=y")
    counters = ", ".join(line.split(":")[0] for line in text.splitlines()[:4])
    return ok(name, f"/proc/self/io shows {counters}, ...", "completeness is checked against the kernel's count of bytes")


def processes(surroundings: Surroundings) -> Finding:
    """Whether /proc shows other processes."""
    name = "other processes"
    hidden = hidepid(content(surroundings.proc / "self/mountinfo") or "")
    if hidden in ("0", "off"):
        return ok(name, "/proc shows all processes", "every process of the job is sampled, also those of another user")
    means = "processes of the job that run as another user are not sampled; a host's other users are not named"
    return limited(name, f"/proc is mounted with hidepid={hidden}", means, "mount -o remount,hidepid=0 /proc")


def hidepid(mountinfo: str) -> str:
    """The option `hidepid` of /proc (man proc): 0 or "off" shows everything."""
    for line in mountinfo.splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[4] == "/proc":
            options = ",".join((fields[5], fields[-1])).split(",")
            return next((option.split("=")[1] for option in options if option.startswith("hidepid=")), "0")
    return "0"


def pressure(surroundings: Surroundings) -> Finding:
    """Whether the kernel says how long tasks were stalled."""
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
        name, f"/proc/pressure/io: {text.splitlines()[0]}", "the host's stall times are sampled; waits on Lustre do not count there"
    )


def block_delay(surroundings: Surroundings) -> Finding:
    """Whether the kernel says how long each process waited for block devices."""
    name = "block delay"
    value = surroundings.kernel_setting("kernel.task_delayacct")
    if value == "1":
        return ok(name, "kernel.task_delayacct is 1", "time that each process waited for block devices is sampled")
    means = "time that processes waited for block devices is not sampled; reads themselves are timed all the same"
    return limited(name, f"kernel.task_delayacct is {value or 'absent'}", means, "sysctl -w kernel.task_delayacct=1")


def clock(surroundings: Surroundings) -> Finding:
    """Whether reading the time is cheap."""
    name = "clock"
    folder = surroundings.sys / "devices/system/clocksource/clocksource0"
    current = content(folder / "current_clocksource") or "unknown"
    if current in _FAST_CLOCKS:
        return ok(name, f"clock source {current}", "reading the time needs no system call")
    others = (content(folder / "available_clocksource") or "").split()
    fast = next((other for other in others if other in _FAST_CLOCKS), None)
    to_type = f"echo {fast} > {folder / 'current_clocksource'}" if fast else "tsc=reliable on the kernel's command line"
    return limited(name, f"clock source {current}", "every span costs two system calls more; the report shows the cost", to_type)


def open_files(_surroundings: Surroundings) -> Finding:
    """Whether a process can hold the capture files beside its own."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = f"RLIMIT_NOFILE is {soft:,} of at most {hard:,}"
    if soft >= _FEWEST_FILES:
        return ok(name, seen, "capture files and one descriptor per CPU find room")
    return limited(
        name,
        seen,
        "a process near its limit may not get its capture file, and is then named as not seen",
        f"ulimit -n {max(hard, soft)}",
    )


def tracing(surroundings: Surroundings) -> Finding:
    """Whether other processes may be traced: nothing of ioprof needs it."""
    scope = surroundings.kernel_setting("kernel.yama.ptrace_scope")
    return ok("ptrace", f"kernel.yama.ptrace_scope is {scope or 'absent'}", "not needed: ioprof never stops or traces a process")
