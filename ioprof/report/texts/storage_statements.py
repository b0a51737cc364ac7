"""What was trained, and what was done to storage and memory for a run, as lines of a report."""

from collections.abc import Iterable, Iterator
from typing import Final

from ioprof.analysis.charge.staging_cost import StagingCost, staging_cost
from ioprof.analysis.ranks.exchange_rate import exchange_rate
from ioprof.format.run_record import (
    DatasetRecord,
    DistinctBytes,
    MemoryLimitRecord,
    PageCacheRecord,
    RunRecord,
    StageRecord,
    Summary,
)
from ioprof.format.trace import Trace
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.statements import Statement
from ioprof.report.texts.training_statements import network_statements, training_statements
from ioprof.report.texts.units import MISSING, amount, clean, percent

_WHEN: Final = {"before": "resident before", "start": "at the start", "end": "at the end"}
_MOST_HOLDERS: Final = 3
_CACHE: Final = (
    "asked: {cache.asked:clean20}[; {states}][; by {methods}][{cache.start.reason:if}; not known of"
    " {cache.start.unknown_files:clean20} files: {cache.start.reason:clean150}][;"
    " {cache.lower.ratio:percent} at the start of what the file system lies on][; not known of what"
    " the file system lies on: {hidden:clean120}][; mapped by {holders}][{cache.reclaim:if};"
    " {cache.reclaim:clean80}][{is_shared:if}; of this host only: what servers and their disks have"
    " in memory is not known]"
)
_LIMIT: Final = (
    "{limit.asked_bytes:amount} by {limit.by:clean20}; peak {peak}, {rest} of it page cache at the"
    " end[; limit reached {limit.times_at_limit:,} times]"
)
_STAGED: Final = (
    "[{filling:if}{stage.filled_ratio:percent} of {stage.bytes:amount} written to"
    " {stage.to:clean60}"
    " while training, {cost.cost_s:duration} of each worker's time|{stage.reused:if}"
    "{stage.bytes:amount} were in {stage.to:clean60} already|{stage.bytes:amount} copied to"
    " {stage.to:clean60} before training in {cost.cost_s:duration}"
    " ({rate}/s[{stage.check_s:if}, {stage.check_s:duration} of it comparing the digest])]"
)
_BREAK_EVEN: Final = (
    "after {cost.epochs:,.1f} epochs: an epoch takes {cost.local_epoch_s:duration} on the copy,"
    " {cost.shared_epoch_s:duration} from the shared path with none of it in memory"
)
_MOST_LEFT_OUT: Final = 3
_DECODES: Final = {
    "roi": "the crop of each JPEG",
    "full": "each JPEG as a whole",
    "pillow": "each image as a whole",
}
_READAHEAD_REASONS: Final = {
    "asked": "asked for by --lmdb-readahead",
    "shared": "without it a file system of another host fetches page by page",
    "small window": (
        "the kernel would read ahead less than a record; the pages of each are announced to it"
        " instead"
    ),
    "fits in memory": "the data fits in memory, where what is read ahead stays until it is used",
    "larger than memory": (
        "the data does not fit in memory; the pages of each record are announced to the kernel"
        " instead"
    ),
    "lost": "what was read ahead was evicted before it was used",
}
"""The reasons of `LoadingRecord`."""


def run_statements(trace: Trace) -> tuple[Statement, ...]:
    """All lines of this module and of `training_statements`, for a run."""
    return (
        *training_statements(trace.run),
        *network_statements(trace.run, exchange_rate(trace)),
        *preparation_statements(trace.run),
        *loading_statements(trace.run),
        *staging_statements(trace.run.stage, staging_cost(trace)),
    )


def preparation_statements(run: RunRecord) -> tuple[Statement, ...]:
    """The lines on the dataset's scale, the page cache and the memory limit, where the run recorded
    them.
    """
    return (*_scale(run.dataset, run.own_place), *_cache(run.cache), *_limit(run.limit))


def loading_statements(run: RunRecord) -> Iterator[Statement]:
    """The lines on what the loader of the built-in job decoded, left out, and let the kernel read
    ahead.
    """
    loading, config = run.loading, run.config
    if loading is None:
        return
    if config.decode in _DECODES and (loading.decoder or config.decode == "pillow"):
        by = clean(loading.decoder or "Pillow", 80)
        is_whole = config.decode == "full" or (config.decode == "roi" and by == "simplejpeg")
        yield Statement(
            "decoding", f"{_DECODES['full' if is_whole else config.decode]}, by {by}", "measured"
        )
    if loading.num_left_out:
        shown = "; ".join(clean(name, 160) for name in loading.left_out[:_MOST_LEFT_OUT])
        more = (
            f"; and {loading.num_left_out - _MOST_LEFT_OUT:,} more"
            if loading.num_left_out > _MOST_LEFT_OUT
            else ""
        )
        yield Statement(
            "left out", f"{loading.num_left_out:,} images as corrupt: {shown}{more}", "measured"
        )
    if loading.lmdb_readahead is not None:
        why = _READAHEAD_REASONS.get(loading.lmdb_readahead_reason or "", MISSING)
        yield Statement(
            "LMDB readahead", f"{'on' if loading.lmdb_readahead else 'off'}: {why}", "measured"
        )


def uring_notes(summary: Summary) -> Iterator[str]:
    """Who read by io_uring in a way that could not be followed, and how much: a line."""
    names, found = summary.capture.uring_processes, summary.capture.uring_bytes_untimed
    if names and found:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"Not timed: {amount(found)} that {clean(names[0], 60)}{others} read by io_uring."


def _scale(dataset: DatasetRecord | None, place: DistinctBytes | None) -> Iterator[Statement]:
    if dataset is None or dataset.scale is None or dataset.scale == 1:
        return
    text = clean(
        (dataset.source or f"{dataset.scale:g}x of another dataset").partition(" (")[0], 120
    )
    if place and place.shared_bytes is not None and place.bytes:
        text += (
            f"; {percent(1 - place.shared_bytes / place.bytes)} of a sample has disk blocks of"
            " its own"
        )
    elif place and place.reason:
        text += f"; {clean(place.reason, 120)}"
    yield Statement("scale", text, "measured")


def _cache(cache: PageCacheRecord | None) -> Iterator[Statement]:
    if cache is None:
        return
    found = {"before": cache.before, "start": cache.start, "end": cache.end}
    states = [f"{percent(state.ratio)} {_WHEN[when]}" for when, state in found.items() if state]
    text = tell(
        _CACHE,
        cache=cache,
        states=", ".join(states),
        methods=_named(cache.start.methods, 40) if cache.start else None,
        hidden=cache.hidden_lower[0] if cache.hidden_lower else None,
        holders=_named(cache.held_by[:_MOST_HOLDERS], 60),
        is_shared=cache.kind == "shared",
    )
    yield Statement("page cache", text, "measured")


def _named(names: Iterable[str], length: int) -> str:
    return ", ".join(clean(name, length) for name in names)


def _limit(limit: MemoryLimitRecord | None) -> Iterator[Statement]:
    if limit is not None and limit.asked_bytes is not None:
        peak, rest = amount(limit.peak_bytes), amount(limit.page_cache_bytes)
        text = tell(_LIMIT, limit=limit, peak=peak, rest=rest)
        yield Statement("memory limit", text, "measured")


def staging_statements(
    stage: StageRecord | None, cost: StagingCost | None
) -> tuple[Statement, ...]:
    """The lines on what staging cost, and after how many epochs it has saved as much."""
    if cost is None or stage is None:
        return ()
    basis = cost.basis if cost.epochs else None
    return Statement("staging", _staged(stage, cost), "measured"), Statement(
        "break-even", _break_even(cost), basis
    )


def break_even_text(trace: Trace) -> str | None:
    """After how many epochs staging has saved what it cost; None: nothing was staged."""
    if trace.run.stage is None or (cost := staging_cost(trace)) is None:
        return None
    return _break_even(cost)


def _staged(stage: StageRecord, cost: StagingCost) -> str:
    rate = (
        amount(stage.copied_bytes / cost.cost_s) if stage.copied_bytes and cost.cost_s else MISSING
    )
    filling = stage.mode == "while-training"
    return tell(_STAGED, stage=stage, cost=cost, rate=rate, filling=filling)


def _break_even(cost: StagingCost) -> str:
    if cost.epochs is None:
        return cost.reason.text if cost.reason else "not known"
    return tell(_BREAK_EVEN, cost=cost)
