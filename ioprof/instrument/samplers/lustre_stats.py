"""Parses the statistics files of a Lustre client, releases 2.10 to 2.17 (lprocfs_stats_seq_show,
osc_rpc_stats_seq_show).

    read_bytes                57406355 samples [bytes] 1 4194304 1496254921055 47236230193563213
    name                      count            [unit]  min max   sum           sum of squares

Until 2.14 names contain blanks and the unit of times is [usec], [usecs] or missing; 2.15 has
further header lines. Other lines are skipped. Counters that are 0 have no line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

_AFTER: Final = re.compile(
    rb"(?: \[(\w{1,16})\])?(?: -?\d{1,20} -?\d{1,20} (\d{1,20}))?(?: \d{1,20})?"
)
_COUNT: Final = re.compile(rb"\d{1,19}")
_PARAMETER: Final = re.compile(rb"^([\w.@-]+)=$", re.MULTILINE)
_BUCKET: Final = re.compile(rb"(\d{1,9}):\s+(\d{1,19})\s")
_PER_SECOND: Final = {"usec": 1e6, "usecs": 1e6, "nsec": 1e9, "nsecs": 1e9, "secs": 1.0, "sec": 1.0}

OLD_NAMES: Final = {
    "readpage not consecutive": "readpage_not_consecutive",
    "miss inside window": "miss_inside_window",
    "failed grab_cache_page": "failed_grab_cache_page",
    "failed lock match": "failed_lock_match",
    "read but discarded": "read_but_discarded",
    "zero length file": "zero_length_file",
    "zero size window": "zero_size_window",
    "read-ahead to EOF": "readahead_to_eof",
    "hit max r-a issue": "hit_max_readahead_issue",
    "wrong page from grab_cache_page": "wrong_page_from_grab_cache_page",
    "failed to reach end": "failed_to_reach_end",
    "async readahead": "async_readahead",
    "failed to fast read": "failed_to_fast_read",
    "mmap range read": "mmap_range_read",
}
"""Names in read_ahead_stats until 2.14.51, and the present names (LU-13705)."""


@dataclass(frozen=True)
class Statistic:
    """One line: the number of samples and their sum, if there is one."""

    count: int
    unit: str
    sum: int | None

    @property
    def seconds(self) -> float | None:
        """The sum as a time; None if the unit is not a time."""
        scale = _PER_SECOND.get(self.unit)
        return None if scale is None or self.sum is None else self.sum / scale


@dataclass(frozen=True)
class PagesPerRequest:
    """The number of read requests and bounds of their total size, in pages of this client."""

    requests: int
    least_pages: int
    most_pages: int
    """Requests are counted by powers of two of their size, so the sum is known within bounds: the
    bucket `256` counts requests of 129 to 256 pages, the last of which may be partial. On clients
    with pages of 64 KiB requests of 4 KiB were observed."""


def parse_statistics(data: bytes) -> dict[str, Statistic] | None:
    """The lines of a statistics file by their names since 2.14.52; None if it is not a statistics
    file.
    """
    if b"snapshot_time" not in data:
        return None
    return dict(parsed for line in data.splitlines() if (parsed := _parse_line(line)))


def split_parameters(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Split the output of `lctl get_param` into name and text of each parameter."""
    parts = _PARAMETER.split(data)
    return ((name.decode(), text) for name, text in zip(parts[1::2], parts[2::2], strict=True))


def read_requests(data: bytes) -> PagesPerRequest | None:
    """The read columns of the table "pages per rpc" in an rpc_stats file; None if there is no such
    table.
    """
    _, heading, table = data.partition(b"pages per rpc")
    if not heading:
        return None
    lines = takewhile(bytes.strip, table.split(b"\n")[1:])  # up to the first empty line
    rows = [match for line in lines if (match := _BUCKET.match(line))]
    counted = [(int(match[1]), int(match[2])) for match in rows]
    return PagesPerRequest(
        requests=sum(count for _, count in counted),
        least_pages=sum(count * (pages // 2) for pages, count in counted),
        most_pages=sum(count * pages for pages, count in counted),
    )


def _parse_line(line: bytes) -> tuple[str, Statistic] | None:
    before, separator, after = line.rstrip().partition(b" samples")
    name, _, count = before.rpartition(b" ")
    rest = _AFTER.fullmatch(after)
    if not separator or not rest or not _COUNT.fullmatch(count):
        return None
    text = name.strip().decode("utf-8", "replace")
    return OLD_NAMES.get(text, text), Statistic(
        int(count), (rest[1] or b"").decode(), None if rest[2] is None else int(rest[2])
    )
