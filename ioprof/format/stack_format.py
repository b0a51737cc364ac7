"""The file of stack samples in a spool: `stacks-<host>-<pid>.bin`, written by the launcher
(`native/stacks/output.c`).

It is a sequence of records, each of two uint32 (kind, bytes of the rest) and the rest; numbers are
little-endian.

    0  text     a JSON object: first {"format": "ioprof.spool.stacks/2", "host", "pid", "package"}; then
                {"target": 3, "pid": 4711, "tid": 4715, "version": "3.11.7", "time_ns": ...}, a thread that is sampled from now on
                ("tid" is left out for the main thread of that process), and {"note": "..."}, what cannot be sampled, and why
    1  code     six uint32: number, first line, then of file name and of qualified name bytes per character (1, 2 or 4) and bytes;
                then both names, then the line table of the code object (CPython, Objects/locations.md, Python 3.11 and newer)
    2  stack    a uint32: number; then per frame, innermost first, a uint32 (number of a code) and an int32 (its instruction)
    3  samples  per sample a uint64 (CLOCK_MONOTONIC, ns) and two uint32 (target, number of a stack)
    4  holder   a uint64 and four uint32: time, target, number of a stack (4294967295: it could not be read), the kernel's number of
                a thread, and 0. In the sample of that time the target's thread waited for the interpreter's lock (the GIL), which
                this thread of its process held with this stack

A code or stack stands before its first use, once. A launcher that is killed loses at most the last
second.
"""  # noqa: E501

from typing import Final

STACK_FORMAT: Final = "ioprof.spool.stacks/2"
TEXT_RECORD, CODE_RECORD, STACK_RECORD, SAMPLES_RECORD, HOLDER_RECORD = range(5)
OWN_PACKAGE: Final = "<ioprof>"
"""What stands in a stack for the folder of the ioprof that recorded the run."""
NOT_READ: Final = "<unknown>:0:unknown"
"""The frame of a stack that could not be read."""
