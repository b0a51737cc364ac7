"""Files that other programs of the job read and send through pipes, as `cat` does for `pipe:cat shard.tar` of webdataset.

A pipe has the name of its writer, with the process id (native/CAPTURE.md, "Sockets and pipes"); the reads of that process are
recorded as those of any other.
"""

import re
from typing import Final

import polars as pl

from ioprof.analysis.reads import is_access
from ioprof.trace import Trace

_WRITER: Final = re.compile(r"pipe from .* \(pid (\d+)\)")
_MOST_PIPES: Final = 16
"""One after the other."""


def sent_files(trace: Trace) -> dict[int, str]:
    """By the number of a pipe as a file, the path of what its writer read most of; writers of which nothing is known are left out.

    A writer that reads from a pipe or socket itself sends what comes through that.
    """
    paths = dict(trace.files.drop_nulls(["file", "path"]).select("file", "path").iter_rows())
    writers = {file: int(name[1]) for file, path in paths.items() if (name := _WRITER.fullmatch(path))}
    if not writers:
        return {}
    of_writers = pl.col("pid").is_in(list(set(writers.values())))
    read = trace.rows(is_access, of_writers, pl.col("file").is_not_null(), kinds=["read", "fault"])
    sums = read.group_by("pid", "file").agg(pl.col("bytes").sum()).sort("bytes", "file", descending=[True, False])
    most_read: dict[int, int] = dict(sums.unique("pid", keep="first", maintain_order=True).select("pid", "file").iter_rows())
    found: dict[int, str] = {}
    for pipe, writer in writers.items():
        file = most_read.get(writer)
        for _ in range(_MOST_PIPES):
            if file not in writers:
                break
            file = most_read.get(writers[file])
        if file is not None and file in paths and file not in writers:
            found[pipe] = paths[file]
    return found
