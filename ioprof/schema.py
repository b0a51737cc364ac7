"""The words and numbers that all of ioprof shares: span kinds, causes, columns, sizes of a capture file.

Imports nothing, since it is loaded in every process of somebody's job; what NumPy makes of the bytes stands in `layout.py`.
"""

from typing import Final

RUN_SCHEMA: Final = "ioprof.run/1"
SUMMARY_SCHEMA: Final = "ioprof.summary/1"
DATASET_SCHEMA: Final = "ioprof.dataset/1"

KINDS: Final = (
    "step", "wait", "fetch", "open", "read", "fault", "decode", "transform", "collate", "deliver",
    "h2d", "d2h", "kernel", "compute", "comm", "checkpoint", "stage", "validate", "user",
)  # fmt: skip
"""What a span can be. The number of a kind in a capture record is its place here plus one; 0 is a string record.

`user` is a span that the user's own code opened with a name of its own; it is shown and never charged.
"""

CAUSES: Final = (
    "compute", "communication", "h2d", "storage", "page_cache",
    "decode", "transform", "collate", "delivery", "loader", "host",
)  # fmt: skip
"""What a step's time can be charged to, in the order in which every report shows them."""

SOURCES: Final = ("storage", "page_cache", "unknown")
"""Where the bytes of a read came from. The number in a capture record is the place here plus one; 0 is "not a read"."""

BASES: Final = ("measured", "derived", "emulated", "predicted", "unknown")
"""How a number came to be. Every number in a report is one of these, and says which."""

ROLES: Final = ("rank", "worker", "other")
"""What a recorded process is to the job: a training rank, a worker of its data loader, or something else."""

# ------------------------------------------------------------------------------------------------ capture files

MAGIC: Final = b"IOPROFR1"
FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 4096
CHUNK_BYTES: Final = 65536
CHUNK_HEADER_BYTES: Final = 64
STRING_KIND: Final = 0

RECORD_BYTES: Final = 56
STRING_BYTES: Final = 4352
"""No string of a capture file is longer."""

WRITERS: Final = ("spans", "capture library")
"""Who wrote a capture file: the process's own spans, or the preloaded library that sees its reads."""

RANK_SOURCES: Final = (None, "torch", "mpi", "pmi", "scheduler")
"""Whose environment gave a process its rank, best first; a scheduler also numbers processes that are no ranks."""

NOTED: Final = ("io_uring", "libaio", "raw system calls", "exec without capture", "stdio of unknown size")
"""Bits of a capture file's `noted`, from the lowest: what the library noticed but cannot see."""

# ------------------------------------------------------------------------------------------------ run folders

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
    "offset": "int64",
    "source": "source",
    "name": "category",
}
"""Columns of spans.parquet, in order. All but the first three may be null, which means "does not apply"."""

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
