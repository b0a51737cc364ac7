"""The bytes of a capture file as NumPy sees them. `native/FORMAT.md` explains them; a test holds the two together."""

from typing import Final

import numpy as np

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
        ("state", "<u8"),  # slots written and complete, published last; from bit 32 on: how often this home was emptied
        ("origin", "<u8"),  # 1 + place of the home that this is, or is a copy of; 0: never copied
        ("calls", "<u8"),  # of a home: read calls that its threads were seen to make, of any descriptor
        ("bytes", "<u8"),  # and what they moved
        ("short_calls", "<u8"),  # of a home: calls that were timed, but are no spans of their own
        ("short_ns", "<u8"),
        ("reserved", "V8"),
    ]
)
"""The start of a chunk; a *home* is a chunk that a thread fills, and that is copied to the file's end when it is full."""

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
        ("writer", "<u4"),  # place in WRITERS
        ("rank_source", "<u4"),  # place in RANK_SOURCES
        ("noted", "<u8"),  # bits of NOTED
        ("io_time_ns", "<i8"),  # when the kernel's books were last compared with ours; 0: never
        ("io_rchar", "<u8"),  # /proc/self/io, since recording began
        ("io_syscr", "<u8"),
        ("io_read_bytes", "<u8"),
        ("seen_bytes", "<u8"),  # the sums of all homes' `bytes` and `calls` then
        ("seen_calls", "<u8"),
    ]
)
"""The start of a capture file; the rest of its `HEADER_BYTES` is zero."""
