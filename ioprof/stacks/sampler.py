"""The sampling thread: which processes and threads it samples, how often, and at what cost."""

import errno
import json
import os
import struct
import threading
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

from ioprof.clock import monotonic_ns, thread_cpu_ns
from ioprof.errors import CaptureError
from ioprof.format.schema import ROLES, WRITERS
from ioprof.format.stack_format import STACK_FORMAT, TEXT_RECORD
from ioprof.format.wire_format import FILE_HEADER, MAGIC, struct_format
from ioprof.stacks.interpreters import Interpreter, Interpreters
from ioprof.stacks.layouts import version_name
from ioprof.stacks.library import Reader, is_built, read_memory

PERIOD_S: Final = 0.02
"""Default mean time between two samples of a thread; each wait is a random one around it."""
LARGEST_COST: Final = 0.001
"""Maximum CPU use of the sampler as a share of the CPUs that it may use: with more threads the
period is longer."""
ALLOWANCE_NS: Final = 50_000_000
"""CPU time in addition: for what is read once (the code of the job, what its processes are), and
for the full rate at the start, which is all that a short job has."""
LONGEST_PERIOD_S: Final = 1.0
LARGEST_WAIT_S: Final = 10.0
"""How long `stop` waits for the thread."""

_LOOK_AFTER_NS: Final = 200_000_000
"""Time after which the spool is looked through again where something is not known yet of its
processes."""
_ROLES_AFTER_NS: Final = 1_000_000_000
"""Time after which the role of processes that are neither rank nor worker yet is read again; new
ones are noticed earlier."""
_OTHERS_EVERY: Final = 5
"""A process that is neither rank nor worker is sampled in one of so many passes,"""
_OTHERS_AFTER_NS: Final = 60_000_000_000
"""after so long: before it may become one at any time, and a short job has few samples to lose."""
_THREADS_PER_PASS: Final = 2
"""Threads of a rank besides its main one that are sampled in a pass, on average."""
_MOST_OF_RANK: Final = 64
_MOST_THREADS: Final = 256
"""Such threads of a rank, and of all ranks, that are sampled."""
_MOST_ATTEMPTS: Final = 10
"""To find the interpreter of a process, which may just be starting or forking."""
_HEADER: Final = struct.Struct(struct_format(FILE_HEADER))
_FIELDS: Final = {name: place for place, (name, _, _) in enumerate(FILE_HEADER)}
_ENDED: Final = (errno.ESRCH, errno.ENOENT)
_REFUSED: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS)


@dataclass
class _Thread:
    """A thread of a rank that is not its main one."""

    number: int
    """Among the sampled threads."""
    state: int
    """The address of its state."""
    tid: int


@dataclass
class _Target:
    """A process with a capture file of its own, which Python wrote."""

    path: Path
    pid: int
    role: str
    interpreter: Interpreter | None = None
    threads: list[_Thread] = field(default_factory=list)
    number: int = -1
    """Among the sampled threads; -1: not sampled (yet)."""
    attempts: int = 0
    attached_ns: int = 0
    """When its samples began."""
    is_rare: bool = False
    """It is sampled in one of `_OTHERS_EVERY` passes."""
    done: bool = False
    """It has ended, or cannot be read."""


class StackSampler:
    """Samples the main threads of the job's Python processes into `spool` from `start` to `stop`,
    or in a `with` block; of ranks the other threads too, less often, while there are no worker
    processes: threads of a pool may make the batches then.

    The processes are those that hooks record into the spool. Raises `CaptureError` where the
    library is not built, and `OSError` if the file cannot be created; later errors raise nothing.
    """

    def __init__(self, spool: Path, host: str, package: Path, period_s: float = PERIOD_S) -> None:
        if not is_built():
            raise CaptureError(
                "the library that reads stacks is not built: install a C compiler and reinstall"
            )
        self._spool, self._requested_s, self._period_s = spool, period_s, period_s
        self._longest_s = period_s
        self._largest_cost = LARGEST_COST * len(os.sched_getaffinity(0))
        self._descriptor = os.open(
            spool / f"stacks-{host}-{os.getpid()}.bin",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        self._host = host
        self._reader = Reader(self._descriptor)
        self._interpreters = Interpreters(read_memory)
        self._seen: set[str] = set()
        self._listed_ns = [0, 0]
        self._folder = os.fsencode(spool)
        self._live: list[_Target] = []
        self._roles_ns = 0
        self._notes: dict[str, int] = {}
        self._num_targets = self._num_processes = self._samples = self._torn = self._lost = 0
        self._pass_ns = self._look_share = 0.0
        self._cpu_ns = 0
        self._began_ns = self._ended_ns = monotonic_ns()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ioprof stacks", daemon=True)
        self._write(
            {"format": STACK_FORMAT, "host": host, "pid": os.getpid(), "package": str(package)}
        )

    def start(self) -> "StackSampler":
        """Start the thread; call it before the job is started."""
        self._began_ns = self._ended_ns = monotonic_ns()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the sampling, and write what is left."""
        self._end.set()
        self._reader.stop()
        if self._thread.ident:
            self._thread.join(LARGEST_WAIT_S)
        if not self._thread.is_alive():
            for target in self._live:
                self._finish(target)
            error, self._lost, _ = self._reader.error()
            if error:
                self._note(f"stacks are missing at the end: {os.strerror(error)}")
            self._reader.close()
            os.close(self._descriptor)

    def facts(self) -> dict[str, Any]:
        """What was sampled and what it cost, see `run_record.StackSampling`; complete after
        `stop`.
        """
        cpu_s, wall_s = self._cpu_ns / 1e9, (self._ended_ns - self._began_ns) / 1e9
        return {
            "period_s": self._requested_s,
            "longest_period_s": self._longest_s,
            "processes": self._num_processes,
            "samples": self._samples,
            "torn": self._torn,
            "lost": self._lost,
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "notes": [
                note if count == 1 else f"{note} ({count} processes)"
                for note, count in self._notes.items()
            ],
            "cost_ratio": cpu_s / wall_s if wall_s > 0 else 0.0,
        }

    def __enter__(self) -> "StackSampler":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._end.is_set():
            began_ns, before_ns = thread_cpu_ns(), self._reader.error()[2]
            self._look()
            looked_ns = thread_cpu_ns()
            until_ns = monotonic_ns() + (_ROLES_AFTER_NS if self._is_settled() else _LOOK_AFTER_NS)
            passes = self._reader.run(
                until_ns, int(self._period_s * 1e9), self._folder, self._listed_ns[1]
            )
            self._cpu_ns = thread_cpu_ns()
            last_ns, self._ended_ns = self._ended_ns, monotonic_ns()
            if passes:
                reading_ns = self._reader.error()[2] - before_ns
                pass_ns = max(0, self._cpu_ns - looked_ns - reading_ns) / passes
                self._set_period(pass_ns, (looked_ns - began_ns) / (self._ended_ns - last_ns))

    def _set_period(self, pass_ns: float, look_share: float) -> None:
        """A longer period where passes are expensive, after half of the allowance is used; looks
        take `look_share` of the time.
        """
        self._pass_ns = (7 * self._pass_ns + pass_ns) / 8 if self._pass_ns else pass_ns
        self._look_share = (
            (7 * self._look_share + look_share) / 8 if self._look_share else look_share
        )
        left = max(self._largest_cost - self._look_share, self._largest_cost / 3)
        needed_s = self._pass_ns / 1e9 / left
        beyond_ns = self._cpu_ns - self._largest_cost * (self._ended_ns - self._began_ns)
        if beyond_ns < ALLOWANCE_NS / 2:
            needed_s = 0.0
        elif beyond_ns > ALLOWANCE_NS:
            needed_s *= 2
        self._period_s = min(max(self._requested_s, needed_s), LONGEST_PERIOD_S)
        self._longest_s = max(self._longest_s, self._period_s)

    def _look(self) -> None:
        """Begin to sample processes that are new, and leave alone those that have ended."""
        self._find_processes()
        reads_roles = monotonic_ns() >= self._roles_ns
        if reads_roles:
            self._roles_ns = monotonic_ns() + _ROLES_AFTER_NS
        # which make the batches, and not threads
        has_workers = any(target.role == "worker" for target in self._live)
        for target in self._live:
            if target.role == "other" and target.number >= 0 and reads_roles:
                self._update_role(target)
            if target.number < 0:
                self._attach(target)
            elif self._reader.state(target.number).failed:
                self._finish(target)
            elif has_workers:
                self._leave_threads(target)
            elif target.role == "rank" and reads_roles:
                self._find_threads(target)
        self._live = [target for target in self._live if not target.done]

    def _is_settled(self) -> bool:
        """All processes are known and sampled, as far as the spool has any."""
        return self._listed_ns[0] == self._listed_ns[1] > 0 and all(
            target.number >= 0 for target in self._live
        )

    def _find_processes(self) -> None:
        """A listing only if the folder changed since the last look but one: a change right after a
        listing may have its time.
        """
        try:
            changed_ns = os.stat(self._spool).st_mtime_ns
            if self._listed_ns == [changed_ns, changed_ns]:
                return
            self._listed_ns = [self._listed_ns[1], changed_ns]
            names = [
                name
                for name in os.listdir(self._spool)
                if name.endswith(".ring") and name not in self._seen
            ]
        except OSError:
            return
        for name in names:
            try:
                target = _read_header(self._spool / name, self._host)
            except (OSError, struct.error):  # its header is not there yet
                self._listed_ns = [0, 0]
                continue
            self._seen.add(name)
            if target is not None:
                self._live.append(target)

    def _update_role(self, target: _Target) -> None:
        try:
            found = _read_header(target.path, self._host)
        except (OSError, struct.error):
            return
        if found:
            target.role = found.role
        is_rare = target.role == "other" and monotonic_ns() >= target.attached_ns + _OTHERS_AFTER_NS
        if is_rare != target.is_rare:
            target.is_rare = is_rare
            self._reader.set_every(target.number, _OTHERS_EVERY if is_rare else 1)

    def _attach(self, target: _Target) -> None:
        target.attempts += 1
        number = self._num_targets
        try:
            interpreter, thread = self._interpreters.find(target.pid)
            words = interpreter.layout.frames.words(interpreter.code_type)
            self._reader.add(number, target.pid, thread, words, 1)
            self._reader.watch_lock(number, interpreter.lock(target.pid, read_memory))
        except (CaptureError, OSError) as error:
            code = error.errno if isinstance(error, OSError) else None
            target.done = code in (*_ENDED, *_REFUSED) or target.attempts == _MOST_ATTEMPTS
            if code in _REFUSED:
                self._note(_refusal(code))
            elif target.done and code not in _ENDED:
                self._note(str(error))
            return
        target.number, target.attached_ns = number, monotonic_ns()
        target.interpreter = interpreter
        self._num_targets += 1
        self._num_processes += 1
        what = {
            "target": number,
            "pid": target.pid,
            "version": version_name(interpreter.version),
            "time_ns": monotonic_ns(),
        }
        self._write(what)

    def _find_threads(self, target: _Target) -> None:
        """Begin to sample the threads of a rank that are new, and leave alone those that have
        ended.
        """
        interpreter = target.interpreter
        assert interpreter is not None, "it is sampled"
        try:  # until a new thread runs, its state has the number of another one
            states = {
                (state, tid)
                for state, tid in interpreter.threads(target.pid, read_memory)
                if tid != target.pid
            }
        except OSError:
            return
        before = {(each.state, each.tid): each for each in target.threads}
        for key in before.keys() - states:
            self._remove(before[key].number)
            target.threads.remove(before[key])
        for state, tid in sorted(states - before.keys()):
            self._add_thread(target, state, tid)
        if before.keys() != states:
            for each in target.threads:
                self._reader.set_every(each.number, ceil(len(target.threads) / _THREADS_PER_PASS))

    def _leave_threads(self, target: _Target) -> None:
        """Sample no thread of a process but its main one."""
        for each in target.threads:
            self._remove(each.number)
        target.threads.clear()

    def _add_thread(self, target: _Target, state: int, tid: int) -> None:
        if (
            len(target.threads) >= _MOST_OF_RANK
            or sum(len(each.threads) for each in self._live) >= _MOST_THREADS
        ):
            return
        interpreter, number = target.interpreter, self._num_targets
        assert interpreter is not None, "it is sampled"
        words = interpreter.layout.frames.words(interpreter.code_type)
        try:
            self._reader.add(number, target.pid, state, words, 1, tid)
        except OSError:
            return
        target.threads.append(_Thread(number, state, tid))
        self._num_targets += 1
        what = {
            "target": number,
            "pid": target.pid,
            "tid": tid,
            "version": version_name(interpreter.version),
            "time_ns": monotonic_ns(),
        }
        self._write(what)

    def _finish(self, target: _Target) -> None:
        if target.number < 0 or target.done:
            return
        self._leave_threads(target)
        error = self._remove(target.number)
        target.done = True
        if error in _REFUSED:
            self._note(_refusal(error))

    def _remove(self, number: int) -> int:
        """Sample a thread no more; errno of its last failure."""
        state = self._reader.state(number)
        self._samples += state.samples
        self._torn += state.torn if state.samples else 0
        self._reader.remove(number)
        return int(state.error)

    def _note(self, text: str) -> None:
        self._notes[text] = self._notes.get(text, 0) + 1
        if self._notes[text] == 1:
            self._write({"note": text})

    def _write(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        try:
            os.write(self._descriptor, struct.pack("<II", TEXT_RECORD, len(data)) + data)
        except OSError:  # a full spool; the library notices it too
            return


def _read_header(path: Path, host: str) -> _Target | None:
    """None for a file of another host or of the capture library. Raises `struct.error` where the
    header is not there yet.
    """
    with open(path, "rb", buffering=0) as file:
        values = _HEADER.unpack(file.read(_HEADER.size))
    if values[_FIELDS["magic"]] != MAGIC:
        raise struct.error(f"{path}: no header")
    if (
        values[_FIELDS["writer"]] != WRITERS.index("spans")
        or values[_FIELDS["host"]].rstrip(b"\0") != host.encode()[:64]
    ):
        return None
    role = values[_FIELDS["role"]]
    return _Target(path, values[_FIELDS["pid"]], ROLES[role] if role < len(ROLES) else "other")


def _refusal(code: int | None) -> str:
    if code == errno.ENOSYS:
        return "stacks cannot be read: this kernel has no process_vm_readv"
    return (
        "stacks cannot be read: the kernel does not permit reading the job's memory; in a container"
        " start it with --cap-add=SYS_PTRACE, where kernel.yama.ptrace_scope is 2 or 3 type: sysctl"
        " -w kernel.yama.ptrace_scope=1, and record as the user that the job runs as"
    )
