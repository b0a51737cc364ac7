"""The result of a probe, and its JSON form."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = "ioprof.probe/1"
TESTS: Final = ("open", "sequential", "random")
"""`open`: open, fstat and close of files that no process here has opened before. `sequential`: each
client reads its own part of the data in order. `random`: random record reads."""
MODES: Final = ("buffered", "direct")
"""Through the page cache, as a training job reads, or bypassing it (O_DIRECT)."""


@dataclass(frozen=True)
class Latency:
    """Latency of single operations in seconds, without the harness's part; percentiles by nearest
    rank.
    """

    mean_s: float
    p50_s: float
    p95_s: float | None
    """None with fewer than 20 operations."""
    p99_s: float | None
    """None with fewer than 100: the maximum of fewer is not a percentile."""
    max_s: float


@dataclass(frozen=True)
class Level:
    """One test with `clients` clients, each of which starts the next operation when the last has
    ended (a closed loop).
    """

    test: str
    mode: str
    clients: int
    operations: int
    """Number of reads, or opens."""
    bytes: int
    device_bytes: int | None
    """Bytes that the kernel fetched for them, including readahead and metadata; None where it does
    not count them (FUSE). More than `bytes`: the kernel read ahead. Fewer: some were in memory."""
    seconds: float
    """Time in which all clients were active, on which the rates are based."""
    operations_per_s: float
    bytes_per_s: float
    latency: Latency
    """Latency of the reads that needed the storage; of all reads, where none is known to have
    needed it."""
    open_latency: Latency | None
    """The part of `latency` spent in open and fstat, for files that are read whole; their names
    were in the dentry cache."""
    in_flight: float
    """Mean number of operations in progress (rate × latency, Little's law): near `clients`, unless
    the harness was the limit."""
    cached_operations: int | None
    """Reads served from memory although the files had been evicted; excluded from the rates. None
    for opens, and for the sequential test, in which reads are expected to hit pages fetched by
    readahead."""
    cached_by: str | None
    """How that was determined: `cachestat` (before each read) or `counters` (the read did not
    wait)."""
    stayed_bytes: int | None
    """Bytes in the page cache after the eviction, just before the level; None where that is
    unknown, and for opens."""
    stayed_by: str | None
    """The method by which that is known, or the reason why not."""
    kept_ratio: float | None
    """For direct reads: the part of their files in the page cache afterwards. Near 1: O_DIRECT did
    not bypass the page cache."""
    failed: dict[str, int]
    """Number of failed operations by error."""
    ended_by: str
    """`time` or `bytes`: the level's part of the budget; `places`: all places were read once."""


@dataclass(frozen=True)
class Missing:
    """A level without results."""

    test: str
    mode: str
    clients: int
    reason: str


@dataclass(frozen=True)
class Harness:
    """The overhead of the measurement, measured by the same loop on /dev/null."""

    latency_ns: float
    """Within the duration of a read; subtracted from each."""
    between_ns: float
    """From the end of a read to the start of the next: included in rates, but not in latencies."""


@dataclass(frozen=True)
class Probe:
    """The measured performance of a path."""

    levels: tuple[Level, ...]
    missing: tuple[Missing, ...]
    harness: Harness
    record_bytes_mean: float | None
    """Mean size of the records in the random test; None without that test."""
    seconds: float
    """Total time, including eviction."""
    bytes: int
    """Bytes read by all levels."""
    exhausted: str | None
    """`time` or `bytes`: the limit that ended a level before everything was read; None: none
    did."""

    def best(self, test: str) -> Level | None:
        """The level of this test with the most operations per second."""
        return max(
            (level for level in self.levels if level.test == test),
            key=lambda level: level.operations_per_s,
            default=None,
        )

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"schema": SCHEMA, **asdict(self)}
