"""A copy of the process that records, made before the job starts: it loads what the analysis needs
while the job runs, so that the answer of a short job does not wait for that.

Loading takes 0.7 s of CPU time. It is done only when a core is idle, and takes 100 MB: after
`_LONGEST_S` the copy ends, and the analysis of a longer job loads its libraries after the job, as
it does if anything fails here, or if no core was idle and the copy may not be given one: the answer
never waits for a thread that yields to every other program.
"""

import mmap
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ioprof.format.run_record import RunRecord
from ioprof.process import Fork, yield_cores

_LONGEST_S: Final = 60.0
_BEGIN_S: Final = 0.3
"""After the start, when a job has loaded its first libraries from the disk."""
_LENGTH_BYTES: Final = 8
_OF_THE_JOB: Final = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM,
)  # fmt: skip
"""Signals that end the job, sent to its whole process group maybe."""


class LoadedEarly:
    """The copy, from the side of the process that records. It makes the run of the record that it
    is given by `function`, whose result is its exit code.
    """

    def __init__(self, function: Callable[[RunRecord], int], close: Callable[[], None]) -> None:
        reading, self._writing = os.pipe()
        self._is_loading = is_loading = mmap.mmap(-1, 1)  # of both processes

        def wait_and_make() -> int:
            os.close(self._writing)
            close()
            return _wait_and_make(reading, is_loading, function)

        try:
            self._process: Fork | None = Fork(wait_and_make)
        except OSError:  # no process, or no memory for one
            self._process = None
        os.close(reading)

    @property
    def pid(self) -> int | None:
        """None: it is not there, or not there any more."""
        return None if self._process is None else self._process.pid

    def make(self, record: RunRecord) -> Fork | None:
        """Have it make the run; the process to wait for. None: it is not there any more."""
        process, data = self._process, pickle.dumps(record.to_dict())
        if process is None:
            return None
        if self._is_loading[0] and not _take_cores_back(process.pid):
            with suppress(OSError):
                process.send_signal(signal.SIGKILL)  # `close` waits for its end
            return None
        self._process = None
        try:
            with open(self._writing, "wb") as pipe:
                pipe.write(len(data).to_bytes(_LENGTH_BYTES) + data)
        except OSError:  # it has ended
            process.wait()
            return None
        return process

    def close(self) -> None:
        """End it, if it was not given a record."""
        if self._process is not None:
            with suppress(OSError):
                os.close(self._writing)
            with suppress(OSError):
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            self._process = None


def _take_cores_back(pid: int) -> bool:
    """Give the threads of a process the priority of this one; False: that is not allowed."""
    try:
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            os.sched_setscheduler(thread, os.sched_getscheduler(0), os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0))
    except OSError:
        return False
    return True


def _wait_and_make(
    reading: int, is_loading: mmap.mmap, function: Callable[[RunRecord], int]
) -> int:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _OF_THE_JOB}
    if not select.select([reading], [], [], _BEGIN_S)[0]:
        # in a thread, since one that yielded its core may not be allowed to take that back
        threading.Thread(target=_load, args=(is_loading,), daemon=True).start()
        if not select.select([reading], [], [], _LONGEST_S)[0]:
            return 1
    with open(reading, "rb") as pipe:
        data = pipe.read()
    length, content = int.from_bytes(data[:_LENGTH_BYTES]), data[_LENGTH_BYTES:]
    if not length or len(content) != length:
        return 1  # whoever records has ended
    for number, handler in before.items():
        signal.signal(number, handler)
    return function(RunRecord.of(pickle.loads(content)))  # noqa: S301  # of its parent


def _load(is_loading: mmap.mmap) -> None:
    is_loading[0] = 1
    yield_cores()
    _load_libraries()
    is_loading[0] = 0


def _load_libraries() -> None:
    import ioprof.recording.run_writer
    import ioprof.report.texts.brief  # noqa: F401
