"""What the timeline of a page is drawn from: a JSON object, and blocks of columns that it
describes.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof.analysis.intervals import pack, pieces_within
from ioprof.analysis.selection import Looking, look
from ioprof.format.run_record import Summary
from ioprof.format.schema import CAUSES, SOURCES
from ioprof.format.trace import Trace
from ioprof.report.lanes import by_thread
from ioprof.report.page.classes import CLASSES, READ_KINDS
from ioprof.report.page.encoding import TICK_NS, block
from ioprof.report.page.overview import STRIP_BINS, Filling, Overview
from ioprof.report.page.sampled import Lane, ready_batches, sampled_lanes
from ioprof.report.page.sections import CAUSE_MEANINGS
from ioprof.report.page.spans import SpanBlocks, parts_of_step, span_blocks, step_columns
from ioprof.report.page.stacks import StackBlocks, stack_blocks
from ioprof.report.page.stalls import MOST_SPANS, Stall, named_cause, stalls, stretches
from ioprof.report.page.tracks import Tracks, placed, tracks_of
from ioprof.report.palette import CAUSE_COLOURS, CODE_COLOURS, DARK, SOURCE_COLOURS

MOST_STEPS: Final = 200_000
"""Steps of all ranks together that a page has."""
_DIGITS: Final = 4
_OF_SPAN: Final = ("start_ns", "end_ns", "bytes", "file", "batch", "step", "name")
_LONG_START: Final = 0.1
"""Share of the run's time from which the time before the first step is folded: less takes no room
that the steps would need."""
_LEAST_SCALES: Final = {"ratio": 1.0, "bytes/s": 10e6, "faults/s": 100.0}
"""By unit, the value that fills the height of a lane at least, so that what is next to nothing
looks so: a tenth of what a disk delivers, page faults that take a few milliseconds per second."""
_MOST_OF_PEAK: Final = 4.0
"""Times the highest bandwidth, up to which the demand sets the height of its row in the strip."""


@dataclass(frozen=True)
class Payload:
    """The data of a timeline."""

    facts: str
    """JSON."""
    blocks: dict[str, str]
    """By name, in the order in which the page reads them."""
    notes: tuple[str, ...]
    """What was left out, in sentences."""


def payload(
    trace: Trace,
    steps: pl.DataFrame,
    summary: Summary,
    wanted: tuple[int, int] | None = None,
    others: Sequence[Looking] = (),
) -> Payload:
    """The data of a run's timeline; spans in `wanted` are in it, however many there are. `others`
    look at all spans, too.
    """
    lanes = tracks_of(trace, steps)
    table = lanes.table
    end_ns = _end_ns(trace, steps)
    is_large = trace.num_spans > MOST_SPANS
    charged = _charged(steps, lanes)
    with ThreadPoolExecutor(2) as threads:  # reading spans and compressing need no interpreter
        coded = threads.submit(step_columns, charged, CAUSES)
        found = stalls(steps)
        windows = stretches(trace, steps, found, wanted) if is_large else [(0, end_ns)]
        filling, exact = (
            Filling(trace, table, end_ns, is_large),
            _Exact(trace, table, windows if is_large else None),
        )
        look(trace, filling, exact, *others)
        spans, whole = span_blocks(exact.found(), trace.files), filling.found
        series = [*ready_batches(trace, lanes.ranks), *sampled_lanes(trace)]
        stacks = stack_blocks(trace, lanes.ranks)
    step_block, step_ranks = coded.result() if len(charged) else ("", [])
    blocks = {"steps": step_block} if step_block else {}
    blocks |= {f"series{place}": lane.block() for place, lane in enumerate(series)}
    blocks |= {"stacks": stacks.text} if stacks.text else {}
    blocks |= {"overview": whole.blocks()} if is_large else {}
    blocks |= {f"spans{place}": text for place, text in enumerate(spans.blocks)}
    blocks["files"] = _tables(spans)
    scales = _scales(series, summary)
    facts = {
        "tick_ns": TICK_NS,
        "end": end_ns / TICK_NS,
        "home": _home_ns(steps, end_ns) // TICK_NS,
        "name": trace.run.name or "RUN",
        "hasBatches": (
            not trace.sums.filter(
                pl.col("in_batch"), pl.col("kind").is_in(list(READ_KINDS))
            ).is_empty()
        ),
        "causes": [
            _named(cause, CAUSE_COLOURS[cause]) | {"means": CAUSE_MEANINGS[cause]}
            for cause in CAUSES
        ],
        "classes": [
            {
                "name": entry.name,
                "kind": entry.kind,
                "source": entry.source,
                "level": entry.level,
                "long": long,
                "light": entry.light,
                "dark": entry.dark,
            }
            for entry, long in zip(CLASSES, whole.long_codes(), strict=True)
        ],
        "tracks": [
            {
                "name": track.name,
                "rank": track.rank,
                "maker": track.is_maker,
                "pid": track.pid,
                "isThread": track.is_thread,
            }
            for track in lanes.tracks
        ],
        "pairs": [list(pair) for pair in whole.pairs],
        "ranks": lanes.ranks,
        "counts": spans.counts,
        "bins": whole.bins if is_large else 0,
        "windows": [[since / TICK_NS, until / TICK_NS] for since, until in windows],
        "wanted": [edge / TICK_NS for edge in wanted] if wanted else None,
        "steps": step_ranks,
        "parts": parts_of_step(len(charged)),
        "stalls": [_stall(stall) for stall in found],
        "series": [
            {
                "name": lane.name,
                "unit": lane.unit,
                "host": lane.host,
                "rank": lane.rank,
                "most": lane.most,
                "scale": scales[lane.unit],
            }
            for lane in series
        ],
        "threads": stacks.threads,
        "samplesEvery": stacks.every,
        "code": [{"light": light, "dark": dark} for light, dark in CODE_COLOURS],
        "strip": _strip(whole, steps, series, summary, lanes),
    }
    return Payload(
        json.dumps(facts, allow_nan=False),
        blocks,
        _notes(trace, steps, lanes, charged, is_large, stacks),
    )


def _stall(stall: Stall) -> list[int]:
    edges = (stall.start_ns // TICK_NS, stall.end_ns // TICK_NS)
    return [
        *edges,
        stall.step,
        stall.rank,
        stall.excess_ns // TICK_NS,
        -1 if stall.cause is None else CAUSES.index(stall.cause),
    ]


def _end_ns(trace: Trace, steps: pl.DataFrame) -> int:
    ends = [trace.last_ns, steps["end_ns"].max() if len(steps) else 0]
    return max(1, *(end for end in ends if isinstance(end, int)))


def _home_ns(steps: pl.DataFrame, end_ns: int) -> int:
    """Where the page begins: at the first step, if what is before it takes much of the run."""
    first_ns = steps["start_ns"].min() if len(steps) else 0
    is_long = isinstance(first_ns, int) and first_ns >= _LONG_START * end_ns
    return first_ns if is_long and isinstance(first_ns, int) else 0


def _scales(series: Sequence[Lane], summary: Summary) -> dict[str, float]:
    """By unit, the value that fills the height of a lane: the same for all lanes of that unit."""
    least = {**_LEAST_SCALES, "cores": float(summary.cpu.cores or 0) if summary.cpu else 0.0}
    return {
        lane.unit: max(
            least.get(lane.unit, 0.0), *(each.most for each in series if each.unit == lane.unit)
        )
        for lane in series
    }


class _Exact:
    """The spans that have a lane and reach into one of the windows, which are in order and apart;
    null: all of them.
    """

    def __init__(
        self, trace: Trace, table: pl.DataFrame, windows: list[tuple[int, int]] | None
    ) -> None:
        self._table = table
        self._windows = None if windows is None else np.array(windows, np.int64).reshape(-1, 2)
        self._found: list[pl.DataFrame] = []
        self.columns = {name: pl.col(name) for name in (*_OF_SPAN, "kind", "rank", "pid", "source")}
        self.columns["by_thread"] = by_thread(trace)

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part of the spans."""
        spans = part.select(*self.columns)
        if self._windows is not None:
            rows, _ = pieces_within(
                pack(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()), self._windows
            )
            spans = spans[np.unique(rows)]  # one may reach into several
        self._found.append(spans)

    def found(self) -> pl.DataFrame:
        """The spans, with their lanes."""
        return (
            placed(pl.concat(self._found).lazy(), self._table)
            .select("track", "class", *_OF_SPAN)
            .collect()
        )


def _charged(steps: pl.DataFrame, lanes: Tracks) -> pl.DataFrame:
    """The steps that the page has: of ranks that have lanes, and of very many the longest of each
    few consecutive ones.
    """
    if not len(steps):
        return steps
    mine = steps.filter(pl.col("rank").is_in([rank for rank in lanes.ranks if rank is not None]))
    each = -(-len(mine) // MOST_STEPS)
    if each <= 1:
        return mine
    length = pl.col("end_ns") - pl.col("start_ns")
    ordered = mine.sort("rank", "start_ns").with_columns(
        place=pl.int_range(pl.len()).over("rank") // each
    )
    kept = (
        ordered.sort(length, descending=True).group_by("rank", "place", maintain_order=True).first()
    )
    return kept.drop("place")


def _tables(spans: SpanBlocks) -> str:
    words = json.dumps({"paths": spans.paths, "sizes": spans.sizes.tolist(), "names": spans.names})
    return block([words.encode()])


def _named(name: str, light: str) -> dict[str, str]:
    return {"name": name, "light": light, "dark": DARK.get(light, light)}


def _strip(
    whole: Overview, steps: pl.DataFrame, series: list[Lane], summary: Summary, lanes: Tracks
) -> list[dict[str, Any]]:
    """The rows of the strip: what they show, in equal bins over the run."""
    rows: list[dict[str, Any]] = []
    computing = {
        number for number, entry in enumerate(CLASSES) if entry.kind in ("compute", "kernel")
    }
    devices = sum(track.name == "compute" for track in lanes.tracks)
    if devices:
        rows.append(
            _row(
                "device busy",
                "ratio",
                [("compute", CAUSE_COLOURS["compute"], whole.busy_ratio(computing, devices))],
                1.0,
            )
        )
    if len(steps):
        longest, cause = _step_bins(steps, whole.end_ns)
        rows.append(
            {
                **_row("step time", "s", [("longest", CAUSE_COLOURS["loader"], longest)]),
                "cause": cause,
            }
        )
    bandwidth = whole.bytes_per_s()
    if bandwidth.any():
        parts = [
            (source, SOURCE_COLOURS[source], row)
            for source, row in zip(SOURCES, bandwidth, strict=True)
            if row.any()
        ]
        demand = summary.demand.bytes_per_s or 0.0
        peak = float(bandwidth.sum(axis=0).max())
        # more would flatten the bandwidth
        shown = demand * 1.05 if demand < _MOST_OF_PEAK * peak else None
        rows.append(
            {**_row("reads for batches", "bytes/s", parts, shown), "demand": demand or None}
        )
    for name, colour in (
        ("CPU", CAUSE_COLOURS["decode"]),
        ("I/O pressure", CAUSE_COLOURS["storage"]),
    ):
        values = [_resampled(lane, whole.end_ns) for lane in series if lane.name == name]
        if values:
            unit = next(lane.unit for lane in series if lane.name == name)
            most = (
                float(summary.cpu.cores)
                if unit == "cores" and summary.cpu and summary.cpu.cores
                else 1.0
            )
            rows.append(_row(name, unit, [(name, colour, np.mean(values, axis=0))], most))
    return rows


def _row(
    name: str, unit: str, parts: list[tuple[str, str, Any]], most: float | None = None
) -> dict[str, Any]:
    total = float(np.sum([values for _, _, values in parts], axis=0).max())
    return {
        "name": name,
        "unit": unit,
        "most": max(most or 0.0, total),
        "parts": [
            {**_named(word, colour), "values": [float(f"{value:.{_DIGITS}g}") for value in values]}
            for word, colour, values in parts
        ],
    }


def _step_bins(steps: pl.DataFrame, end_ns: int) -> tuple[Any, list[int]]:
    """The longest step in each bin of the strip in seconds, and its greatest cause after compute,
    -1 if that is not known.
    """
    named = (
        named_cause(steps)
        .with_columns(took=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        .sort("took")
    )
    took, cause = np.zeros(STRIP_BINS), np.zeros(STRIP_BINS, dtype=np.int64)
    first = (named["start_ns"].to_numpy() * STRIP_BINS // end_ns).clip(0, STRIP_BINS - 1)
    last = (named["end_ns"].to_numpy() * STRIP_BINS // end_ns).clip(0, STRIP_BINS - 1)
    counts = np.minimum(last - first + 1, STRIP_BINS)
    which = np.repeat(np.arange(len(named)), counts)
    place = (
        first[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    ).clip(0, STRIP_BINS - 1)
    took[place] = named["took"].to_numpy()[which]  # in order of length: the longest is written last
    cause[place] = named["cause"].to_numpy()[which]
    return took, cause.tolist()


def _resampled(lane: Lane, end_ns: int) -> Any:
    middles = (np.arange(STRIP_BINS) + 0.5) * end_ns / STRIP_BINS
    place = np.searchsorted(lane.time_ns, middles, side="right") - 1
    return np.where(place >= 0, lane.value[place.clip(0)], 0.0)


def _notes(
    trace: Trace,
    steps: pl.DataFrame,
    lanes: Tracks,
    charged: pl.DataFrame,
    is_large: bool,
    stacks: StackBlocks,
) -> tuple[str, ...]:
    notes: list[str] = []
    ranks = len(trace.ranks)
    if ranks > len(lanes.ranks):
        shown = ", ".join(str(rank) for rank in lanes.ranks)
        notes.append(
            f"Ranks {shown} of {ranks} have lanes: the slowest, the fastest, and some between."
        )
    if lanes.left_out:
        notes.append(f"{lanes.left_out} worker processes have no lane.")
    if is_large:
        notes.append(
            f"{trace.num_spans:,} spans: those around the longest steps, the start, a median step"
            " and evenly from the run are exact; elsewhere the shares of time and the longest span"
            " in each of some thousand bins are shown."
        )
    if stacks.every > 1:
        notes.append(f"Of the samples of stacks, one of {stacks.every} is in the page.")
    if len(charged) < len(
        steps.filter(pl.col("rank").is_in([rank for rank in lanes.ranks if rank is not None]))
    ):
        notes.append("Of the steps, the longest of each few consecutive ones are in the timeline.")
    return tuple(notes)
