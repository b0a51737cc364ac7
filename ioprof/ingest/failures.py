"""How the processes of a job failed, in the order of time: the cause before what followed from it.

A process that waits for a child sees with which code or signal it ended, whatever launcher it is;
the capture library records that (`ENDS` has it as `reaped`), and of a process that ends by itself
when that was.
"""

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy.typing as npt

from ioprof.format.run_record import Failure, FailureCode, HostRecord, ProcessRecord
from ioprof.format.schema import BY_LAUNCHER, ENDS, OBJECTS

_MOST: Final = 8
"""Workers that are named: a job that is killed as a whole loses all of them, and more say nothing
more."""
_SEEN_LATE_NS: Final = 200_000_000
"""How long after the end of a process whoever waits for it may see that: torchrun looks every
0.1 s, and peers whose connection broke may have ended before."""
_FOR_MEMORY: Final = "SIGKILL"

_Array = npt.NDArray[Any]


@dataclass
class Ends:
    """What the capture file of a process says of ends of processes; times are those of the host."""

    own_ns: int | None = None
    """When it began to end. None: it was killed, or the library was not there."""
    children: list[tuple[int, int, int]] = field(default_factory=list)
    """Process id, when its end was seen, and status (man 2 wait) of each child that it waited
    for."""

    def add(self, waits: _Array) -> _Array:
        """Take the ends from records of waits; the other ones are returned."""
        is_reaped: _Array = waits["bytes"] == ENDS.index("reaped")
        is_exit = (waits["source"] == OBJECTS.index("process") + 1) & (
            waits["bytes"] == ENDS.index("hung up")
        )
        if is_exit.any():
            self.own_ns = int(waits["start_ns"][is_exit].max())
        for record in waits[is_reaped]:
            self.children.append(
                (int(record["offset"]), int(record["start_ns"]), int(record["step"]))
            )
        others: _Array = ~is_reaped
        return others


_Key = tuple[str | None, int | None]  # host and pid


def failures_of(
    processes: Sequence[ProcessRecord],
    ends: dict[_Key, Ends],
    known: Sequence[Failure],
    hosts: Iterable[HostRecord],
) -> tuple[Failure, ...]:
    """The failures of ranks and workers, and those that are `known` of the command, by time. The
    times of `ends` are those of the run.
    """
    for_memory = {host.name: host.killed_for_memory for host in hosts if host.killed_for_memory}
    by_key: dict[_Key, ProcessRecord] = {(each.host, each.pid): each for each in processes}
    found = [*_of_ranks(by_key, ends), *_killed_workers(processes)]
    reported = {failure.pid for failure in found}
    for failure in known:
        own = next((each for each in processes if each.pid == failure.pid), None)
        is_rank = own is not None and own.role == "rank" and failure.pid not in reported
        found.append(failure.replace(rank=own.rank) if own and is_rank else failure)
    with_memory = (_with_memory(failure, by_key, for_memory) for failure in found)
    return tuple(sorted(with_memory, key=began_ns))


def _of_ranks(by_key: dict[_Key, ProcessRecord], ends: dict[_Key, Ends]) -> Iterable[Failure]:
    """One for each rank whose parent saw that it failed."""
    for (host, _), seen in ends.items():
        for pid, seen_ns, status in seen.children:
            process, parent = by_key.get((host, pid)), None
            if process is not None:
                parent = by_key.get((host, process.parent_pid))
            if process is None or process.rank is None or process.role == "worker" or not status:
                continue
            if parent is not None and parent.rank == process.rank:
                continue  # a program that a rank runs
            own_ns = ends[host, pid].own_ns if (host, pid) in ends else None
            if os.WIFSIGNALED(status):
                name = _name_of(os.WTERMSIG(status))
                what, code, ended_ns = f"was killed by {name}", FailureCode.KILLED, seen_ns
            else:
                name, code, ended_ns = None, FailureCode.ERROR, own_ns or seen_ns
                what = f"exited with {os.WEXITSTATUS(status)}"
            yield Failure(process.rank, what, code, name, ended_ns, pid)


def _name_of(number: int) -> str:
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"


def _with_memory(
    failure: Failure, by_key: dict[_Key, ProcessRecord], for_memory: dict[str | None, int]
) -> Failure:
    host = next((host for host, pid in by_key if pid == failure.pid), None)
    number = for_memory.get(host, next(iter(for_memory.values()), 0) if host is None else 0)
    if failure.signal != _FOR_MEMORY or not number:
        return failure
    processes = "a process" if number == 1 else f"{number} processes"
    why = f"the kernel killed {processes} of its host for lack of memory meanwhile"
    return failure.replace(what=f"{failure.what}; {why}")


def began_ns(failure: Failure) -> tuple[int, int]:
    """Sort key: the time of the failure; one without a time comes last.

    A kill is seen late, and comes before what its peers did in that time. The signal by which a
    launcher ends the others is none.
    """
    if failure.time_ns is None:
        return (1 << 63, 0)
    is_kill = failure.signal not in (None, BY_LAUNCHER)
    return (
        failure.time_ns - _SEEN_LATE_NS * is_kill,
        failure.rank if failure.rank is not None else 1 << 31,
    )


def _killed_workers(processes: Sequence[ProcessRecord]) -> Iterable[Failure]:
    """A failure for each worker that was killed within a batch, the first ones."""
    killed = [
        process
        for process in processes
        if process.role == "worker" and process.killed_in_batch is not None
    ]
    for process in killed[:_MOST]:
        yield Failure(
            rank=process.rank,
            what=(
                f"worker {process.worker} (pid {process.pid}) was killed while it made batch"
                f" {process.killed_in_batch}"
            ),
            code=FailureCode.KILLED,
            time_ns=process.last_ns,
            pid=process.pid,
        )
