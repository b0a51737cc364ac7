"""What storage must deliver so that the accelerators never wait for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.gpu_windows import observed
from ioprof.analysis.charge.steps import steps
from ioprof.analysis.intervals import Intervals, covered, pack, total, union
from ioprof.analysis.loaders import batches, known_samples, samples_in
from ioprof.analysis.reads.lineage import Axis
from ioprof.analysis.reads.sources import ThreadReads, is_access, is_received, thread_reads
from ioprof.analysis.selection import (
    COMPUTE,
    TIMES,
    WORK,
    WORKER,
    Piece,
    analyse,
    intervals,
    of_kind,
    span_s,
    with_tasks,
)
from ioprof.format.run_record import Demand, JobKind, Reason
from ioprof.format.schema import READAHEAD
from ioprof.format.trace import Trace

LEAST_READS: Final = 30
"""Reads of batches below which nothing is said of what others would need."""
_LEAST_DELIVERED: Final = 0.9
"""Part of the bytes of read calls that storage must have delivered if what it delivered is taken
for the demand."""


TENTHS: Final = 10
_FEWEST_BATCHES: Final = 4 * TENTHS
"""Batches below which it is not said that some of them need more than others."""
_UNEVEN: Final = 1.5
"""Bytes per batch in the tenth of the batches that takes most, over those of all, from which on
they are the demand."""
_FALLEN: Final = 2.0
"""Bytes of the first half over those of the second, below which the batches that take most read for
others, as those do that read a shard, or a group of rows."""

_LEAST_STORED: Final = 0.01
"""Of the bytes of batches, what storage must have delivered; else the page cache was tested."""
_MOSTLY_BEFORE: Final = 0.5
"""Bytes that storage delivered for a batch, over those for a mean one, below which most of what it
needed had been read before."""


@dataclass(frozen=True)
class Tenths:
    """What each tenth of the batches of a rank took, summed over ranks, in the order of the
    batches.
    """

    batches: NDArray[np.int64]
    stored: NDArray[np.int64]
    """Bytes from storage."""
    reads: NDArray[np.int64]

    def __add__(self, other: "Tenths") -> "Tenths":
        return Tenths(
            self.batches + other.batches, self.stored + other.stored, self.reads + other.reads
        )

    def read_at_start(self, num_tenths: int) -> float | None:
        """Share of the bytes from storage that the batches of the first tenths took, if a later
        batch took less than half as much as the mean of all: most of what it needs was read
        before. None: it was not.
        """
        stored, batches = self.stored, self.batches
        if not batches.all() or not 0 < num_tenths < TENTHS or not stored.sum():
            return None
        later = stored[num_tenths:].sum() / batches[num_tenths:].sum()
        if later >= _MOSTLY_BEFORE * stored.sum() / batches.sum():
            return None
        return float(stored[:num_tenths].sum() / stored.sum())

    def most(self) -> tuple[NDArray[np.float64], float] | None:
        """Bytes per batch in each tenth, and reads per batch in the one with most bytes, over those
        per batch of all; None: they do not fall.
        """
        batches, stored, reads = (
            int(self.batches.sum()),
            int(self.stored.sum()),
            int(self.reads.sum()),
        )
        if batches < _FEWEST_BATCHES or not self.batches.all() or not stored:
            return None
        ratios = self.stored / self.batches * (batches / stored)
        place = int(ratios.argmax())
        half = TENTHS // 2
        if ratios[place] < _UNEVEN or ratios[:half].sum() < _FALLEN * ratios[half:].sum():
            return None
        return ratios, float(self.reads[place] / self.batches[place] * (batches / reads))


@dataclass(frozen=True)
class Fetched:
    """What it took to make batches, over all complete batches."""

    batches: int = 0
    samples: int = 0
    """0: not known."""
    reads: int = 0
    """Accesses that moved bytes."""
    bytes: int = 0
    received: int = 0
    """Of these bytes, what other processes sent: storage may have delivered them in larger reads,
    or is not on this host."""
    values: int = 0
    """Of these bytes, those of values of maps that the loader recorded itself: so many were asked
    for, whatever the kernel fetched for them."""
    decode_ns: int = 0
    """Summed over workers."""
    tenths: Tenths | None = None

    @property
    def comes_from_storage(self) -> bool:
        """Whether storage delivered enough of the bytes for its rate to matter."""
        return self.tenths is not None and int(self.tenths.stored.sum()) >= (
            _LEAST_STORED * self.bytes
        )

    def __add__(self, other: "Fetched") -> "Fetched":
        both = (
            self.tenths + other.tenths
            if self.tenths and other.tenths
            else self.tenths or other.tenths
        )
        return Fetched(
            self.batches + other.batches,
            self.samples + other.samples,
            self.reads + other.reads,
            self.bytes + other.bytes,
            self.received + other.received,
            self.values + other.values,
            self.decode_ns + other.decode_ns,
            both,
        )


def fetched(trace: Trace) -> Fetched:
    """What lies within a fetch. Reads outside of a fetch (imports, opening the dataset) belong to
    no sample.
    """
    found = Fetching(trace)
    analyse(trace, found)
    return found.found


class Fetching:
    """`fetched`, piece by piece."""

    kinds = ("wait", "step", "fetch", "read", "fault", "decode")
    columns = ("pid", "tid", "batch", "bytes", "source", "offset", "name", WORKER)

    def __init__(self, trace: Trace) -> None:
        whole = with_tasks(trace) if trace.run.job_kind is JobKind.RAY else trace
        fetches = (
            whole.rows(pl.col("rank").is_not_null(), kinds=["fetch"])
            .group_by("rank", "batch")
            .agg(pl.col("offset").max())
        )
        samples = known_samples(fetches["offset"])
        none = np.zeros(TENTHS, np.int64)
        numbered = fetches.filter(pl.col("batch") >= 0)
        self._numbers = dict(numbered.group_by("rank").agg(pl.col("batch").max() + 1).iter_rows())
        tenth = pl.col("batch") * TENTHS // (pl.col("batch").max().over("rank") + 1)
        batches = np.bincount(
            numbered.select(tenth).to_series().to_numpy().astype(np.int64), minlength=TENTHS
        )
        self.found = Fetched(
            batches=len(fetches),
            samples=(
                len(fetches) * (trace.run.config.batch_size or 0) if samples is None else samples
            ),
            tenths=Tenths(batches, none, none),
        )
        """What `fetched` returns, when all pieces were added."""

    def add(self, piece: Piece) -> None:
        """Add what was read and decoded in a piece."""
        self.found += _of_piece(piece, self._numbers.get(piece.rank, 0))


class Computing:
    """Nanoseconds that the accelerators of all ranks computed, piece by piece."""

    kinds = COMPUTE
    columns = ()

    def __init__(self) -> None:
        self.computed_ns = 0

    def add(self, piece: Piece) -> None:
        """Add what was computed in a piece."""
        self.computed_ns += total(intervals(of_kind(piece.spans, *COMPUTE)))


def demand(
    trace: Trace,
    found: Fetched | None = None,
    computed_ns: int | None = None,
    making: Mapping[str, int] | None = None,
    by_kernel: Mapping[tuple[str | None, int | None], int] | None = None,
    received: pl.DataFrame | None = None,
    least_reads: int = LEAST_READS,
    made_ns: int | None = None,
    unsure: ThreadReads | None = None,
    consumer_s: float | None = None,
) -> Demand:
    """Mean bytes and reads per sample, times the rate at which the devices themselves can go.

    That rate is the emulated device's own, or else samples over the time that the accelerators
    computed: what the job would reach if it never waited. A loop that needs longer for a step than
    its GPU computes takes no more. High against what the path delivers: storage is, or will be, the
    bottleneck.

    What is asked for and what is delivered differ: a page of a map that is touched may fetch a
    whole window of readahead. So the bytes are those that the kernel fetched for the processes that
    made batches, where it counted them and the run was cold, and where the loader did not record
    which values it asked for. Of a map that is read at random, the first batches fetch what later
    ones find: what the tenth of the batches needs that takes most is the demand then.

    `found` is `fetched(trace)`, `computed_ns` what `Computing` counts, `making` the stages of
    `workers_time.making(trace)`, `made_ns` its whole time, and `by_kernel` the bytes that the
    kernel fetched by process, imports aside; `received` is `loaders.batches(trace)`, `unsure` is
    `thread_reads(trace)`, `consumer_s` that of the ceilings. What is not given is not known, or
    made here.
    """
    found = fetched(trace) if found is None else found
    rate, by_loop = consumed(trace, computed_ns, received, consumer_s)
    basis = "unknown" if rate is None else "emulated" if trace.run.is_emulated else "derived"
    samples, devices = found.samples, trace.run.config.ranks or len(trace.ranks) or 1
    if rate is None or not samples or not trace.run.reads_captured:
        return Demand(
            None, None, rate, basis, num_reads=found.reads, reason=_reason(trace, rate, computed_ns)
        )
    work_s = sum(took_ns for cause, took_ns in (making or {}).items() if cause != "storage") / 1e9
    # whether it computed or waited is not known
    without_name_s = ((made_ns or 0) - sum((making or {}).values())) / 1e9
    cores = work_s / samples * rate if work_s and work_s > without_name_s else None
    if found.reads < least_reads:
        return Demand(
            None,
            None,
            rate,
            basis,
            num_reads=found.reads,
            num_devices=devices,
            cores=cores,
            reason=Reason.TOO_FEW_READS,
        )
    if (thread_reads(trace) if unsure is None else unsure).may_change(found.bytes):
        return Demand(
            None,
            None,
            rate,
            basis,
            num_reads=found.reads,
            num_devices=devices,
            reason=Reason.READS_OF_THREADS,
        )
    are_values = 2 * found.values > found.bytes
    delivered, is_least = (None, False) if are_values else _delivered(trace, by_kernel or {})
    per_sample = (found.bytes if delivered is None else delivered) / samples
    wall_s = span_s(trace.rows(pl.col("batch").is_not_null(), kinds=["fetch"]))
    needed = per_sample * rate
    got = per_sample * samples / wall_s if wall_s else None
    most = found.tenths.most() if found.tenths and delivered is not None and is_least else None
    tenths, more_reads = most or (np.ones(1), 1.0)
    return Demand(
        bytes_per_s=float(tenths.max()) * needed,
        mean_bytes_per_s=needed if most else None,
        tenths_bytes_per_s=tuple((tenths * needed).tolist()) if most else None,
        reads_per_s=None
        if 2 * found.received > found.bytes
        else more_reads * found.reads / samples * rate,
        at_samples_per_s=rate,
        basis=basis,
        is_delivered=delivered is not None,
        is_least=is_least,
        num_reads=found.reads,
        got_bytes_per_s=got,
        num_devices=devices,
        devices_fed=got / needed * devices if got and needed else None,
        cores=cores,
        by_loop=by_loop,
    )


def _reason(trace: Trace, rate: float | None, computed_ns: int | None) -> Reason:
    """Why nothing is said."""
    if rate is None:
        return Reason.NO_BATCH_SIZE if computed_ns else Reason.NO_DEVICE_RATE
    return Reason.TOO_FEW_READS if trace.run.reads_captured else Reason.READS_NOT_CAPTURED


def _delivered(
    trace: Trace, by_kernel: Mapping[tuple[str | None, int | None], int]
) -> tuple[int | None, bool]:
    """Bytes that storage delivered to the processes that made batches, and whether it is at least
    so many.

    None: not counted, or less than read calls asked for, so that the page cache served some. Of
    maps it is not known what was asked for, nor what was in memory already.
    """
    fetches = trace.rows(pl.col("batch").is_not_null(), kinds=["fetch"])
    makers = set(fetches.select(pl.col("host").cast(pl.String), "pid").iter_rows())
    loops = set(trace.rows(kinds=["step"])["pid"].to_list())
    # A training process that makes its own batches has also read its libraries.
    if not makers or makers - set(by_kernel) or any(pid in loops for _, pid in makers):
        return None, False
    total = sum(by_kernel[maker] for maker in makers)
    is_call = (pl.col("kind") == "read") & pl.col("in_batch") & ~is_received
    asked = int(trace.sums.filter(is_call)["bytes"].sum())
    if not total or total < _LEAST_DELIVERED * asked:
        return None, False
    return total, asked < _LEAST_DELIVERED * total


def consumed(
    trace: Trace,
    computed_ns: int | None,
    received: pl.DataFrame | None,
    consumer_s: float | None,
) -> tuple[float | None, bool]:
    """Samples per second of all devices together while they compute; null where neither a known
    rate nor compute was recorded.

    Where the loops on GPUs take longer for a step (`consumer_s`), the rate is theirs, and the
    second value true.
    """
    ranks = trace.run.config.replicas or len(trace.ranks)
    if trace.run.device_samples_per_s is not None:
        return trace.run.device_samples_per_s * (ranks or 1), False
    table = steps(trace)
    rows = int(observed(trace, table).sum())
    if computed_ns is None:
        analyse(trace, computing := Computing())
        computed_ns = computing.computed_ns
    _, samples = samples_in(batches(trace) if received is None else received, table)
    per_step = (
        samples / len(table) if samples is not None and len(table) else trace.run.config.batch_size
    )
    if not computed_ns or not rows or not per_step:
        return None, False
    is_gpu = trace.run.device_name not in (None, "cpu") and not trace.run.is_emulated
    if is_gpu and consumer_s and consumer_s > computed_ns / 1e9 / rows:
        return per_step / consumer_s * ranks, True
    return rows * per_step / (computed_ns / 1e9) * ranks, False


_is_ahead: Final = (pl.col("name").cast(pl.String) == READAHEAD).fill_null(value=False)


def _of_piece(piece: Piece, num_batches: int) -> Fetched:
    spans = of_kind(piece.spans, "fetch", "read", "fault", "decode")
    spans = spans.select(*TIMES, "begin_ns", "batch", "bytes", "source", "offset", "name", WORKER)
    fetches = of_kind(spans, "fetch")
    axis = Axis.of(fetches)
    within = union(axis.place(fetches))
    accesses = of_kind(spans, "read", "fault").filter(
        axis.has_worker, is_access, pl.col("begin_ns") >= piece.start_ns
    )
    decodes = of_kind(spans, "decode").filter(axis.has_worker)
    fetched = accesses.filter(pl.Series(_is_within(axis, accesses, within)))
    inside = fetched.filter(~_is_ahead)
    return Fetched(
        # the part of a value that was in memory is a span of its own, of length 0
        reads=inside.filter(
            pl.col("offset").is_not_null() | (pl.col("begin_ns") < pl.col("end_ns"))
        ).height,
        bytes=int(inside["bytes"].sum()),
        received=int(inside.filter(is_received)["bytes"].sum()),
        values=int(inside.filter(~is_received, pl.col("offset").is_null())["bytes"].sum()),
        decode_ns=int(covered(axis.place(decodes), within).sum()),
        tenths=_in_tenths(fetched, num_batches),
    )


def _in_tenths(accesses: pl.DataFrame, num_batches: int) -> Tenths | None:
    of_batch = accesses.filter(pl.col("batch").is_between(0, num_batches - 1))
    if of_batch.is_empty():
        return None
    tenth = of_batch["batch"].to_numpy() * TENTHS // num_batches
    stored = np.where(
        of_batch.select(WORK["storage"]).to_series(), of_batch["bytes"].fill_null(0), 0
    )
    sums = np.zeros(TENTHS, np.int64)
    np.add.at(sums, tenth, stored.astype(np.int64))
    return Tenths(np.zeros(TENTHS, np.int64), sums, np.bincount(tenth, minlength=TENTHS))


def _is_within(axis: Axis, spans: pl.DataFrame, within: Intervals) -> NDArray[np.bool_]:
    """Which spans begin within one of the intervals on the axis."""
    begins = axis.place(spans)[:, 0]
    found: NDArray[np.bool_] = (covered(pack(begins, begins + 1), within) == 1) & (
        spans["start_ns"].to_numpy() >= axis.origin_ns
    )
    return found
