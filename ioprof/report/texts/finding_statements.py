"""What was found besides the causes, as lines of a report: loaders, the workers' time, reads, and
how waits and epochs vary.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.format.run_record import (
    FileReads,
    Findings,
    LoaderTime,
    QueueDepth,
    RankSkew,
    ReadGroup,
    Summary,
    Trend,
    Waiting,
    WorkersTime,
)
from ioprof.report.texts.units import amount, clean, count, duration, percent, rate

_LEAST_PART: Final = 0.01
_MOST_NAMED: Final = 4
"""Named parts of a cause in a line."""
_MOST_LOADERS: Final = 4
_MOST_EVEN: Final = 0.5
"""Part of the batches in which 95 % of the waiting lies, up to which that is said."""
_LEAST_FILE_SHARE: Final = 0.05
"""Of the time of all reads, for a slowest file that is named."""

Line = tuple[str, str, str]
"""Label, text and basis."""


def finding_lines(summary: Summary) -> Iterator[Line]:
    """All lines of this module."""
    found = summary.findings
    if found.workers is not None and summary.run.imported_from is None:
        yield "workers", _workers(found.workers), "measured"
    if len(found.loaders) > 1 or any(
        loader.fewest_samples != loader.most_samples for loader in found.loaders
    ):
        for loader in found.loaders[:_MOST_LOADERS]:
            yield "loader", _loader(loader), "measured"
    if found.waiting is not None and found.waiting.most_ratio <= _MOST_EVEN:
        yield "waits", _waits(found.waiting), "measured"
    yield from _reads(found)
    if found.frames is not None:
        use = found.frames
        yield (
            "frames",
            f"of {count(use.decoded)} that {use.library} decoded {count(use.used)} were used"
            f" ({percent(min(1.0, use.used / use.decoded))})",
            "measured",
        )
    if found.skew and found.skew[0].behind_s:
        yield "ranks", _skew(found.skew[0], len(found.skew)), "measured"
    if found.trend is not None:
        yield "epochs", _trend(found.trend), "measured"


def _workers(found: WorkersTime) -> str:
    causes = [part for part in found.parts if part.name is None and part.share >= _LEAST_PART]
    shown = []
    for cause in sorted(causes, key=lambda part: -part.share):
        named = [
            part
            for part in found.parts
            if part.cause == cause.cause and part.name is not None and part.share >= _LEAST_PART
        ]
        parts = ", ".join(
            f"{clean(part.name or '', 40)} {percent(part.share)}" for part in named[:_MOST_NAMED]
        )
        label = (
            "Python and waiting in the dataset"
            if cause.cause == "loader"
            else cause.cause.replace("_", " ")
        )
        shown.append(f"{percent(cause.share)} {label}{f' ({parts})' if parts else ''}")
    return f"made batches for {duration(found.seconds)}: {', '.join(shown)}"


def _loader(found: LoaderTime) -> str:
    fewest, most = found.fewest_samples, found.most_samples
    size = (
        ""
        if fewest is None
        else f" of {count(fewest)}"
        if fewest == most
        else f" of {count(fewest)} to {count(most)}"
    )
    samples = "" if found.samples is None else f" ({count(found.samples)} samples)"
    purpose = " for validation" if found.purpose == "validate" else ""
    return (
        f"{clean(found.name, 40)}: {count(found.batches)} batches{size}{samples}{purpose}, waited"
        f" {duration(found.waited_s)} for them, made in {duration(found.making_s)}"
    )


def _waits(found: Waiting) -> str:
    return (
        f"95 % of the {duration(found.seconds)} of waiting lie in {percent(found.most_ratio)} of"
        f" {count(found.waits)} batches, {percent(found.tenth_ratio)} in a tenth of them"
    )


def _reads(found: Findings) -> Iterator[Line]:
    whole = [group for group in found.reads.groups if group.least_bytes is None]
    if len(whole) > 1:
        yield "by source", "; ".join(map(_of_source, whole)), "measured"
    spent_s = sum(group.seconds for group in whole)
    if (
        spent_s
        and found.reads.files
        and found.reads.files[0].seconds >= _LEAST_FILE_SHARE * spent_s
    ):
        yield "slow files", _files(found.reads.files, spent_s), "measured"
    if found.reads.depth is not None:
        yield "in progress", _depth(found.reads.depth), "measured"
    for pattern in found.reads.patterns:
        yield "reading", f"{pattern.seen}: {pattern.remedy}", "measured"


def _files(files: Sequence[FileReads], spent_s: float) -> str:
    named = [entry for entry in files if entry.seconds >= _LEAST_FILE_SHARE * spent_s][:2]
    parts = []
    for entry in named:
        at = "" if entry.max_offset is None else f" at {amount(entry.max_offset)}"
        parts.append(
            f"{clean(shortened(entry.path), 60)} {duration(entry.seconds)}"
            f" ({percent(entry.seconds / spent_s)} of all reads; its slowest"
            f" {duration(entry.max_s)}{at})"
        )
    return "; ".join(parts)


def _of_source(group: ReadGroup) -> str:
    times = (
        "not timed"
        if group.p50_s is None
        else f"p50 {duration(group.p50_s)}, p99 {duration(group.p99_s)}"
    )
    return f"{group.source.replace('_', ' ')} {times}"


def _depth(found: QueueDepth) -> str:
    text = (
        f"{found.mean:.1f} reads from storage at a time (at most {found.most:.1f}) by"
        f" {count(found.readers)} readers: {rate(found.reads_per_s)} reads/s of"
        f" {duration(found.latency_s)}"
    )
    if found.bound == "latency":
        return f"{text}; bound by latency, so more readers get more ({found.reason})"
    if found.bound == "throughput":
        return (
            f"{text}; bound by throughput, so fewer bytes help and more readers do not"
            f" ({found.reason})"
        )
    return f"{text}; not known whether bound by latency or by throughput ({found.reason})"


def _skew(found: RankSkew, ranks: int) -> str:
    first, last = found.over_time[0], found.over_time[-1]
    changed = (
        f" ({duration(first)} at first, {duration(last)} in the end)"
        if len(found.over_time) > 1
        else ""
    )
    return (
        f"rank {found.rank} arrives last at the exchange in {percent(found.last_ratio)} of the"
        f" steps, on average {duration(found.behind_s)} after the first of {count(ranks)}"
        f" ranks{changed}"
    )


def _trend(found: Trend) -> str:
    first, last = found.epochs[0], found.epochs[-1]
    text = (
        f"{count(len(found.epochs))}, a step took {duration(first.step_s)} in the first and"
        f" {duration(last.step_s)} in the last"
    )
    if found.growth_ratio is not None and found.cause is not None:
        way = "longer" if found.growth_ratio > 0 else "shorter"
        text += (
            f"; since the second epoch it is {percent(abs(found.growth_ratio))} {way}, because of"
            f" {found.cause.replace('_', ' ')} ({duration(abs(found.cause_s or 0.0))} per step)"
        )
    if first.accesses or last.accesses:
        text += (
            f"; from storage: {amount(first.bytes_from_storage)} in the first,"
            f" {amount(last.bytes_from_storage)} in the last"
        )
    return text
