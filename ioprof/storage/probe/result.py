"""What a probe found: plain data, and the same as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = "ioprof.probe/1"
TESTS: Final = ("open", "sequential", "random")
"""`open`: open, fstat and close of files that nothing here has opened before. `sequential`: a part of the data for each client, in
order. `random`: records in an order of chance."""
MODES: Final = ("buffered", "direct")
"""Through the page cache, as a training job reads, and past it (O_DIRECT)."""


@dataclass(frozen=True)
class Latency:
    """Of single operations, in seconds, the harness's own part taken off; exact values of the sorted times (nearest rank)."""

    mean_s: float
    p50_s: float
    p95_s: float | None
    """Null with fewer than 20 operations."""
    p99_s: float | None
    """Null with fewer than 100: the greatest of fewer is no percentile."""
    max_s: float


@dataclass(frozen=True)
class Level:
    """One test with so many clients, each of which begins the next operation when the last has ended (a closed loop)."""

    test: str
    mode: str
    clients: int
    operations: int
    """Reads, or opens."""
    bytes: int
    device_bytes: int | None
    """That the kernel fetched for them, readahead and metadata included; null where it does not count (FUSE). More than `bytes`:
    the kernel read ahead. Fewer: some were in memory."""
    seconds: float
    """In which all clients were at work. The rates are those of this time."""
    operations_per_s: float
    bytes_per_s: float
    latency: Latency
    """Of the reads that needed the storage; of all, where none is known to have needed it."""
    open_latency: Latency | None
    """The part of `latency` that was open and fstat, of files that are read whole; their names were known to the kernel by then."""
    in_flight: float
    """Operations under way in the mean (rate × latency, Little's law): near `clients`, or the harness itself was the limit."""
    cached_operations: int | None
    """Reads that were served from memory although the cache had been emptied; not in the rates. Null of opens, and of the
    sequential test, whose reads are meant to find what was read ahead for them."""
    cached_by: str | None
    """How that was told: `cachestat` (the cache was asked before each read) or `counters` (the read waited for nothing)."""
    stayed_bytes: int | None
    """Still in the page cache after the eviction, just before the level; null where the kernel does not say, or of opens."""
    stayed_by: str | None
    """How that is known, or why not."""
    kept_ratio: float | None
    """Of direct reads: part of their files that was in the page cache afterwards. Near 1, O_DIRECT was not what it says."""
    failed: dict[str, int]
    """Operations that failed, by their error."""
    ended_by: str
    """`time` or `bytes`: the level's part of the budget; `places`: everything was read once."""


@dataclass(frozen=True)
class Missing:
    """A level that there is none of."""

    test: str
    mode: str
    clients: int
    reason: str


@dataclass(frozen=True)
class Harness:
    """What the measuring itself takes, measured by the same loop on /dev/null."""

    engine: str
    """`C threads` or `Python threads`."""
    latency_ns: float
    """Within the time of a read; taken off each."""
    between_ns: float
    """From the end of a read to the begin of the next: not in latencies, but in rates."""


@dataclass(frozen=True)
class Probe:
    """What a path delivers."""

    levels: tuple[Level, ...]
    missing: tuple[Missing, ...]
    harness: Harness
    record_bytes_mean: float | None
    """Of the records that the random test read; null where none was."""
    seconds: float
    """That all took, emptying the cache included."""
    bytes: int
    """Read by all levels together."""
    exhausted: str | None
    """`time` or `bytes`: the part of the budget that ended a level before everything was read; null: none."""

    def best(self, test: str) -> Level | None:
        """The level of the test with the most operations per second."""
        return max((level for level in self.levels if level.test == test), key=lambda level: level.operations_per_s, default=None)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"schema": SCHEMA, **asdict(self)}
