"""Forks again and again while threads record. Every child tries to record, then starts a recording
of its own.

Arguments: SPOOL native|python CHILDREN; prints how many spans the parent made, and what each
child's start gave.
"""

import os
import sys
import threading
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import intern, span

spool, num_children = Path(sys.argv[1]), int(sys.argv[3])
if sys.argv[2] == "python":
    recorder._native = None
ended = threading.Event()
made = [0, 0, 0]


def record(thread: int) -> None:
    """Spans of batch 0 until the forks are over."""
    while not ended.is_set():
        with span("read", batch=0, file=intern(f"/{thread}/{made[thread] % 100}")):
            made[thread] += 1


def child(number: int) -> None:
    """A span that must go nowhere, then one that must go to a file of this process."""
    with span("fetch", batch=-2):
        assert not recorder.is_recording()
        assert intern("/nowhere") == -1
    recorder.start(spool, worker=number)
    with span("decode", batch=number + 1, file=intern("/child")):
        pass
    recorder.stop()


recorder.start(spool)
threads = [threading.Thread(target=record, args=(number,)) for number in range(len(made))]
for thread in threads:
    thread.start()
open_span = span("wait", batch=-2)
for number in range(num_children):
    with open_span:  # begins in the parent and would end in both
        pid = os.fork()
        if pid == 0:
            try:
                open_span.__exit__(None, None, None)
                child(number)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0, "the child failed"
ended.set()
for thread in threads:
    thread.join()
recorder.stop()
print(sum(made))
