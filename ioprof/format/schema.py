"""The words that all of ioprof shares: span kinds, causes, sources, roles, columns of the tables.

Imports nothing, since it is loaded in every process of a recorded job. `wire_format.py` describes
the bytes of a capture file.
"""

from typing import Final

RUN_SCHEMA: Final = "ioprof.run/2"
SUMMARY_SCHEMA: Final = "ioprof.summary/2"
READ_RUN_SCHEMAS: Final = ("ioprof.run/1", RUN_SCHEMA)
"""Versions of run.json that are read. Runs of version 1 have no spans of collections, samplers and
phases."""
READ_SUMMARY_SCHEMAS: Final = ("ioprof.summary/1", SUMMARY_SCHEMA)
"""Versions of summary.json that are read. Version 1 had eleven causes; `communication` was
`exchange` and `straggler` together."""
DATASET_SCHEMA: Final = "ioprof.format.dataset/1"

KINDS: Final = (
    "step", "wait", "fetch", "open", "read", "fault", "decode", "transform", "collate", "deliver",
    "h2d", "d2h", "kernel", "compute", "comm", "checkpoint", "stage", "validate", "user",
    "gc", "sampler", "phase", "sync", "request",
)  # fmt: skip
"""What a span can be. The number of a kind in a capture record is its place here plus one; 0 is a
string record.

`user` is a span that the user's own code opened with a name of its own, or ioprof's own
`CORE_WAIT`; it is shown and never charged. `gc` is a collection of Python's garbage collector,
`sampler` the time in which a loader's sampler chose the samples of a batch (its name is that of the
loader), and `phase` a part of the whole job, such as its imports. `sync` is a call of the GPU's
runtime in which a thread of the host waited for the device (its name is that of the call); it is
shown and never charged. `request` is a request of HTTP from the call that sent it to the one that
received the end of its response: `file` is the URL without its query, `bytes` those of the body,
`offset` the nanoseconds to the first byte of the response. Its name is the method and the status,
with `ENDED_EARLY` and `NEW_CONNECTION` where they apply, as in `GET 206, new connection`, or the
method and `FAILED`. It is shown and never charged: what it waited for is reads of source `socket`,
of the same file. New kinds are appended, since their places are in capture files.
"""

BATCHES_OF_SERIES: Final = 1024
"""Numbers that a loader takes at once for its batches. What it did not use is given back if no
other loader has taken the next ones meanwhile."""
BLOCK, WAKE = "block", "wake"
RECORDS_OF_WAITS: Final = {BLOCK: 64, WAKE: 65}
"""Kinds of records that are no spans, and their numbers: that a thread was blocked, and the call of
another one that can have ended it. `ingest/wakers.py` makes blocks with their wakers of both."""

OBJECTS: Final = (
    "lock", "condition", "semaphore", "futex", "channel", "room", "file lock", "process", "thread",
    "sleep", "descriptors",
)  # fmt: skip
"""What a thread can be blocked on; the number in a record is the place here plus one.

A `channel` is a pipe, a socket or an eventfd from which something is to be received, and `room` is
what its sender waits for. `process` and `thread` are waits for the end of one. `descriptors` are
those of a call of epoll of which it is not known which one ended it."""

ENDS: Final = ("woken", "time was over", "hung up", "interrupted", "reaped")
"""How a block ended; the number in a record is the place. `hung up`: the other end of a channel was
closed, by a call or because its process ended. `interrupted`: by a signal, such as that of the end
of a child. A wake that is `hung up` is such a call. One that is `reaped` is none: a process waited
for a child that had ended, whose id is the object, and whose status (man 2 wait) is in `step`."""

BY_LAUNCHER: Final = "SIGTERM"
"""The signal by which launchers end the other ranks when one has failed."""

OF_SEVERAL: Final = 1 << 62
"""In the number of an object that is not of one process alone; others are addresses."""

DENSE_KINDS: Final = (
    "open",
    "read",
    "fault",
    "decode",
    "transform",
    "collate",
    "h2d",
    "d2h",
    "kernel",
    "compute",
    "sync",
    "request",
)
"""Kinds of which a run may have any number: they are read in pieces. Of the others there are a few
per step or batch, and all are held in memory."""

CAUSES: Final = (
    "compute", "exchange", "straggler", "h2d", "storage", "page_cache", "decode", "transform",
    "collate", "delivery", "loader", "validation", "checkpoint", "gc", "host",
)  # fmt: skip
"""What a step's time can be charged to, in the order in which every report shows them."""

SOURCES: Final = ("storage", "page_cache", "unknown", "socket", "pipe")
"""Where the bytes of a read came from. The number in a capture record is the place here plus one; 0
is "not a read".

`socket` and `pipe` are bytes that another process sent; the file of such a read is its peer."""

READAHEAD: Final = "readahead"
"""Name of a `fault` span without a sample of its own: bytes that were fetched beyond the value that
was asked for; or one byte, which stands for a wait for bytes that another span has."""
READAHEAD_ENDED: Final = "readahead ended"
"""Name of a `fault` span without bytes: a process of the built-in job switched readahead off."""

BASES: Final = ("measured", "derived", "emulated", "predicted", "unknown")
"""How a number came to be. Every number in a report is one of these, and says which."""

ROLES: Final = ("rank", "worker", "other")
"""What a recorded process is to the job: a training rank, a worker of its data loader, or something
else."""

# ------------------------------------------------------------------------------------ capture files

WRITERS: Final = ("spans", "capture library")
"""Which component wrote a capture file: the process's own spans, or the preloaded library that sees
its reads."""

RANK_SOURCES: Final = (None, "torch", "mpi", "pmi", "scheduler")
"""From whose environment variable a process took its rank, best first; a scheduler also numbers
processes that are no ranks."""

PYTHON_PROGRAM: Final = "python program"
NOTED: Final = (
    "io_uring",
    "libaio",
    "raw system calls",
    "exec without capture",
    "stdio of unknown size",
    PYTHON_PROGRAM,
)
"""Bits of a capture file's `noted`, from the lowest: I/O that the library detected but cannot
record. `PYTHON_PROGRAM`: an interpreter of Python is in the program; a reader reports it where the
process left no spans of the Python hooks."""

NOT_FOLLOWED: Final = ("setuid program", "32-bit program", "static program", "launcher")
"""Names of `open` spans of a program that the job started and that the capture library cannot be
loaded into. A `launcher`, such as sudo or docker, has another process start its command."""

BY_MODE: Final = "evaluation mode"
"""Name of `validate` spans of forward passes in that mode, where nothing else says that the model
was evaluated."""
COLLECTED_AT: Final = "gc.collect() at "
"""How names of `gc` spans begin that the program asked for; a file's name and a line follow."""
WINDOW_SPAN: Final = "ioprof: gpu window"
"""Name of the spans of kind `user` during which recording a GPU blocked the job."""
NEW_CONNECTION: Final = ", new connection"
ENDED_EARLY: Final = ", ended early"
FAILED: Final = " failed"
"""How names of `request` spans end: it was the first one of its connection; the connection was
closed before the end of the response; it was closed before the response began."""
FLUSH: Final = "flush by "
"""How names of `user` spans begin in which a thread waited until what was written is on storage;
the call and the file follow, as in `flush by fsync of /logs/metrics.db`."""
OPEN_TO_WRITE, WRITE, RENAME = "open to write", "write", "rename"
"""Names of `user` spans of calls that made a file, emptied it, or opened it for writing only; of
those that wrote 4 kB or more to a file within 10 us or more, with the bytes; and of those that gave
a file its name, with the new one."""
SENT: Final = "batch"
"""Name of `deliver` spans without length: what a worker sends with a batch, in `bytes`, and what
its tensors have, in `offset`."""
RETURNED: Final = "returned"
"""Name of `deliver` spans without length: what a dataset returned for a batch, in `bytes`. Not of
all batches, and of none with objects whose size is not known."""
TOKENS: Final = "tokens"
"""Name of `deliver` spans without length: the tokens of a batch that are no padding, in `bytes`
(null: not known), and its positions, in `offset`. Not of all batches."""
LONGEST: Final = "longest"
"""Name of `deliver` spans without length, of batches whose `TOKENS` are known by a mask: the
positions that they would have if they were as wide as their longest sample, in `bytes`."""
TASK_ARGUMENTS: Final = "arguments of a task"
"""Name of `decode` spans of workers of a pool: receiving a task and making objects of its bytes."""
OPERATOR: Final = "DALI "
"""With which names of operators of DALI begin, in spans `decode`, `transform` and `collate`."""
COMPILATION: Final = "compilation (torch.compile)"
"""Name of the `user` spans of what torch's compiler took."""
CORE_WAIT: Final = "waiting for a core"
"""Name of `user` spans of ioprof: the thread of the steps could have run, but other threads had the
cores. They end where the time between two computations, or before a wait, ends: their length is
measured, their place in it is not known."""

# -------------------------------------------------------------------------------------- run folders

SPAN_COLUMNS: Final = {
    "start_ns": "int64",  # nanoseconds since the run's own zero (the earliest span), on one clock
    "end_ns": "int64",
    "kind": "kind",
    "host": "category",
    "rank": "int32",
    "pid": "int32",
    "tid": "int32",
    "stream": "int32",
    "step": "int64",
    "batch": "int64",
    "bytes": "int64",
    "file": "int64",
    # of a read, where in the file; of a `fetch`, how many samples the batch has; of a `request`,
    # nanoseconds to the first byte of its response; of `SENT` and `TOKENS`, see there
    "offset": ("int64"),
    "source": "source",
    "name": "category",
}
"""Columns of spans.parquet, in order. All but the first three may be null, which means "does not
apply"."""

FILE_COLUMNS: Final = {
    "file": "int64",
    "path": "string",
    "size_bytes": "int64",
    "file_system": "string",
    "device": "string",
    "stripe_count": "int64",
    "layout": "string",
}
"""Columns of files.parquet, in order; `file` is the id that spans use."""

COUNTER_COLUMNS: Final = {
    "time_ns": "int64",
    "host": "category",
    "rank": "int32",
    "pid": "int32",
    "name": "category",
    "value": "float64",
    "unit": "category",
}
"""Columns of counters.parquet, in order: sampled series."""

BLOCK_COLUMNS: Final = {
    "start_ns": "int64",
    "end_ns": "int64",
    "host": "category",
    "rank": "int32",
    "pid": "int32",
    "tid": "int32",
    "object": "object",
    "id": "int64",
    "timed_out": "bool",
    "waker_pid": "int32",
    "waker_tid": "int32",
    "woken_ns": "int64",
}
"""Columns of blocks.parquet, in order: a thread was blocked on an object for 20 µs or more, and who
ended that.

`id` tells objects of a kind apart, within a process or, with `OF_SEVERAL`, everywhere. `timed_out`:
the time that the thread itself had given was over. `woken_ns`: when the waker made the call that
ended it. The last three are null where no waker is known."""

STACK_COLUMNS: Final = {
    "time_ns": "int64",
    "host": "category",
    "rank": "int32",
    "pid": "int32",
    "tid": "int32",
    "role": "category",
    "stack": "category",
}
"""Columns of stacks.parquet, in order: one sample of the Python stack of a thread per row.

`stack` has a line `file:line:function` per frame, outermost first; frames of the ioprof that
recorded have a file that begins with `<ioprof>`. Main threads are sampled, and less often other
threads of ranks (`tid` is not `pid`) while no worker processes make the batches. A sample whose
first frame is `<thread>:0:NAME` is of a thread that held the interpreter lock (GIL) while the main
thread waited for it, in the sample of the same time.
"""
HOLDER: Final = "<thread>"
"""The file of the first frame of such a sample."""
