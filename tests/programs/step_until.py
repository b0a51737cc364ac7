"""Makes steps until FILE is there, 20 or more, each with a wait for its batch and ten reads.
Arguments: FILE. Prints how many."""

import sys
import time
from pathlib import Path

from ioprof.instrument.span import PAGE_CACHE, STORAGE, emit, intern

made, enough = 0, Path(sys.argv[1])
while made < 20 or not enough.exists():
    times = [time.monotonic_ns()]
    time.sleep(0.004)
    times.append(time.monotonic_ns())
    own = intern(f"/data/{made}")
    for place in range(10):
        emit(
            "read",
            times[0] + place,
            times[0] + place + 1,
            bytes=100,
            file=own,
            source=STORAGE if place else PAGE_CACHE,
        )
    emit("fetch", times[0], times[1] - 1, batch=made)
    emit("wait", times[0], times[1], step=made, batch=made)
    emit("step", times[0], time.monotonic_ns(), step=made)
    made += 1
print(made)
