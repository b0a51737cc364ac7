"""Threads that record. Arguments: SPOOL native|python THREADS SPANS AT_ONCE; prints the thread ids
in the order of their step."""

import sys
import threading
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import span


def record(number: int, spans: int) -> None:
    """Spans whose step is the number of the thread."""
    tids[number] = threading.get_native_id()
    for place in range(spans):
        with span("decode", step=number, batch=place):
            pass


num_threads, num_spans, at_once = map(int, sys.argv[3:])
tids = [0] * num_threads
if sys.argv[2] == "python":
    recorder._native = None
recorder.start(Path(sys.argv[1]))
for first in range(0, num_threads, at_once):
    group = [
        threading.Thread(target=record, args=(number, num_spans))
        for number in range(first, first + at_once)
    ]
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
recorder.stop()
print(*tids)
