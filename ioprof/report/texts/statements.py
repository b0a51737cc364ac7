"""What the reports say below the table of causes: one list of statements, worded once, for the
terminal and for the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.analysis.reads.storage_bytes import are_untimed, import_bytes
from ioprof.format.run_record import CauseShare, DatasetRecord, Demand, Reason, Summary
from ioprof.report.texts.catalogue.answer import untimed_text
from ioprof.report.texts.cpu_statements import cpu_text
from ioprof.report.texts.epoch_statements import epochs_text
from ioprof.report.texts.finding_statements import finding_lines
from ioprof.report.texts.import_statements import device_text, more_text, steps_text
from ioprof.report.texts.units import MISSING, amount, clean, count, duration, percent, rate, shares
from ioprof.report.texts.whole_job import window_text

COMPLETE: Final = "complete"
"""The `status` of a run that came to its end."""
INTERRUPTED: Final = "interrupted"
"""That of one that was stopped: by Ctrl-C, or by its scheduler."""

_LONGEST_COMMAND: Final = 240
"""Characters, three lines of a terminal; a longer command is cut in its middle: run.json has it."""
_LEAST_PHASE_SHARE: Final = 0.01  # of the job, for a phase that is named
_MOST_DEVICES: Final = 4  # in a report; summary.json has all
_MOST_LIBRARIES: Final = 4
_LEAST_UNTIMED: Final = 0.05  # of the accesses, from which on it is said that they have no time
_LEAST_RESIDUAL: Final = 0.02  # of a step, for a part of the residual that is named
_LEAST_TIMES_READ: Final = (
    1.5  # that bytes of files were read on average, from which on that is told
)
_MOST_STAGES: Final = 8
_OVERLAP_NAMES: Final = {
    "h2d": "copies to the device",
    "d2h": "copies to the host",
    "storage": "reads",
    "decode": "decode",
    "communication": "exchange",
}


@dataclass(frozen=True)
class Statement:
    """One line of a report."""

    label: str
    text: str
    basis: str | None = None
    """How the numbers came to be, where one word holds for all of them; one of
    `ioprof.format.schema.BASES`."""


@dataclass(frozen=True)
class CauseRow:
    """One row of the table of causes, as printed."""

    cause: str
    seconds: str
    share: str
    basis: str
    reason: str | None
    detail: str | None = None
    """The largest named part, and its share of all steps' time."""
    workers: str = ""
    """Share of the workers' time."""
    gain: str = ""
    """What the job would gain if it cost nothing."""


def statements(summary: Summary) -> tuple[Statement, ...]:
    """The lines below the table of causes, in the order in which every report shows them."""
    return (
        *(
            [Statement("these figures", window_text(summary), "measured")]
            if window_text(summary)
            else []
        ),
        _throughput(summary),
        _steps(summary),
        *_imported(summary),
        *_stages(summary),
        *_ceilings(summary),
        *job_statements(summary),
        *(
            [Statement("prediction", epochs_text(summary.prediction), "predicted")]
            if summary.prediction
            else []
        ),
        _overlap(summary),
        *_collectives(summary),
        *storage_statements(summary),
        *_devices(summary),
        *_io_pressure(summary),
        *([Statement("CPU", cpu_text(summary.cpu), "measured")] if summary.cpu else []),
        *(Statement(*line) for line in finding_lines(summary)),
        _demand(summary),
        _capture(summary),
        Statement("clocks", clocks_text(summary)),
    )


_LEAST_GAIN: Final = 0.5  # percent, up to which a gain has no range


def cause_rows(causes: Sequence[CauseShare]) -> tuple[CauseRow, ...]:
    """The table of causes with decimals that add up: the shares to 100.0, if any cause took
    time.
    """
    percentages = shares([entry.share for entry in causes])
    return tuple(
        CauseRow(
            entry.cause,
            seconds(entry.seconds),
            share,
            "" if entry.seconds is None else entry.basis,
            entry.reason,
            _detail(entry),
            *_replayed(entry),
        )
        for entry, share in zip(causes, percentages, strict=True)
    )


def _replayed(entry: CauseShare) -> tuple[str, str]:
    """The columns that rest on a replay: shares of the workers' time, and of a step's time."""
    workers = "" if entry.workers_share is None else f"{100 * entry.workers_share:.1f}"
    if entry.gain is None:
        return workers, ""
    share, low, high = (
        100 * max(0.0, value) for value in (entry.gain.share, entry.gain.low, entry.gain.high)
    )
    return workers, f"{share:.1f} ({low:.0f}-{high:.0f})" if high >= _LEAST_GAIN else f"{share:.1f}"


def _detail(entry: CauseShare) -> str | None:
    """The largest named part of a cause and its share, in percent of all steps' time."""
    if not entry.details:
        return None
    first = entry.details[0]
    return f"{percent(first.share)} {clean(shortened(first.name, 34), 36)}"


def total_row(causes: Sequence[CauseShare]) -> CauseRow:
    """The last row of that table."""
    known = [entry.seconds for entry in causes if entry.seconds is not None]
    return CauseRow(
        "total",
        seconds(sum(known) if known else None),
        "100.0" if sum(known) > 0 else MISSING,
        "",
        None,
    )


def seconds(value: float | None) -> str:
    """A column of seconds: three decimals, because the sum of many steps is compared with single
    reads.
    """
    return MISSING if value is None else f"{value:,.3f}"


def failures(summary: Summary) -> tuple[str, ...]:
    """What went wrong with the run, one sentence each; empty if it came to its end."""
    status = summary.run.status or "unknown"
    is_snapshot = summary.whole_job is not None and not summary.whole_job.ended
    sentences = [
        clean(failure.what if failure.rank is None else f"rank {failure.rank}: {failure.what}", 300)
        for failure in summary.run.failures
    ]
    if (status == COMPLETE or is_snapshot) and not sentences:
        return ()
    how = (
        stopped_text(summary)
        if status == INTERRUPTED
        else f"the run did not complete (status: {clean(status)}); the numbers cover what was"
        " recorded"
    )
    return (how, *first_of(sentences))


def failure_lines(summary: Summary) -> tuple[str, ...]:
    """`failures` as lines of a terminal: a job that was stopped did not fail."""
    if not (found := failures(summary)):
        return ()
    first, *others = found
    if summary.run.status == INTERRUPTED:
        return (f"{first[:1].upper()}{first[1:]}.", *(f"FAILED: {line}" for line in others))
    return tuple(f"FAILED: {line}" for line in found)


def stopped_text(summary: Summary) -> str:
    """After how many steps a job was stopped."""
    steps, ranks = summary.steps.count, len(summary.steps.per_rank)
    if not steps:
        return "stopped before a step was completed"
    each = " of each rank" if ranks > 1 else ""
    after = f"stopped after {count(steps)} step{'' if steps == 1 else 's'}{each}"
    return f"{after}; the numbers cover what was recorded"


def unseen(summary: Summary) -> tuple[str, ...]:
    """What the run did and the recording cannot show, one sentence each."""
    more = more_text(summary)
    sentences = [*summary.capture.not_seen, *([more] if more else [])]
    return first_of([clean(sentence, 300) for sentence in sentences])


def first_of(sentences: Sequence[str], limit: int = 20) -> tuple[str, ...]:
    """The sentences, or the first `limit` of them and how many more there are."""
    more = len(sentences) - limit
    return (*sentences[:limit], f"and {more:,} more") if more > 0 else tuple(sentences)


def title(summary: Summary) -> str:
    """The run's name, safe to show."""
    return clean(summary.run.name or "run")


def identity(summary: Summary) -> str:
    """The run's name and the command that it recorded, safe to show."""
    command = summary.run.command
    return f"{title(summary)}: {clean(command, _LONGEST_COMMAND)}" if command else title(summary)


def setting(summary: Summary) -> str:
    """One line: dataset, loader, libraries, device, ranks, workers, batch size, and the rank that
    loads for all.
    """
    run = summary.run
    parts = (
        dataset(run.dataset),
        None if run.loader is None else f"{clean(run.loader)} loader",
        " and ".join(clean(name, 40) for name in run.libraries[:_MOST_LIBRARIES]),
        device(summary),
        None if run.ranks is None else f"{run.ranks} rank{'' if run.ranks == 1 else 's'}",
        (
            None
            if run.workers is None
            else (
                f"{run.workers}"
                f" worker{'' if run.workers == 1 else 's'}{' per rank' if run.workers else ''}"
            )
        ),
        None if run.batch_size is None else f"batch {run.batch_size}",
        None if run.loading_rank is None else f"rank {run.loading_rank} loads for all ranks",
    )
    return ", ".join(text for text in parts if text)


def dataset(record: DatasetRecord | None) -> str:
    """The dataset's name, and its layout and image where the run recorded them."""
    if record is None:
        return ""
    words = (record.name, record.layout, record.image.transform if record.image else None)
    return " ".join(clean(word, 40) for word in words if word)


def device(summary: Summary) -> str:
    """The device; an emulated one is called so."""
    name = clean(summary.run.device or "")
    return (
        f"emulated device {name.removeprefix('emulated:')}"
        if is_emulated(summary) and name
        else name
    )


def is_emulated(summary: Summary) -> bool:
    """Whether the accelerator was a clock."""
    return summary.run.device_basis == "emulated"


def is_on_cpu(summary: Summary) -> bool:
    """Whether the model computed on the CPU, so that there was no accelerator."""
    return summary.run.device == "cpu" and not is_emulated(summary)


def with_basis(statement: Statement) -> str:
    """The statement's text, followed by its basis unless it was measured or has none."""
    text, basis = statement.text, statement.basis
    return text if basis in (None, "measured", "unknown") else f"{text} ({basis})"


def clocks_text(summary: Summary) -> str:
    """How the clocks were brought together, and how far that can be trusted."""
    nanoseconds = summary.clocks.uncertainty_ns
    known = (
        "no uncertainty"
        if nanoseconds == 0
        else f"uncertainty {duration((nanoseconds or 0) / 1e9)}"
    )
    bound = "uncertainty not known" if nanoseconds is None else known
    return f"{clean(summary.clocks.method, 120)}; {bound}"


def _throughput(summary: Summary) -> Statement:
    found = summary.throughput
    if found.samples_per_s is None and found.steady_samples_per_s is None:
        if summary.steps.mean_s:
            steps = f"{rate(1 / summary.steps.mean_s)} steps/s per rank"
            return Statement(
                "throughput", f"{steps}; samples not known: no batch size was recorded", found.basis
            )
        return Statement("throughput", "not known: no step was recorded")
    text = (
        f"{rate(found.steady_samples_per_s)} samples/s steady, {rate(found.samples_per_s)} with"
        " warm-up"
        if found.read_at_start_ratio is None
        else f"{rate(found.samples_per_s)} samples/s with warm-up, which read"
        f" {percent(found.read_at_start_ratio)} of all bytes from storage"
    )
    if found.device_samples_per_s:
        own = found.device_samples_per_s
        reached = (
            f" ({percent(found.steady_samples_per_s / own)} reached)"
            if found.steady_samples_per_s is not None
            else ""
        )
        emulated = ", emulated" if is_emulated(summary) and found.basis != "emulated" else ""
        text += f"; the devices alone: {rate(own)}{emulated}{reached}"
    return Statement("throughput", text, found.basis)


def _stages(summary: Summary) -> Iterator[Statement]:
    """How much of their time the stages of a pipeline had nothing to compute, beside what the
    schedule alone makes of it.
    """
    stages, parts, ranks = summary.run.stages, summary.run.microbatches, summary.steps.per_rank
    waits = [rank.straggler_s for rank in ranks if rank.straggler_s is not None]
    wall_s = sum(rank.wall_s for rank in ranks)
    if not stages or stages < 2 or not parts or not waits or not wall_s:
        return
    least = (
        f" ({percent((stages - 1) / (parts + stages - 1))} with stages of the same time:"
        " (p-1)/(m+p-1))"
    )
    compute = ", ".join(
        duration(rank.compute_s / rank.steps)
        for rank in ranks[:_MOST_STAGES]
        if rank.compute_s and rank.steps
    )
    more = " and others" if len(ranks) > _MOST_STAGES else ""
    text = (
        f"{count(stages)} stages, {count(parts)} microbatches: bubbles take"
        f" {percent(sum(waits) / wall_s)} of the ranks' time"
    )
    yield Statement(
        "pipeline",
        f"{text}{least if stages <= len(ranks) else ''}; a step computes {compute}{more}, by rank",
        "measured",
    )


def _steps(summary: Summary) -> Statement:
    steps = summary.steps
    text = (
        f"{count(steps.count)} per rank, {count(steps.warmup)} of them warm-up; "
        f"mean {duration(steps.mean_s)}, p50 {duration(steps.p50_s)}, p95 {duration(steps.p95_s)}"
    )
    if found := steps_text(summary):
        return Statement("steps", f"{text}; {found}", "derived")
    return Statement("steps", text, "emulated" if is_emulated(summary) else "measured")


def _imported(summary: Summary) -> Iterator[Statement]:
    """Of a run that was imported: its devices."""
    if found := device_text(summary):
        yield Statement("device", found, "measured")


def _ceilings(summary: Summary) -> Iterator[Statement]:
    found = summary.ceilings
    if found is None:
        return
    workers = f"{count(found.workers)} worker{'' if found.workers == 1 else 's'}"
    supply = (
        f"the rank fetches for {duration(found.supply_s)}"
        if found.is_serial
        else f"{workers} {'needs' if found.workers == 1 else 'need'} {duration(found.supply_s)}"
    )
    joined = "one after the other" if found.is_serial else "at the same time"
    text = (
        f"{supply} and the loop {duration(found.consumer_s)} per step, {joined}:"
        f" {duration(found.predicted_s)} of the {duration(found.step_s)} that a step takes"
    )
    named = [
        f"{part.name} {duration(part.seconds)}"
        for part in found.residuals
        if part.seconds >= _LEAST_RESIDUAL * found.step_s
    ]
    beyond = (
        f"; beyond {'their sum' if found.is_serial else 'the longer of the two'}:"
        f" {', '.join(named)}"
    )
    yield Statement("ceilings", f"{text}{beyond}" if named else text, "derived")


def job_statements(summary: Summary) -> Iterator[Statement]:
    """How long the job took, and for what."""
    ledger = summary.ledger
    shown = [phase for phase in ledger.phases if (phase.share or 0.0) >= _LEAST_PHASE_SHARE]
    if ledger.wall_s is None or not shown:
        return
    parts = [f"{phase.name} {duration(phase.seconds)}" for phase in shown]
    if rest := sum(phase.seconds for phase in ledger.phases if phase not in shown):
        parts.append(f"other {duration(rest)}")
    longest = ledger.imports[0] if ledger.imports else None
    if longest is not None and longest.seconds >= _LEAST_PHASE_SHARE * ledger.wall_s:
        parts = [
            f"{part} ({clean(longest.name, 40)} {duration(longest.seconds)})"
            if part.startswith("imports")
            else part
            for part in parts
        ]
    of_all = "" if ledger.is_whole else " of its ranks"
    yield Statement("job", f"{duration(ledger.wall_s)}{of_all}: {', '.join(parts)}", "measured")


def _collectives(summary: Summary) -> Iterator[Statement]:
    found = summary.collectives
    if found is None:
        return
    means = {
        "the GPU's timer": found.by_gpu_timer,
        "what the host saw": found.by_host,
        "network transfers": found.by_network,
    }
    timed = [f"{count(number)} timed by {name}" for name, number in means.items() if number]
    versions = " and ".join(map(str, found.apis))
    seen = (
        f"{count(found.operations)} by NCCL's profiler"
        f" interface{f' {versions}' if versions else ''}"
    )
    others = (
        [f"{count(found.other_spans)} on a device by Kineto or the job"]
        if found.other_spans
        else []
    )
    twice = (
        [f"of these, {count(found.seen_by_others)} are the same ones and count once"]
        if found.seen_by_others
        else []
    )
    yield Statement(
        "collectives",
        "; ".join([f"{seen}: {', '.join(timed) or 'none with times'}", *others, *twice]),
        "measured",
    )


def _overlap(summary: Summary) -> Statement:
    entries = {name: summary.overlap[name] for name in _OVERLAP_NAMES if name in summary.overlap}
    known = {name: entry for name, entry in entries.items() if entry.hidden_ratio is not None}
    if not known:
        return Statement("overlap", "not known: no activity was recorded while the device computed")
    parts = [
        f"{_OVERLAP_NAMES[name]} {percent(entry.hidden_ratio)} of {duration(entry.total_s)}"
        for name, entry in known.items()
    ]
    bases = {entry.basis for entry in known.values()}
    return Statement(
        "overlap",
        f"hidden behind compute: {', '.join(parts)}",
        "emulated" if "emulated" in bases else min(bases),
    )


def storage_statements(summary: Summary) -> Iterator[Statement]:
    """What the job read, from where, and how long a read took."""
    storage = summary.storage
    if storage.bytes_socket or storage.bytes_pipe:
        text = (
            f"{amount(storage.bytes_socket)} from sockets, {amount(storage.bytes_pipe)} from pipes,"
            " sent by other programs"
        )
        yield Statement("received", text, "measured")
    if not storage.accesses:
        yield Statement("storage", "no read was recorded")
        yield Statement("one read", "no read was recorded")
        return
    sources = (storage.bytes_from_storage, storage.bytes_from_cache, storage.bytes_unknown)
    names = ("storage", "page cache", "unknown")
    split = (
        ", ".join(f"{share}% {name}" for share, name in zip(shares(sources), names, strict=True))
        if sum(sources)
        else "no byte"
    )
    unsure = "by threads of the training process, and whether for batches is not known"
    others = (
        f"; {amount(storage.thread_bytes)} more were read {unsure}" if storage.thread_bytes else ""
    )
    others += (
        f"; {amount(storage.other_bytes)} more were read for other purposes"
        if storage.other_bytes
        else ""
    )
    yield Statement(
        "storage",
        f"{count(storage.accesses)} accesses, {amount(storage.bytes)}: {split}{others}",
        "measured",
    )
    if storage.read_p50_s is None:
        yield Statement("one read", "not known: of no access the time is known")
        return
    text = (
        f"p50 {duration(storage.read_p50_s)}, p95 {duration(storage.read_p95_s)}, p99"
        f" {duration(storage.read_p99_s)}"
    )
    rest = (
        f" of the {percent(1 - storage.untimed / storage.accesses)} of the accesses that have a"
        " time of their own"
    )
    yield Statement(
        "one read",
        f"{text}{rest if storage.untimed >= _LEAST_UNTIMED * storage.accesses else ''}",
        "measured",
    )


def _devices(summary: Summary) -> Iterator[Statement]:
    for found in summary.storage.devices[:_MOST_DEVICES]:
        text = f"{amount(found.asked_bytes)} asked for"
        if found.delivered_bytes is None:
            text += f"; bytes delivered not known: {clean(found.reason or MISSING, 200)}"
        else:
            text += (
                f", {'at most ' if found.is_at_most else ''}{amount(found.delivered_bytes)}"
                " delivered to all programs"
            )
        where = (
            f"{clean(found.file_system, 20)} at {clean(found.mount_point, 40)},"
            f" {clean(found.kind, 10)}"
        )
        yield Statement("device", f"{clean(found.device, 40)} ({where}): {text}", "measured")


def _io_pressure(summary: Summary) -> Iterator[Statement]:
    for found in summary.storage.stalls[:_MOST_DEVICES]:
        if found.some_s is not None and found.full_s is not None:
            stalled = (
                f"some tasks stalled {duration(found.some_s)}, all tasks {duration(found.full_s)}"
                f" of {duration(found.wall_s)}"
            )
            yield Statement(
                "I/O pressure",
                f"{stalled} (PSI, all programs of {clean(found.host, 40)})",
                "measured",
            )


def _demand(summary: Summary) -> Statement:
    demand = summary.demand
    if demand.bytes_per_s is None:
        why = (
            demand.reason.text
            if demand.reason
            else "no read was recorded, or the devices' rate is not known"
        )
        few = (
            f" ({demand.num_reads:,} reads)"
            if demand.reason is Reason.TOO_FEW_READS and demand.num_reads
            else ""
        )
        return Statement("demand", f"not known: {why}{few}{_cores(demand)}")
    needed = f"{'at least ' if demand.is_least else ''}{amount(demand.bytes_per_s)}/s{' of storage' if demand.is_delivered else ''}"  # noqa: E501
    mean = demand.mean_bytes_per_s
    uneven = (
        ""
        if mean is None
        else (
            f" (in the tenth of the batches that need most; {amount(mean)}/s on"
            f" average{_later(demand)})"
        )
    )
    busy = "training loops, which take longer than their devices," if demand.by_loop else "devices"
    at = f"keep the {busy} busy at {rate(demand.at_samples_per_s)} samples/s"
    reads = "" if demand.reads_per_s is None else f" in {rate(demand.reads_per_s)} reads/s"
    text = f"{needed}{reads}{uneven} {at}"
    if demand.got_bytes_per_s is not None and demand.devices_fed is not None:
        fed = f"{demand.devices_fed:.2g} of such {'loops' if demand.by_loop else 'devices'}"
        text += f"; this run got {amount(demand.got_bytes_per_s)}/s, which feeds {fed}"
    found = summary.findings.reads
    if (
        not demand.is_delivered
        and found.file_bytes
        and found.times_read
        and found.times_read >= _LEAST_TIMES_READ
    ):
        times = (
            f"each of the {amount(found.file_bytes)} in the files was read at least"
            f" {found.times_read:,.1f} times on average"
        )
        text += f"; {times}, and what the page cache keeps is read from storage once"
    return Statement("demand", f"{text}{_cores(demand)}", demand.basis)


def _later(demand: Demand) -> str:
    """What batches need after those that need most, as the end of a clause: less storage holds up
    the first ones alone.
    """
    tenths = demand.tenths_bytes_per_s
    if tenths is None or max(tenths) != tenths[0]:
        return ""
    second, last = tenths[1], tenths[-1]
    return (
        f"; {amount(second)}/s in the second tenth and {amount(last)}/s in the last, so less holds"
        " up the first batches alone"
    )


def _cores(demand: Demand) -> str:
    """The cores that make batches at that rate, as the end of a clause."""
    return f"; making the batches takes {demand.cores:.1f} cores then" if demand.cores else ""


def _capture(summary: Summary) -> Statement:
    capture, coverage = summary.capture, summary.capture.coverage_ratio
    seen = (
        "coverage not known"
        if coverage is None
        else f"{percent(coverage, 2)} of the bytes in proc io counters"
    )
    if capture.storage_coverage_ratio is not None:
        seen = (
            f"{percent(capture.storage_coverage_ratio, 2)} of"
            f" {amount(capture.storage_bytes_kernel)} fetched from storage"
        )
        imports = import_bytes(capture)
        missing = [
            f"{imports / 1e6:,.0f} MB came by mapped files while modules were imported"
            if imports
            else "",
            untimed_text(capture) if are_untimed(capture) else "",
        ]
        if any(missing):
            seen += f" ({', '.join(filter(None, missing))})"
    ratio = capture.overhead_ratio
    why = f" ({capture.overhead_reason.text})" if capture.overhead_reason else ""
    cost = (
        f"cost not known{why}"
        if ratio is None
        else f"cost at least {percent(ratio, 2)} of the job's time"
    )
    if (
        ratio is not None
        and capture.overhead_ratio_most is not None
        and capture.overhead_ratio_most > ratio
    ):
        cost = (
            f"cost {percent(ratio, 2)} to {percent(capture.overhead_ratio_most, 2)} of the job's"
            " time"
        )
    each = (
        ""
        if capture.ns_per_event is None
        else f" ({duration(capture.ns_per_event / 1e9)} per event)"
    )
    return Statement(
        "capture",
        f"{count(capture.events)} events, {count(capture.lost)} lost; {seen}; {cost}{each}",
    )
