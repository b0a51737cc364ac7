"""Records spans until it is killed, and says after each hundred how many it has finished.
Arguments: SPOOL native|python."""

import os
import sys
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import intern, span

if sys.argv[2] == "python":
    recorder._native = None
recorder.start(Path(sys.argv[1]))
finished = 0
while True:
    for _ in range(100):
        with span("read", step=finished, file=intern(f"/data/{finished}")) as read:
            read.bytes = finished
        finished += 1
    os.write(1, b"%d\n" % finished)
