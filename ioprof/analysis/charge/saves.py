"""The parts of checkpoints: what each spent its time on, and what continues in the background
during the next steps.

An instant in which the training thread saves belongs to the first of these that covers it:

    device to host   a copy from the device
    other ranks      a collective or a message: ranks agree on a plan, or wait for each other
    write            a call that writes 4 kB or more, which may wait for storage
    fsync            a call that waits until what was written is on storage
    rename           a call that gives a file its final name
    upload, compression, serialization, planning
                     none of these: by samples of the thread's stack within this checkpoint, in
                     proportion
    other            by a sample, none of these; or there is no sample of it

So the parts of each sum to the time for which it stopped the training, in integer nanoseconds.
"""

import os
import re
from collections import Counter
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.charge.steps import steps
from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.cpu.frames import frames_of, module_path
from ioprof.analysis.intervals import charge, covered, is_within, subtract, total, union, union_all
from ioprof.analysis.reads.flushes import is_flush, of_checkpoints
from ioprof.analysis.selection import intervals, of_kind
from ioprof.format.run_record import Phase, Saves
from ioprof.format.schema import OPEN_TO_WRITE, RENAME, WRITE
from ioprof.format.trace import Trace

MEASURED: Final = ("device to host", "other ranks", "write", "fsync", "rename")
SAMPLED: Final = ("upload", "compression", "serialization", "planning", "other")
PARTS: Final = (*MEASURED, *SAMPLED)
MAY_BE_BESIDE: Final = ("write", "fsync", "rename", "upload", "compression", "serialization")
"""Those that need only a copy of the state."""
BACKGROUND: Final = "in the background"
"""How the names of spans end that go on beside the training."""
_LIBRARIES: Final = {
    "compression": r"gzip|zipfile|lzma|bz2|_compression|compression/|zstandard|lz4/|blosc",
    "upload": (
        r"botocore|boto3|s3transfer|urllib3|requests/|http/|ssl|socket|fsspec|s3fs|gcsfs|adlfs"
        r"|aiohttp|httpx|huggingface_hub|obstore|s3torchconnector|google/cloud|azure/"
    ),
    "serialization": (
        r"pickle|cloudpickle|copyreg|safetensors|numpy/lib/|torch/(serialization|_tensor|storage"
        r"|_utils|_weights_only)"
    ),
    "planning": r"torch/distributed/",
}
"""Modules by what they do in a checkpoint, of standard library and packages."""
_KNOWN: Final = {part: re.compile(rf"^({names})") for part, names in _LIBRARIES.items()}


def saves(trace: Trace) -> pl.DataFrame:
    """One row for each checkpoint of each rank, which is all that its training thread saves between
    two steps: `rank`, `step` (how many had ended), `start_ns`, `end_ns`, `bytes` (null: not
    known), `wall_ns`, `<part>_ns` for each of `PARTS`, which sum to `wall_ns` exactly,
    `background_ns` after it, and `slowed_ns`: by how much the steps in the latter took longer than
    the median of the others.
    """
    kinds = ["step", "checkpoint", "user", "comm"]
    spans = trace.rows(pl.col("rank").is_not_null(), kinds=kinds)
    found = [_empty()]
    ranks = sorted(spans.filter(pl.col("kind") == "checkpoint")["rank"].unique())
    table = steps(trace) if ranks else pl.DataFrame()
    has_copies = not trace.sums.filter(pl.col("kind") == "d2h").is_empty() and bool(ranks)
    copies = trace.rows(pl.col("rank").is_in(ranks), pl.lit(has_copies), kinds=["d2h"])
    for rank in ranks:
        of_rank = pl.col("rank") == rank
        part = _of_rank(
            rank,
            spans.filter(of_rank),
            copies.filter(of_rank),
            trace.stacks.filter(of_rank),
            table.filter(of_rank),
        )
        found.append(part)
    return pl.concat(found)


def saves_summary(trace: Trace) -> Saves | None:
    """The mean of all checkpoints; None: there is none."""
    table = saves(trace)
    if table.is_empty():
        return None
    number, ranks = len(table), table["rank"].n_unique()
    wall_ns = int(table["wall_ns"].sum())
    sums = [(part, int(table[_column(part)].sum())) for part in PARTS]
    parts = tuple(
        Phase(part, took_ns / number / 1e9, took_ns / wall_ns) for part, took_ns in sums if took_ns
    )
    gaps = table.sort("rank", "start_ns").select(
        ns=pl.col("start_ns").diff().over("rank"), steps=pl.col("step").diff().over("rank")
    )
    gaps = gaps.drop_nulls()
    known = table["bytes"].drop_nulls()
    return Saves(
        number=round(number / ranks),
        ranks=ranks,
        bytes=round(float(known.mean() or 0)) if len(known) else None,  # type: ignore[arg-type]
        seconds=wall_ns / number / 1e9,
        parts=parts,
        background_s=int(table["background_ns"].sum()) / number / 1e9,
        slowed_s=int(table["slowed_ns"].sum()) / number / 1e9,
        every_s=float(gaps["ns"].median()) / 1e9 if len(gaps) else None,  # type: ignore[arg-type]
        every_steps=float(gaps["steps"].median()) if len(gaps) else None,  # type: ignore[arg-type]
        folder=_folder(trace),
    )


def _folder(trace: Trace) -> str | None:
    """The folder in which most files were opened for writing by threads that saved a checkpoint."""
    by = ["host", "pid", "tid"]
    name = pl.col("name").cast(pl.String)
    times = trace.rows(name.str.contains("save"), kinds=["checkpoint"])
    times = times.select(*by, "start_ns", until_ns="end_ns").sort("start_ns")
    opened = trace.rows(name == OPEN_TO_WRITE, pl.col("file").is_not_null(), kinds=["user"])
    inside = (
        opened.select(*by, "start_ns", "file")
        .sort("start_ns")
        .join_asof(times, on="start_ns", by=by, check_sortedness=False)
    )
    files = inside.filter(pl.col("start_ns") < pl.col("until_ns")).join(trace.files, on="file")
    paths = files.filter(~pl.col("path").str.contains(r"\.pyc?$|^/(proc|sys|dev)/"))["path"]
    counts = Counter(map(os.path.dirname, paths.to_list()))
    return max(counts, key=lambda folder: (counts[folder], folder), default=None)


def _column(part: str) -> str:
    return f"{part.replace(' ', '_')}_ns"


def _empty() -> pl.DataFrame:
    names = ("rank", "step", "start_ns", "end_ns", "bytes", "wall_ns", *map(_column, PARTS))
    return pl.DataFrame(schema=dict.fromkeys((*names, "background_ns", "slowed_ns"), pl.Int64))


def _of_rank(
    rank: int,
    spans: pl.DataFrame,
    copies: pl.DataFrame,
    stacks: pl.DataFrame,
    table: pl.DataFrame,
) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    main = in_main_thread(spans)
    is_behind = name.str.ends_with(BACKGROUND).fill_null(value=False)
    written = of_kind(spans, "checkpoint").filter(name.str.contains("save").fill_null(value=False))
    own = spans.filter(main)
    saved = written.filter(main, ~is_behind)
    if saved.is_empty():
        return _empty()
    users = of_kind(own, "user")
    after = of_checkpoints(of_kind(own, "checkpoint", "user"))
    windows = union_all([intervals(saved), intervals(after)])
    classes = [
        union(intervals(copies)),
        union(intervals(of_kind(own, "comm"))),
        union(intervals(users.filter(name.is_in([OPEN_TO_WRITE, WRITE])))),
        union(intervals(users.filter(is_flush))),
        union(intervals(users.filter(name == RENAME))),
    ]
    ended = np.unique(of_kind(own, "step")["end_ns"].to_numpy())
    step = np.searchsorted(ended, windows[:, 0], side="right")
    first = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
    taken = np.add.reduceat(charge(windows, classes), first)
    last = np.append(first[1:], len(windows)) - 1
    starts, ends = windows[first, 0], windows[last, 1]
    rest = subtract(windows, union_all(classes))
    is_derived = saved.filter(pl.col("file").is_not_null())
    parts = _by_samples(
        taken[:, -1], starts, rest, stacks.filter(_of_threads(own)), union(intervals(is_derived))
    )
    behind = union(intervals(written.filter(~main | is_behind)))
    behind_ns, slowed_ns = _beside(starts, behind, windows, table)
    sizes = _sizes(starts, written, users.filter(name == WRITE), windows)
    columns = dict(zip(map(_column, PARTS), [*taken[:, :-1].T, *parts.T], strict=True))
    return pl.DataFrame(
        {
            "rank": np.full(len(first), rank),
            "step": step[first],
            "start_ns": starts,
            "end_ns": ends,
            "bytes": sizes,
            "wall_ns": taken.sum(axis=1),
            **columns,
            "background_ns": behind_ns,
            "slowed_ns": slowed_ns,
        },
        schema=_empty().schema,
    )


def _of_threads(own: pl.DataFrame) -> pl.Expr:
    threads = of_kind(own, "step").select("pid", "tid").unique()
    return pl.struct("pid", "tid").is_in(
        threads.select(pl.struct("pid", "tid")).to_series().implode()
    )


def _by_samples(
    rest_ns: NDArray[np.int64],
    starts: NDArray[np.int64],
    rest: NDArray[np.int64],
    stacks: pl.DataFrame,
    derived: NDArray[np.int64],
) -> NDArray[np.int64]:
    """What is left of each checkpoint, by `SAMPLED`."""
    counts = [Counter[str]() for _ in starts]
    times = stacks["time_ns"].to_numpy()
    columns = (
        np.searchsorted(starts, times, side="right") - 1,
        stacks["stack"].cast(pl.String),
        is_within(times, rest),
        is_within(times, derived),
    )
    for place, stack, is_counted, is_derived in zip(*columns, strict=True):
        if is_counted:
            counts[place][_what(stack, is_derived=bool(is_derived))] += 1
    found = np.zeros((len(starts), len(SAMPLED)), np.int64)
    for place, (left_ns, of_one) in enumerate(zip(rest_ns.tolist(), counts, strict=True)):
        number = sum(of_one.values())
        for part, count in of_one.items():
            found[place, SAMPLED.index(part)] = left_ns * count // number
        largest = max(of_one, key=lambda part: of_one[part], default="other")
        found[place, SAMPLED.index(largest)] += left_ns - int(found[place].sum())
    return found


def _what(stack: str, *, is_derived: bool) -> str:
    """What the thread did. Between the writes of a file that no hook knows, it made what it writes:
    the library that does so may have no frame of Python.
    """
    for frame in reversed(frames_of(stack)):
        if frame.is_library:
            path = module_path(frame.file)
            for part, names in _KNOWN.items():
                if names.match(path):
                    return part
        elif is_derived:
            return "serialization"
    return "other"


def _beside(
    starts: NDArray[np.int64],
    behind: NDArray[np.int64],
    windows: NDArray[np.int64],
    table: pl.DataFrame,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What went on in the background after each checkpoint began, until the next one; and by how
    much it slowed the steps.
    """
    until = np.append(starts[1:], np.iinfo(np.int64).max)
    behind_ns, slowed_ns = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    if not len(behind):
        return behind_ns, slowed_ns
    bounds = intervals(table)
    own_ns = bounds[:, 1] - bounds[:, 0] - covered(bounds, windows)
    beside_ns = covered(bounds, behind)
    is_free = beside_ns == 0
    usual_ns = float(np.median(own_ns[is_free])) if is_free.any() else None
    for place, (start_ns, end_ns) in enumerate(zip(starts, until, strict=True)):
        part = behind[(behind[:, 0] >= start_ns) & (behind[:, 0] < end_ns)]
        behind_ns[place] = total(part) if len(part) else 0
        if usual_ns is not None and len(part):
            # a step that it covers in part counts as that part of a step
            share = covered(bounds, part) / np.maximum(1, bounds[:, 1] - bounds[:, 0])
            slowed_ns[place] = max(0, round(float(np.sum(share * (own_ns - usual_ns)))))
    return behind_ns, slowed_ns


def _sizes(
    starts: NDArray[np.int64],
    saved: pl.DataFrame,
    writes: pl.DataFrame,
    windows: NDArray[np.int64],
) -> list[int | None]:
    """By the sizes of the files, or else by what was written meanwhile."""
    found: list[int | None] = []
    inside = writes.filter(pl.Series(covered(intervals(writes), windows) > 0))
    for start_ns, end_ns in zip(starts, [*starts[1:], np.iinfo(np.int64).max], strict=True):
        when = pl.col("start_ns").is_between(int(start_ns), int(end_ns), closed="left")
        sizes = saved.filter(when, pl.col("bytes") > 0)["bytes"]
        if sizes.is_empty():
            sizes = inside.filter(when)["bytes"]
        found.append(int(sizes.sum()) or None)
    return found
