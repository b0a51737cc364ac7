"""Files that other programs of the job read and send through pipes, as `cat` does for
`pipe:cat shard.tar` of webdataset.

A pipe has the name of its writer, with the process id (native/CAPTURE.md, "Sockets and pipes"); the
reads of that process are recorded as those of any other.
"""

import re
from typing import Final

import polars as pl

from ioprof.analysis.reads.sources import is_access
from ioprof.format.trace import Trace

_WRITER: Final = re.compile(r"pipe from .* \(pid (\d+)\)")
_MOST_PIPES: Final = 16
"""One after the other."""
_LEAST_RATIO: Final = 0.1
"""Bytes that a writer read of a file, over those that came through its pipe, from which on it sends
that file. Below, as of a program that makes what it sends, the file is one of its own modules; a
decompressor reads less than it writes."""


def sent_files(trace: Trace) -> dict[int, str]:
    """By the number of a pipe as a file, the path of what its writer read most of; writers of which
    nothing is known are left out, and those that read little of it.

    A writer that reads from a pipe or socket itself sends what comes through that.
    """
    paths = dict(trace.files.drop_nulls(["file", "path"]).select("file", "path").iter_rows())
    writers = {
        file: int(name[1]) for file, path in paths.items() if (name := _WRITER.fullmatch(path))
    }
    if not writers:
        return {}
    of_writers = pl.col("pid").is_in(list(set(writers.values())))
    read = trace.rows(is_access, of_writers, pl.col("file").is_not_null(), kinds=["read", "fault"])
    sums = (
        read.group_by("pid", "file")
        .agg(pl.col("bytes").sum())
        .sort("bytes", "file", descending=[True, False])
    )
    first = sums.unique("pid", keep="first", maintain_order=True)
    most_read = {
        pid: (file, count) for pid, file, count in first.select("pid", "file", "bytes").iter_rows()
    }
    came = trace.rows(pl.col("file").is_in(list(writers)), pl.col("bytes") > 0, kinds=["read"])
    received = dict(came.group_by("file").agg(pl.col("bytes").sum()).iter_rows())
    found: dict[int, str] = {}
    for pipe in writers:
        file: int | None = pipe
        for _ in range(_MOST_PIPES):
            if file not in writers:
                break
            source, count = most_read.get(writers[file], (None, 0))
            file = source if file in received and count >= _LEAST_RATIO * received[file] else None
        if file is not None and file in paths and file not in writers:
            found[pipe] = paths[file]
    return found
