"""What the reports say below the table of causes: one list of statements, worded once, for the
terminal and for the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ioprof.analysis.charge.saves import SAMPLED
from ioprof.analysis.cpu.code_lines import shortened
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.reads.storage_bytes import are_untimed, import_bytes
from ioprof.format.run_record import CauseShare, DatasetRecord, ObjectStore, Reason, Summary
from ioprof.report.texts.catalogue.answer import untimed_text
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.cpu_statements import cpu_text
from ioprof.report.texts.epoch_statements import (
    epochs_text,
    interval_text,
    saves_text,
    start_text,
    to_first_step,
)
from ioprof.report.texts.finding_statements import finding_lines
from ioprof.report.texts.import_statements import device_text, more_text, steps_text
from ioprof.report.texts.units import MISSING, amount, clean, count, duration, percent, rate, shares
from ioprof.report.texts.whole_job import attempts_text, missing_text, window_text

COMPLETE: Final = "complete"
"""The `status` of a run that came to its end."""
INTERRUPTED: Final = "interrupted"
"""That of one that was stopped: by Ctrl-C, or by its scheduler."""

_LONGEST_COMMAND: Final = 240
"""Characters, three lines of a terminal; a longer command is cut in its middle: run.json has it."""
_LEAST_PHASE_SHARE: Final = 0.01  # of the job, for a phase that is named
_MOST_DEVICES: Final = 4  # in a report; summary.json has all
_MOST_LIBRARIES: Final = 4
_MOST_SENTENCES: Final = 20  # about failures, or what was not seen
_LEAST_UNTIMED: Final = 0.05  # of the accesses, from which on it is said that they have no time
_LEAST_RESIDUAL: Final = 0.02  # of a step, for a part of the residual that is named
_LEAST_TIMES_READ: Final = (
    1.5  # that bytes of files were read on average, from which on that is told
)
_LEAST_GATHERED: Final = 1.5
"""Batches per step: fewer are those that were loaded, and no step was made with."""
_MOST_STAGES: Final = 8
_MOST_STORES: Final = 4
_THROUGHPUT: Final = (
    "[{whole} samples/s with warm-up, which read {found.read_at_start_ratio:percent} of all bytes"
    " from storage|{steady} samples/s steady, {whole} with"
    " warm-up][{found.device_samples_per_s:if}; the devices alone:"
    " {found.device_samples_per_s:rate}[{emulated:if}, emulated][ ({reached:percent} reached)]]"
)
_CEILINGS: Final = (
    "[{found.is_serial:if}making batches takes the rank|making batches takes"
    " {found.workers:count} worker{found.workers:s}] {found.supply_s:duration} and the rest of the"
    " loop {found.consumer_s:duration} per step, [{found.is_serial:if}one after the other|at the"
    " same time]:"
    " {found.predicted_s:duration} of the {found.step_s:duration} that a step takes[; beyond"
    " [{found.is_serial:if}their sum|the longer of the two]: {named}]"
)
_RECEIVED: Final = (
    "{storage.bytes_socket:amount} from sockets, {storage.bytes_pipe:amount} from pipes, sent by"
    " other programs"
)
_STORAGE: Final = (
    "{storage.accesses:count} access{storage.accesses:es}, {storage.bytes:amount}:"
    " {split}[{storage.thread_bytes:if}; {storage.thread_bytes:amount} more were read by threads of"
    " the training process, and whether for batches is not known][{storage.other_bytes:if};"
    " {storage.other_bytes:amount} more were read for other purposes]"
)
_ONE_READ: Final = (
    "p50 {storage.read_p50_s:duration}, p95 {storage.read_p95_s:duration}, p99"
    " {storage.read_p99_s:duration}[ of the {timed:percent} of the accesses that have a time of"
    " their own]"
)
_DEVICE: Final = (
    "{found.device:clean40} ({found.file_system:clean20} at {found.mount_point:clean40},"
    " {found.kind:clean20}): {found.asked_bytes:amount} asked for[, [{found.is_at_most:if}at most"
    " ]{found.delivered_bytes:amount} delivered to all programs|; bytes delivered not known:"
    " {found.reason:clean200}|; bytes delivered not known: –]"
)
_PRESSURE: Final = (
    "some tasks stalled {found.some_s:duration}, all tasks {found.full_s:duration} of"
    " {found.wall_s:duration} (PSI, all programs of {found.host:clean40})"
)
_MAKING: Final = "[{demand.cores:if}; making the batches takes {demand.cores:.1f} cores then]"
_NO_DEMAND: Final = (
    "not known: [{demand.reason.text}|no read was recorded, or the devices' rate is not"
    f" known][{{few:if}}{{demand.num_reads:if}} ({{demand.num_reads:,}}"
    f" read{{demand.num_reads:s}})]{_MAKING}"
)
_DEMAND: Final = (
    "[{demand.is_least:if}at least ]{demand.bytes_per_s:amount}/s[{demand.is_delivered:if} of"
    " storage][ in {demand.reads_per_s:rate} reads/s][ (in the tenth of the batches that need most;"
    " {demand.mean_bytes_per_s:amount}/s on average[; {second:amount}/s in the second tenth and"
    " {last:amount}/s in the last, so less holds up the first batches alone])] keep the"
    " [{demand.by_loop:if}training loops, which take longer than their devices,|devices] busy at"
    " {at} samples/s[; this run got {demand.got_bytes_per_s:amount}/s, which feeds"
    " {demand.devices_fed:.2g} of such [{demand.by_loop:if}loops|devices]][; each of the"
    " {file_bytes:amount} in the files was read at least {times:,.1f} times on average, and what"
    " the"
    f" page cache keeps is read from storage once]{_MAKING}"
)
_CAPTURE: Final = (
    "{capture.events:count} events, {capture.lost:count} lost;"
    " [{capture.storage_coverage_ratio:percent2} of the {capture.storage_bytes_kernel:amount}"
    " fetched from storage were timed[ ({imports:MB0} came by mapped files while modules were"
    " imported[, {untimed}])| ({untimed})]|{capture.coverage_ratio:percent2} of the bytes in proc"
    " io counters were seen|coverage not"
    " known]; cost [{capture.overhead_ratio:percent2} to {most:percent2} of the job's time|at least"
    " {capture.overhead_ratio:percent2} of the job's time|not known["
    " ({capture.overhead_reason.text}"
    ")]][ ({event_s:duration} per event)]"
)
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


def statements(summary: Summary, mtbf_s: float | None = None) -> tuple[Statement, ...]:
    """The lines below the table of causes, in the order in which every report shows them."""
    return (
        *(
            [Statement("these figures", window_text(summary), "measured")]
            if window_text(summary)
            else []
        ),
        _throughput(summary),
        *(
            [Statement("attempts", attempts_text(summary), "measured")]
            if summary.run.attempts
            else []
        ),
        _steps(summary),
        *_imported(summary),
        *_stages(summary),
        *_ceilings(summary),
        *job_statements(summary),
        *save_statements(summary, mtbf_s),
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
_LEAST_DETAIL: Final = 0.0005  # of the steps' time, which is printed as 0.1 %


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


def by_workers(row: CauseRow) -> str:
    """What makes a cause of waiting for batches the answer where another one is larger: its share
    of the workers' time; empty: it is none.
    """
    return f"{row.workers}% of the workers' time" if row.workers and row.cause in LEAVES else ""


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
    if not entry.details or entry.details[0].share < _LEAST_DETAIL:
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
    missing = missing_text(summary)
    if (status == COMPLETE or is_snapshot) and not summary.run.failures:
        return (missing,) if missing else ()
    sentences = [
        clean(failure.what if failure.rank is None else f"rank {failure.rank}: {failure.what}", 300)
        for failure in summary.run.failures
    ]
    how = (
        stopped_text(summary)
        if status == INTERRUPTED
        else f"the run did not complete (status: {clean(status)}); the numbers cover what was"
        " recorded"
    )
    return (*([missing] if missing else []), how, *first_of(sentences))


def failure_lines(summary: Summary) -> tuple[str, ...]:
    """`failures` as lines of a terminal: a job that was stopped did not fail."""
    if not (found := failures(summary)):
        return ()
    if missing_text(summary):
        lines = failure_lines(summary.replace(run=summary.run.replace(missing=None)))
        return (f"NOT RECORDED: {found[0]}", *lines)
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
    """What the run did and the recording cannot show, one sentence each; without what the table of
    causes says.
    """
    more, capture = more_text(summary), summary.capture
    in_table = {entry.reason_code for entry in summary.steps.causes if summary.steps.count}
    said = {"unknown_sources"} if Reason.INCLUDES_UNKNOWN_SOURCES in in_table else set[str]()
    codes = [each.code for each in capture.gaps] or [""] * len(capture.not_seen)
    sentences = [
        text for code, text in zip(codes, capture.not_seen, strict=False) if code not in said
    ]
    sentences += [more] if more else []
    return first_of([clean(sentence, 300) for sentence in sentences])


def first_of(sentences: Sequence[str]) -> tuple[str, ...]:
    """The sentences, or the first `_MOST_SENTENCES` of them and how many more there are."""
    shown, more = tuple(sentences[:_MOST_SENTENCES]), len(sentences) - _MOST_SENTENCES
    return (*shown, f"and {more:,} more") if more > 0 else shown


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
        None if run.loader is None else _loader(clean(run.loader)),
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


def _loader(name: str) -> str:
    return name if name.lower().endswith("loader") else f"{name} loader"


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
    own, steady = found.device_samples_per_s, found.steady_samples_per_s
    text = tell(
        _THROUGHPUT,
        found=found,
        steady=rate(steady),
        whole=rate(found.samples_per_s),
        emulated=is_emulated(summary) and found.basis != "emulated",
        reached=steady / own if own and steady is not None else None,
    )
    if found.tokens_per_s:
        padding = (
            "padding not known"
            if found.padding_ratio is None
            else f"{percent(found.padding_ratio)} of the positions are padding"
        )
        text += f"; {rate(found.tokens_per_s)} tokens/s, {padding}"
        text += f" (by {count(found.batches_looked_at)} batches)"
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
        f"{count(steps.count)} per rank{_of_batches(summary)}, {count(steps.warmup)} of them"
        " warm-up; "
        f"mean {duration(steps.mean_s)}, p50 {duration(steps.p50_s)}, p95 {duration(steps.p95_s)}"
    )
    if found := steps_text(summary):
        return Statement("steps", f"{text}; {found}", "derived")
    return Statement("steps", text, "emulated" if is_emulated(summary) else "measured")


def _of_batches(summary: Summary) -> str:
    """How many batches a step takes, where a loop gathers the gradients of several."""
    training = [each.batches for each in summary.findings.loaders if each.purpose == "train"]
    steps = sum(rank.steps for rank in summary.steps.per_rank)
    ratio = training[0] / steps if len(training) == 1 and steps else 1.0
    return f" of {rate(ratio)} batches each" if ratio >= _LEAST_GATHERED else ""


def _imported(summary: Summary) -> Iterator[Statement]:
    """Of a run that was imported: its devices."""
    if found := device_text(summary):
        yield Statement("device", found, "measured")


def _ceilings(summary: Summary) -> Iterator[Statement]:
    found = summary.ceilings
    if found is None:
        return
    named = [
        f"{part.name} {duration(part.seconds)}"
        for part in found.residuals
        if part.seconds >= _LEAST_RESIDUAL * found.step_s
    ]
    yield Statement("ceilings", tell(_CEILINGS, found=found, named=", ".join(named)), "derived")


def job_statements(summary: Summary) -> Iterator[Statement]:
    """How long the job took, and for what; `save_statements` has the parts of what came before the
    first step.
    """
    ledger = summary.ledger
    before = to_first_step(summary)
    phases = [phase for phase in ledger.phases if phase not in before]
    shown = [phase for phase in phases if (phase.share or 0.0) >= _LEAST_PHASE_SHARE]
    if ledger.wall_s is None or not (shown or before):
        return
    before_s = sum(phase.seconds for phase in before)
    parts = [f"to the first step {duration(before_s)}"] if before_s else []
    parts += [f"{phase.name} {duration(phase.seconds)}" for phase in shown]
    if rest := sum(phase.seconds for phase in phases if phase not in shown):
        parts.append(f"other {duration(rest)}")
    of_all = "" if ledger.is_whole else " of its ranks"
    yield Statement("job", f"{duration(ledger.wall_s)}{of_all}: {', '.join(parts)}", "measured")


def save_statements(summary: Summary, mtbf_s: float | None = None) -> Iterator[Statement]:
    """What comes before the first step, what checkpoints take, and how often to save where the job
    fails every `mtbf_s` seconds on average.
    """
    if text := start_text(summary):
        yield Statement("start-up", text, "measured")
    if summary.saves is not None:
        names = [part.name for part in summary.saves.parts]
        sampled = summary.saves.slowed_s or any(name in SAMPLED for name in names)
        yield Statement(
            "checkpoints", saves_text(summary.saves), "derived" if sampled else "measured"
        )
    if summary.saves is not None or mtbf_s:
        yield interval_statement(summary, mtbf_s)


def interval_statement(summary: Summary, mtbf_s: float | None) -> Statement:
    """How often to save."""
    text = interval_text(summary, mtbf_s) or "not known: no checkpoint was recorded"
    return Statement("checkpoint interval", text, "predicted" if mtbf_s and summary.saves else None)


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


def _store(store: ObjectStore) -> Statement:
    """How a server answered requests of HTTP."""
    sent = f", {amount(store.bytes_sent)} sent" if store.bytes_sent else ""
    found = [
        f"{count(store.requests)} requests over {count(store.connections)} connections to"
        f" {clean(store.origin, 100)}, {amount(store.bytes)}{sent}"
    ]
    if store.first_byte_p50_s is not None:
        found.append(
            f"first byte p50 {duration(store.first_byte_p50_s)}, p95"
            f" {duration(store.first_byte_p95_s)}"
        )
    if store.bytes_per_s:
        found.append(f"{amount(store.bytes_per_s)}/s per connection")
    if store.busy_s:
        found.append(f"waited for it {percent(store.waited_s / store.busy_s)} of their time")
    found.append(f"{count(store.retries)} retries, {count(store.errors)} errors")
    return Statement("object store", "; ".join(found), "measured")


def storage_statements(summary: Summary) -> Iterator[Statement]:
    """What the job read, from where, and how long a read took."""
    storage = summary.storage
    if storage.bytes_socket or storage.bytes_pipe:
        yield Statement("received", tell(_RECEIVED, storage=storage), "measured")
    yield from map(_store, storage.stores[:_MOST_STORES])
    if not storage.accesses:
        yield Statement("storage", "no read was recorded")
        yield Statement("one read", "no read was recorded")
        return
    sources = (storage.bytes_from_storage, storage.bytes_from_cache, storage.bytes_unknown)
    names = ("storage", "page cache", "unknown")
    split = ", ".join(
        f"{share}% {name}" for share, name in zip(shares(sources), names, strict=True)
    )
    text = tell(_STORAGE, storage=storage, split=split if sum(sources) else "no byte")
    yield Statement("storage", text, "measured")
    if storage.read_p50_s is None:
        yield Statement("one read", "not known: no access has a time of its own")
        return
    untimed = storage.untimed / storage.accesses
    timed = 1 - untimed if untimed >= _LEAST_UNTIMED else None
    yield Statement("one read", tell(_ONE_READ, storage=storage, timed=timed), "measured")


def _devices(summary: Summary) -> Iterator[Statement]:
    for found in summary.storage.devices[:_MOST_DEVICES]:
        yield Statement("device", tell(_DEVICE, found=found), "measured")


def _io_pressure(summary: Summary) -> Iterator[Statement]:
    for found in summary.storage.stalls[:_MOST_DEVICES]:
        if found.some_s is not None and found.full_s is not None:
            yield Statement("I/O pressure", tell(_PRESSURE, found=found), "measured")


def _demand(summary: Summary) -> Statement:
    demand, reads, tenths = (
        summary.demand,
        summary.findings.reads,
        summary.demand.tenths_bytes_per_s,
    )
    if demand.bytes_per_s is None:
        few = demand.reason is Reason.TOO_FEW_READS
        return Statement("demand", tell(_NO_DEMAND, demand=demand, few=few))
    is_first = tenths is not None and max(tenths) == tenths[0]
    is_again = not demand.is_delivered and (reads.times_read or 0.0) >= _LEAST_TIMES_READ
    text = tell(
        _DEMAND,
        demand=demand,
        at=rate(demand.at_samples_per_s),
        second=tenths[1] if tenths and is_first else None,
        last=tenths[-1] if tenths and is_first else None,
        file_bytes=(reads.file_bytes or None) if is_again else None,
        times=reads.times_read,
    )
    return Statement("demand", text, demand.basis)


def _capture(summary: Summary) -> Statement:
    capture = summary.capture
    least, most = capture.overhead_ratio, capture.overhead_ratio_most
    text = tell(
        _CAPTURE,
        capture=capture,
        imports=import_bytes(capture) or None,
        untimed=untimed_text(capture) if are_untimed(capture) else None,
        most=most if least is not None and most is not None and most > least else None,
        event_s=None if capture.ns_per_event is None else capture.ns_per_event / 1e9,
    )
    return Statement("capture", text)
