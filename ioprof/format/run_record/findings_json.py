"""What summary.json says of loaders, of the workers' time, of how the job read, and of how waits
and epochs vary.
"""

from typing import Any

from msgspec import field

from ioprof.format.run_record.record import Record
from ioprof.format.run_record.verdict_json import Sentence


class LoaderTime(Record, frozen=True):
    """What was waited for from one of the job's loaders, over all ranks."""

    name: str
    """The class of its dataset, with a number where several datasets of that class were in use."""
    purpose: str
    """`train` or `validate`."""
    batches: int
    """That ranks received."""
    samples: int | None
    """In these batches. Null: not known, as where the dataset itself makes batches."""
    fewest_samples: int | None
    """Of a batch."""
    most_samples: int | None
    waited_s: float
    """Time in which ranks waited for its batches, whether their device computed meanwhile or
    not."""
    making_s: float
    """Time in which its batches were fetched, summed over workers."""


class WorkPart(Record, frozen=True):
    """A part of the time in which batches were made."""

    cause: str
    """`storage` to `loader`, as in `CauseShare`; `loader` is what no span covers: Python in the
    dataset."""
    name: str | None
    """A transform's class or a decoder (`transform`, `decode`), a user's span. Null: all of the
    cause."""
    seconds: float
    """Summed over workers."""
    share: float
    """Of `WorkersTime.seconds`, 0 to 1."""


class WorkersTime(Record, frozen=True):
    """What those who make batches were busy with, waited for or not; the rank itself, where it has
    no workers.
    """

    seconds: float
    """Time in which batches were fetched, summed over workers."""
    parts: tuple[WorkPart, ...]
    """One per cause, which sum to `seconds`, in the order of `ioprof.format.schema.CAUSES`; each
    followed by its named parts, largest first. These are no more than their cause."""


class ReadGroup(Record, frozen=True):
    """Reads that have something in common. Percentiles are within 2 %; null: none was timed."""

    source: str
    """One of `ioprof.format.schema.SOURCES`."""
    least_bytes: int | None
    """The reads moved at least so many bytes, and less than four times as many. Null: reads of any
    size."""
    accesses: int
    bytes: int
    seconds: float
    """Summed over threads."""
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None
    untimed: int = 0
    """Of `accesses`, those that are not in the percentiles, see `Storage.untimed`."""


class FileReads(Record, frozen=True):
    """A file that took much of the time of reading."""

    path: str
    accesses: int
    bytes: int
    seconds: float
    """Summed over threads."""
    max_s: float
    """Its slowest read."""
    max_offset: int | None
    """Where in the file that read began. Null: not known."""
    opens: int
    """How often it was opened while batches were made."""


class EpochReads(Record, frozen=True):
    """What was read to make the batches of an epoch, and how long its steps took."""

    epoch: int
    """From 0 on; an epoch ends where a loader has no more batches for training."""
    steps: int
    """Of all ranks."""
    step_s: float
    """Mean."""
    waited_s: float
    """For batches, mean per step."""
    accesses: int
    bytes_from_storage: int
    bytes_from_cache: int
    bytes_unknown: int


class QueueDepth(Record, frozen=True):
    """How many reads from storage were in progress at a time, from the first step to the last.

    By Little's law the mean is the rate of reads times the mean time of one.
    """

    mean: float
    """Near 1 with several workers: they take turns. Near the number of readers: all of them wait
    for storage."""
    most: float
    """The highest mean of a sixtieth of the time."""
    over_time: tuple[float, ...]
    """Means of sixtieths of the time."""
    reads_per_s: float
    bytes_per_s: float
    latency_s: float
    """Mean time of a read."""
    readers: int
    """Threads that read from storage."""
    bound: str | None
    """`latency`: more reads at a time took no longer each, so more workers get more. `throughput`:
    reads took longer the more there were at a time, and the rate stayed: fewer bytes help, more
    workers do not. Null: not known. The reads were of one size and took as long as each other, or
    varied too little to tell, or storage was in use for less than half of the time."""
    reason: str = ""
    """What was seen that says so."""
    why: Sentence | None = None
    """`reason` as a code and facts."""


class ReadPattern(Record, frozen=True):
    """A costly way of reading."""

    code: str
    """One of `ioprof.analysis.reads.read_patterns.PATTERNS`."""
    seen: str = ""
    """What was seen, with its numbers."""
    remedy: str = ""
    """What to change."""
    seconds: float | None = None
    """That these reads took, all processes added up. Null: not counted."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers that `seen` has; `ratio`: bytes that were fetched for each that was wanted."""


class ReturnedBytes(Record, frozen=True):
    """What was read for a batch against what the dataset returned for it, as means of the batches
    that were looked at.
    """

    file: str | None
    """That most was read of; of several in one folder, as `/data/*.wav`. Null: not known."""
    read_bytes: float
    """By calls, and fetched by page faults."""
    returned_bytes: float
    """Of its tensors, arrays, texts and numbers."""
    samples: float | None
    """In a batch. Null: not known."""
    ratio: float
    """Bytes that were read for each that was returned, in these batches or over the whole run,
    whichever is less. High: most of what is read is not used, or is reduced to less."""
    mapped: bool
    """Most of it came by page faults."""


class RepeatedReads(Record, frozen=True):
    """Bytes of files that a rank read more than once in a pass over the data."""

    file: str | None
    """As that of `ReturnedBytes`."""
    file_bytes: int
    """Of these files, up to the last byte that was read."""
    times_read: float
    """How often a rank read each of these bytes in a pass, on average; 2 or more."""
    again_from_storage: int
    """Of the bytes that were read again, those that came from storage."""
    again_from_cache: int
    """The same of the page cache."""


class RepeatedWork(Record, frozen=True):
    """What workers do for more records than they deliver samples, since each does it for all."""

    kind: str
    """Of what is counted: `decode` or `transform`."""
    call: str | None
    """Its name. Null: images that Pillow decodes, of any format."""
    calls: float
    """For each sample that workers deliver."""
    workers: int
    """That each do it for all records: those of a rank, or of all ranks together."""
    by_cause: dict[str, float]
    """By cause of the workers' time, for how many records they do it for each sample. 1: only for
    what they deliver. As many as `workers`: for all."""


class ReadsOfWorkers(Record, frozen=True):
    """Files that each worker reads whole in a pass over an iterable dataset, of which each has a
    copy.
    """

    file: str | None
    """As that of `ReturnedBytes`."""
    workers: int
    """That read so, of all ranks together; of the file with the fewest."""
    file_bytes: int
    """Of these files, up to the last byte that was read."""
    repeated: RepeatedWork | None = None
    """Null: not known, or nothing. With it a pass is one of the workers, which may make several
    while the loader makes one."""


class ReadsOfRanks(Record, frozen=True):
    """Bytes of files that several ranks of a node read from storage before the first step."""

    file: str | None
    """As that of `ReturnedBytes`."""
    ranks: int
    """The most of a node."""
    file_bytes: int
    """Of these files, up to the last byte that was read."""
    read_bytes: int
    """From storage, by all these ranks."""
    seconds: float
    """That a rank spent in these reads, on average."""


class Reads(Record, frozen=True):
    """How the job read what its batches are made of; of a run without batches, all that it read."""

    groups: tuple[ReadGroup, ...] = ()
    """By source, and by source and size."""
    files: tuple[FileReads, ...] = ()
    """Up to 10, most seconds first."""
    patterns: tuple[ReadPattern, ...] = ()
    depth: QueueDepth | None = None
    """Null: fewer than 100 reads came from storage."""
    file_bytes: int | None = None
    """The last byte that was read of each file, summed over files: different bytes are at most so
    many. Null: not known of all."""
    times_read: float | None = None
    """How often each of these bytes was read on average, at least. Null: as `file_bytes`."""
    returned: ReturnedBytes | None = None
    """Null: not known."""
    repeated: RepeatedReads | None = None
    """Null: few bytes, or not known."""
    shared: ReadsOfRanks | None = None
    """Null: few bytes, or not known."""
    by_each_worker: ReadsOfWorkers | None = None
    """Null: few bytes, or not known."""


class Waiting(Record, frozen=True):
    """How the waiting for batches is spread over batches."""

    waits: int
    seconds: float
    tenth_ratio: float
    """Part of the waiting that lies in the tenth of the batches that was waited for longest. 0.1:
    all waits are equal. 1: a few batches are the reason, such as the first of each epoch or rare
    slow samples."""
    most_ratio: float
    """The smallest part of the batches in which 95 % of the waiting lies."""


class Trend(Record, frozen=True):
    """Whether steps become slower or faster from epoch to epoch."""

    epochs: tuple[EpochReads, ...]
    """Of the whole job; the first has the start of the workers, and an empty page cache."""
    growth_ratio: float | None
    """By how much the mean step of the last epoch is longer than that of the second. Null: fewer
    than three epochs, or no more than their steps vary."""
    cause: str | None
    """The cause that grew or shrank most."""
    cause_s: float | None
    """By how many seconds per step."""


class RankSkew(Record, frozen=True):
    """How late a rank arrives at the exchange of a step, after the first rank. Less than the
    clocks' uncertainty is 0.
    """

    rank: int
    last_ratio: float
    """Share of the steps in which it arrived last, 0 to 1."""
    behind_s: float
    """Mean over all steps."""
    over_time: tuple[float, ...]
    """Means of up to twenty parts of the run, in seconds."""


class FrameUse(Record, frozen=True):
    """Frames of videos, of all ranks and workers."""

    library: str
    """That decoded them."""
    decoded: int
    used: int
    """Of these, frames that were made arrays or images."""


class Findings(Record, frozen=True):
    """What an analysis found besides the causes."""

    loaders: tuple[LoaderTime, ...] = ()
    workers: WorkersTime | None = None
    """Null: no work for batches was recorded."""
    reads: Reads = Reads()
    waiting: Waiting | None = None
    """Null: fewer than 20 batches were waited for."""
    trend: Trend | None = None
    """Null: fewer than two epochs."""
    skew: tuple[RankSkew, ...] = ()
    """Of each rank, latest first. Empty: one rank, or no exchange that was recorded."""
    frames: FrameUse | None = None
    """Null: no library that says so decoded frames of videos."""
