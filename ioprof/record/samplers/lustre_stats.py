"""The grammar of a Lustre client's statistics, releases 2.10 to 2.17 (lprocfs_stats_seq_show, osc_rpc_stats_seq_show).

    read_bytes                57406355 samples [bytes] 1 4194304 1496254921055 47236230193563213
    name                      count            [unit]  min max   sum           sum of squares

Names had blanks in them until 2.14, times were [usec], [usecs] or missing, and further headers came with 2.15; a line that is none
of these is passed over. Counters that are still 0 have no line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_AFTER: Final = re.compile(rb"(?: \[(\w{1,16})\])?(?: -?\d{1,20} -?\d{1,20} (\d{1,20}))?(?: \d{1,20})?")
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
"""Names of read_ahead_stats until 2.14.51, and what they are since (LU-13705)."""


@dataclass(frozen=True)
class Tally:
    """One line: how many, and their sum where it was kept."""

    count: int
    unit: str
    sum: int | None

    @property
    def seconds(self) -> float | None:
        """The sum as a time; None for what is no time."""
        scale = _PER_SECOND.get(self.unit)
        return None if scale is None or self.sum is None else self.sum / scale


@dataclass(frozen=True)
class PagesPerRequest:
    """How many read requests there were of each size, in pages of this client."""

    requests: int
    least_pages: int
    most_pages: int
    """Sizes are counted by powers of two, so that their sum is known within bounds: a bucket `256` holds 129 to 256 pages, of which
    the last may be a part of one. On clients with pages of 64 KiB it was seen to be one of 4 KiB."""


def tallies(data: bytes) -> dict[str, Tally] | None:
    """The lines of a file of statistics, by the names that they have since 2.14.52; None for what is no such file."""
    if b"snapshot_time" not in data:
        return None
    return dict(tally for line in data.splitlines() if (tally := _tally(line)))


def by_parameter(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What `lctl get_param` printed: the name of each parameter, and its text."""
    parts = _PARAMETER.split(data)
    return ((name.decode(), text) for name, text in zip(parts[1::2], parts[2::2], strict=True))


def read_requests(data: bytes) -> PagesPerRequest | None:
    """The read half of the table "pages per rpc" of an rpc_stats file; None where there is none."""
    _, heading, table = data.partition(b"pages per rpc")
    if not heading:
        return None
    rows = [match for line in _rows(table) if (match := _BUCKET.match(line))]
    counted = [(int(match[1]), int(match[2])) for match in rows]
    return PagesPerRequest(
        requests=sum(count for _, count in counted),
        least_pages=sum(count * (pages // 2) for pages, count in counted),
        most_pages=sum(count * pages for pages, count in counted),
    )


def _rows(table: bytes) -> Iterator[bytes]:
    """The lines after the heading's, up to the first that is empty."""
    for line in table.split(b"\n")[1:]:
        if not line.strip():
            return
        yield line


def _tally(line: bytes) -> tuple[str, Tally] | None:
    before, said, after = line.rstrip().partition(b" samples")
    name, _, count = before.rpartition(b" ")
    rest = _AFTER.fullmatch(after)
    if not said or not rest or not _COUNT.fullmatch(count):
        return None
    text = name.strip().decode("utf-8", "replace")
    return OLD_NAMES.get(text, text), Tally(int(count), (rest[1] or b"").decode(), None if rest[2] is None else int(rest[2]))
