"""What was found besides the causes, as lines of a report: loaders, the workers' time, reads, and
how waits and epochs vary.
"""

from collections.abc import Iterator
from typing import Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.format.run_record import Findings, Summary, WorkersTime
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.catalogue.sentences import STAGES
from ioprof.report.texts.units import clean, count, duration, percent

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
_LOADER: Final = (
    "{found.name:clean40}: {found.batches:count} batches[{same:if} of {found.fewest_samples:count}|"
    " of {found.fewest_samples:count} to {found.most_samples:count}][ ({found.samples:count}"
    " samples)][{validates:if} for validation], waited {found.waited_s:duration} for them, made in"
    " {found.making_s:duration}"
)
_WAITS: Final = (
    "95 % of the {found.seconds:duration} of waiting lie in {found.most_ratio:percent} of"
    " {found.waits:count} batches, {found.tenth_ratio:percent} in a tenth of them"
)
_FILE: Final = (
    "{path} {file.seconds:duration} ({ratio:percent} of all reads; its slowest"
    " {file.max_s:duration}[ at {file.max_offset:amount}])"
)
_SOURCE: Final = (
    "{group.source:words} [p50 {group.p50_s:duration}, p99 {group.p99_s:duration}|not timed]"
)
_RETURNED: Final = (
    "{read:amount}[ of {file}] for a [{of_sample:if}sample|batch], of which the dataset returned"
    " {returned:amount} ({found.ratio:,.1f} × as much was read)"
)
_DEPTH: Final = (
    "{found.mean:.1f} reads from storage at a time (at most {found.most:.1f}) by"
    " {found.readers:count} readers: {found.reads_per_s:rate} reads/s of"
    " {found.latency_s:duration};"
    " [{latency:if}bound by latency, so more readers get more|{throughput:if}bound by throughput,"
    " so"
    " fewer bytes help and more readers do not|not known whether bound by latency or by throughput]"
    " ({found.reason})"
)
_SKEW: Final = (
    "rank {found.rank} arrives last at the exchange in {found.last_ratio:percent} of the steps, on"
    " average {found.behind_s:duration} after the first of {ranks:count} ranks[{several:if}"
    " ({first:duration} at first, {last:duration} in the end)]"
)
_TREND: Final = (
    "{epochs:count}; a step took {first.step_s:duration} in the first and {last.step_s:duration} in"
    " the last[; since the second epoch it is {growth:percent} [{grew:if}longer|shorter], because"
    " of"
    " {found.cause:words} ({cause_s:length} per step)][{reads:if}; from storage:"
    " {first.bytes_from_storage:amount} in the first, {last.bytes_from_storage:amount} in the last]"
)


def finding_lines(summary: Summary) -> Iterator[Line]:
    """All lines of this module."""
    found = summary.findings
    if found.workers is not None and summary.run.imported_from is None:
        yield "workers", _workers(found.workers), "measured"
    if len(found.loaders) > 1 or any(
        loader.fewest_samples != loader.most_samples for loader in found.loaders
    ):
        for loader in found.loaders[:_MOST_LOADERS]:
            is_same = loader.fewest_samples == loader.most_samples
            validates = loader.purpose == "validate"
            text = tell(_LOADER, found=loader, same=is_same, validates=validates)
            yield "loader", text, "measured"
    if found.waiting is not None and found.waiting.most_ratio <= _MOST_EVEN:
        yield "waits", tell(_WAITS, found=found.waiting), "measured"
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
        over = found.skew[0].over_time
        ends = {"first": over[0], "last": over[-1], "several": len(over) > 1}
        yield "ranks", tell(_SKEW, found=found.skew[0], ranks=len(found.skew), **ends), "measured"
    if trend := found.trend:
        first, last, growth = trend.epochs[0], trend.epochs[-1], trend.growth_ratio
        text = tell(
            _TREND,
            found=trend,
            epochs=len(trend.epochs),
            first=first,
            last=last,
            growth=None if growth is None else abs(growth),
            grew=(growth or 0.0) > 0,
            cause_s=trend.cause_s or 0.0,
            reads=first.accesses or last.accesses,
        )
        yield "epochs", text, "measured"


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
        label = STAGES.get(cause.cause, cause.cause)
        shown.append(f"{percent(cause.share)} {label}{f' ({parts})' if parts else ''}")
    return f"made batches for {duration(found.seconds)}: {', '.join(shown)}"


def _reads(found: Findings) -> Iterator[Line]:
    whole = [group for group in found.reads.groups if group.least_bytes is None]
    if len(whole) > 1:
        yield "by source", "; ".join(tell(_SOURCE, group=group) for group in whole), "measured"
    spent_s = sum(group.seconds for group in whole)
    slow = [each for each in found.reads.files if each.seconds >= _LEAST_FILE_SHARE * spent_s > 0]
    files = [
        tell(
            _FILE,
            file=each,
            path=clean(shortened(each.path), 60),
            ratio=each.seconds / spent_s,
        )
        for each in slow[:2]
    ]
    if files and slow[0] is found.reads.files[0]:
        yield "slow files", "; ".join(files), "measured"
    if (use := found.reads.returned) is not None:
        each = use.samples or 1.0
        told = {"read": use.read_bytes / each, "returned": use.returned_bytes / each}
        file = clean(shortened(use.file), 60) if use.file else None
        text = tell(_RETURNED, found=use, file=file, of_sample=use.samples is not None, **told)
        yield "read", text, "measured"
    if (depth := found.reads.depth) is not None:
        bound = {"latency": depth.bound == "latency", "throughput": depth.bound == "throughput"}
        yield "in progress", tell(_DEPTH, found=depth, **bound), "measured"
    for pattern in found.reads.patterns:
        yield "reading", f"{pattern.seen}: {pattern.remedy}", "measured"
