"""A process that stores what a long job recorded, started while the job runs.

When the job has ended it has loaded its libraries, and its memory is gone before the analysis
begins in the process that records. It is started `_AFTER_S` after the job, if there is much to
store by then: loading takes some 0.6 s of CPU time, which is at most 1 % of one core, and only when
a core is idle.

It reads one line, the description of what to store. It ends when the pipe that this line came from
closes, so it does not outlive the process that records, and it is in a session of its own, so that
Ctrl-C does not reach it. Where it fails for any reason, the process that records stores the run
itself.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ioprof.format.run_record import RunRecord
from ioprof.process import own_python, return_freed_memory, yield_cores
from ioprof.recording.run_folder import RUN_FILES

_AFTER_S: Final = 60.0
_LOOK_S: Final = 10.0
_LEAST_BYTES: Final = 32 << 20
"""Of capture files: some 500,000 spans, which are stored in half a second."""
PROGRAM: Final = "ioprof.recording.storing_process"


class StoringProcess:
    """The process, from the side of the one that records."""

    def __init__(self, after_s: float = _AFTER_S, least_bytes: int = _LEAST_BYTES) -> None:
        self._after_s, self._least_bytes = after_s, least_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    @contextmanager
    def starting(self, spool: Path) -> Iterator[None]:
        """Start the process during the block, if that lasts and capture files in `spool` become
        large.

        Page faults of what the calling thread starts in the block may be recorded: a thread from
        before it starts the process.
        """
        thread = threading.Thread(
            target=self._start_when_worthwhile, args=(spool,), name="ioprof-storing", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _start_when_worthwhile(self, spool: Path) -> None:
        wait_s = self._after_s
        while not self._ended.wait(wait_s):
            if _recorded_bytes(spool) >= self._least_bytes:
                with suppress(OSError, ValueError):  # without memory for it, for example
                    self._process = subprocess.Popen(
                        [*own_python(), "-m", PROGRAM],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                return
            wait_s = _LOOK_S

    @property
    def pid(self) -> int | None:
        """None: it was not started, or has ended."""
        return None if self._process is None else self._process.pid

    def store(self, spool: Path, out: Path, record: RunRecord) -> bytes | None:
        """Have the process do what `stored_run.store_run` does; what it knows of the spans in the
        end. The process is gone then.

        None: there is no such process, or it failed and left nothing in `out`.
        """
        if (process := self._process) is None:
            return None
        assert process.stdin is not None, "it has a pipe"
        assert process.stdout is not None, "it has a pipe"
        order = {"spool": str(spool), "out": str(out.resolve()), "run": record.to_dict()}
        known = b""
        try:
            with suppress(OSError):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
                known = process.stdout.read()
                process.wait()
        finally:
            has_stored = process.poll() == 0 and bool(known)
            self.close()
            if not has_stored:
                for name in (
                    *RUN_FILES,
                    *(path.name for path in out.glob(f".*.{process.pid}.tmp")),
                ):
                    (out / name).unlink(missing_ok=True)
        return known if has_stored else None

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError), self._process:  # waits for its end
                pass
            self._process = None


def _recorded_bytes(spool: Path) -> int:
    """On disk: what was dropped from a capture file left holes in it."""
    found = 0
    for path in spool.glob("*.ring"):
        with suppress(OSError):
            found += path.stat().st_blocks * 512
    return found


def main() -> None:
    """What the process does."""
    return_freed_memory(os.environ)
    loading = threading.Thread(target=_load)
    loading.start()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(1)  # whoever records has ended
    threading.Thread(target=_end_with_recorder, daemon=True).start()
    loading.join()
    from ioprof.recording.stored_run import store_run

    order = json.loads(line)
    trace = store_run(Path(order["spool"]), Path(order["out"]), RunRecord.of(order["run"]))
    sys.stdout.buffer.write(trace.known_of_spans())
    sys.stdout.buffer.flush()
    os._exit(0)  # nothing is left to do, and the recorder waits


def _load() -> None:
    """Load the libraries, in a thread, since a thread that yielded its core may not be allowed to
    take that back.
    """
    yield_cores()
    import ioprof.recording.stored_run  # noqa: F401


def _end_with_recorder() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
