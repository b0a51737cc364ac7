"""Records until the file system, or the limit on file sizes, has no room, then goes on. Arguments:
SPOOL native|python SPANS LIMIT.

LIMIT is the largest size of a file in bytes, or -1. SIGXFSZ has its default, deadly, meaning.
Prints the spans that were lost.
"""

import resource
import signal
import sys
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import intern, span

if int(sys.argv[4]) >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
if sys.argv[2] == "native":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
if sys.argv[2] == "python":
    recorder._native = None
recorder.start(Path(sys.argv[1]))
for place in range(int(sys.argv[3])):
    with span("decode", step=place):
        pass
assert intern("x" * 4000) == -1
print(recorder.lost() - 1)
