"""The words and the bytes that all of ioprof shares: span kinds, causes, columns, and the record of a capture file.

Imports nothing but NumPy. `native/FORMAT.md` explains the bytes; a test holds the two together.
"""

from typing import Final

import numpy as np

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
FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 4096
CHUNK_BYTES: Final = 65536
CHUNK_HEADER_BYTES: Final = 64
STRING_KIND: Final = 0

RECORD_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"),  # CLOCK_MONOTONIC
        ("end_ns", "<i8"),  # CLOCK_MONOTONIC, never before start_ns
        ("bytes", "<i8"),  # -1: does not apply
        ("offset", "<i8"),  # byte offset in the file; -1: does not apply
        ("batch", "<i8"),  # number of the batch in its rank's loader, counted over epochs; -1: none
        ("step", "<i4"),  # -1: none
        ("file", "<i4"),  # id of a string of this process; -1: none
        ("name", "<i4"),  # id of a string of this process; -1: none
        ("stream", "<i2"),  # device stream (compute 0, copy 1, comm 2); -1: a host thread
        ("kind", "u1"),  # 1 + place in KINDS; 0: a string record
        ("source", "u1"),  # 1 + place in SOURCES; 0: not a read
    ]
)
"""One span, 56 bytes, little-endian because every machine that ioprof runs on is."""

CHUNK_HEADER_DTYPE: Final = np.dtype(
    [
        ("tid", "<u4"),  # the kernel's thread id of the owner
        ("flags", "<u4"),  # 0
        ("count", "<u8"),  # slots written and complete, published last
        ("reserved", "V48"),
    ]
)

FILE_HEADER_DTYPE: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("record_bytes", "<u4"),
        ("chunk_bytes", "<u4"),
        ("header_bytes", "<u4"),
        ("chunks", "<u8"),  # chunks claimed so far; those beyond the file's end were lost
        ("lost", "<u8"),  # spans that found no room
        ("pid", "<u4"),
        ("parent_pid", "<u4"),
        ("rank", "<i4"),  # -1: not a rank of the job
        ("worker", "<i4"),  # number of the loader worker in its rank; -1: none
        ("role", "<u4"),  # place in ROLES
        ("closed", "<u4"),  # 1: the process ended its recording itself; 0: it was killed, or still runs
        ("anchor_before_ns", "<i8"),  # CLOCK_MONOTONIC just before the wall clock was read
        ("anchor_wall_ns", "<i8"),  # CLOCK_REALTIME
        ("anchor_after_ns", "<i8"),  # CLOCK_MONOTONIC just after
        ("host", "S64"),
    ]
)
"""The start of a capture file; the rest of its `HEADER_BYTES` is zero."""

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
