"""Everything that a report says about a run."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import polars as pl

from ioprof.analysis.answer.details import Details
from ioprof.analysis.answer.epoch_verdict import with_first_epoch
from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.job_verdict import with_phase
from ioprof.analysis.answer.provable import changes_text
from ioprof.analysis.answer.verdict import verdict
from ioprof.analysis.capture import capture
from ioprof.analysis.ceilings import ceilings
from ioprof.analysis.charge.blame import Charges
from ioprof.analysis.charge.compilations import compiled_in
from ioprof.analysis.charge.copies import copied_per_step
from ioprof.analysis.charge.devices import deliveries, stalls
from ioprof.analysis.charge.gpu_windows import device_time, pageable_ratio
from ioprof.analysis.charge.saves import saves_summary
from ioprof.analysis.charge.sent_views import batch_bytes, sent_views
from ioprof.analysis.charge.steps import warmup
from ioprof.analysis.charge.unmeasured import unknown_read_ratio, unmeasured
from ioprof.analysis.charge.validation import by_mode_s
from ioprof.analysis.charge.workers_time import Making
from ioprof.analysis.cpu.cpu_time import cpu_evidence
from ioprof.analysis.cpu.cpu_verdict import with_cpu_limit
from ioprof.analysis.cpu.memory_faults import memory_faults
from ioprof.analysis.cpu.stacks import unexplained, worker_lines
from ioprof.analysis.findings import Finding
from ioprof.analysis.ledger import ledger
from ioprof.analysis.loader_use import loader_use
from ioprof.analysis.loaders import batches, samples_in, take_turns
from ioprof.analysis.ranks.collectives import collective_sources, may_be_hidden
from ioprof.analysis.ranks.exchange_rate import exchanges_per_update, small_sums
from ioprof.analysis.ranks.unrecorded import missing_ranks
from ioprof.analysis.ranks.variation import epochs
from ioprof.analysis.reads.demand import TENTHS, Fetched, demand
from ioprof.analysis.reads.flushes import flushed
from ioprof.analysis.reads.frames import frame_use
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.reads.sources import ReadTimes, ThreadReads, storage, thread_reads
from ioprof.analysis.reads.storage_bytes import (
    by_process,
    fetched_in_steps,
    storage_bytes,
    with_doubt,
    with_storage_bytes,
)
from ioprof.analysis.reads.unused_samples import unused_samples
from ioprof.analysis.selection import COMPUTE, kind_in, look, span_s
from ioprof.analysis.totals import Totals, totals
from ioprof.format.run_record import (
    Capture,
    CauseDetail,
    CauseShare,
    Ceilings,
    Clocks,
    CodeShare,
    Demand,
    Ledger,
    RankTime,
    Reason,
    RunRecord,
    RunSummary,
    Steps,
    Summary,
    Throughput,
    Verdict,
)
from ioprof.format.schema import CAUSES, LONGEST, TOKENS
from ioprof.format.trace import Trace

_OF_DEVICE: Final = ("compute", "exchange", "straggler", "h2d")
"""Causes whose times an emulated device determines."""
_LEAST_PAGEABLE_RATIO: Final = 0.01  # that is mentioned
_LEAST_TOLD_S: Final = 0.0005
"""Of a time that is told in milliseconds of a second."""
_LEAST_DERIVED_RATIO: Final = 0.01  # of a cause that makes all of it `derived`
_LEAST_OF_STORAGE: Final = 0.01
"""Of the time in which batches were made, what reads from storage must have taken for it to matter
which of the batches needed them: without it no rate would be another one by more."""


def summarise(trace: Trace, found: Totals | None = None) -> Summary:
    """The summary of a run, complete or not; the same for the same trace. `found` is
    `totals(trace)`, if known already.
    """
    found = totals(trace) if found is None else found
    charged, made, hidden = found.charged, found.fetched, found.overlaps
    table, work, received, unsure = charged.steps, found.work, batches(trace), thread_reads(trace)
    with ThreadPoolExecutor(1) as threads:
        # at all spans, which needs no interpreter
        looking = threads.submit(_look_at_reads, trace, received)
        code, whole, limits = (
            unexplained(trace, charged, found.samples),
            ledger(trace),
            ceilings(trace),
        )
        need = _demand(trace, found, received, unsure, limits)
        steps, cpu = _steps(trace, charged, work), cpu_evidence(trace)
        finding, times = looking.result()
    run, more, seen = (
        _with_device(trace),
        finding.findings(table, work, found.arrived).replace(frames=frame_use(trace)),
        storage(trace, times, unsure),
    )
    reads_slowly = work.stages.get("storage", 0) >= _LEAST_OF_STORAGE * work.total_ns
    throughput = _throughput(
        run, table, received, made if reads_slowly else None, _with_tokens(trace)
    )
    evidence = Evidence(
        run,
        steps,
        storage=seen,
        demand=need,
        overlap=hidden,
        fetched=made,
        warmup_ratio=_warmup_ratio(table),
        making_ns=work.stages,
        missing=missing_ranks(trace),
        own=_shares_of(charged.own_ns, charged),
        threads={} if charged.by_tasks else _shares_of(charged.derived_ns, charged),
        cpu=cpu,
        code=code,
        ceilings=limits,
        reads=more.reads,
        loaders=more.loaders,
        saves=saves_summary(trace),
        frames=more.frames,
        padding_ratio=throughput.padding_ratio,
        excess_ratio=throughput.excess_ratio,
        memory_faults=memory_faults(trace),
        use=loader_use(trace, received, run.config.workers, charged.generations),
        small_sums=small_sums(trace),
        exchanges_per_update=exchanges_per_update(trace),
        computed_meanwhile_s={rank: ns / 1e9 for rank, ns in charged.computed_meanwhile_ns.items()},
        longest_batch_s=int(received["making_ns"].fill_null(0).to_numpy().max(initial=0)) / 1e9,
        takes_turns=take_turns(received),
        launches=charged.launches,
        copied_per_step=copied_per_step(trace, _charged(table)),
        compiled_in=compiled_in(trace),
        flushed=flushed(trace),
        unused=unused_samples(trace),
        views=sent_views(trace),
        batch_bytes=batch_bytes(trace),
    )
    if evidence.most_work_is_unnamed:
        unnamed_ns = work.total_ns - sum(work.stages.values())
        lines = worker_lines(found.unnamed_samples, unnamed_ns / 1e9)
        evidence = replace(evidence, code=(*code, *lines))
    later, complete = (
        _later(trace, charged, evidence, work, received),
        with_storage_bytes(capture(trace, cpu), storage_bytes(trace)),
    )
    answer = with_first_epoch(verdict(evidence), evidence, later, more.trend)
    uncertainty_ns = trace.run.clocks.uncertainty_ns
    return Summary(
        run=_run(run).replace(missing=evidence.missing),
        throughput=throughput,
        steps=steps,
        overlap=hidden,
        storage=seen.replace(devices=deliveries(trace), stalls=stalls(trace)),
        demand=need,
        capture=complete,
        clocks=Clocks(
            trace.run.clocks.method or "unknown",
            None if uncertainty_ns is None or uncertainty_ns < 0 else uncertainty_ns,
        ),
        ledger=whole,
        unexplained_ratio=_unexplained_ratio(charged, evidence.code),
        verdict=_with_limits(answer, trace, evidence, complete, whole),
        cpu=cpu,
        ceilings=limits,
        unexplained=evidence.code,
        collectives=collective_sources(trace),
        findings=more,
        evaluations=run.learning.evaluations if run.learning else (),
        device_time=device_time(trace) if trace.run.capture.imported_from is not None else None,
        whole_job=run.whole_job,
        saves=evidence.saves,
    )


def _look_at_reads(trace: Trace, received: pl.DataFrame) -> tuple[Finding, ReadTimes]:
    finding, times = Finding(trace, received), ReadTimes(trace)
    look(trace, finding.reads, times)
    return finding, times


def _with_device(trace: Trace) -> RunRecord:
    """What is known of the run; one that computed, and on no device, did so on the CPU, though no
    optimizer said so.
    """
    run, computed = trace.run, trace.sums.filter(kind_in(COMPUTE), pl.col("rank").is_not_null())
    if run.device_name is not None or computed.is_empty() or computed["on_stream"].any():
        return run
    return run.replace(config=run.config.replace(device="cpu"))


def _demand(
    trace: Trace,
    found: Totals,
    received: pl.DataFrame,
    unsure: ThreadReads,
    limits: Ceilings | None,
) -> Demand:
    by_kernel = {
        process: counts.kernel - counts.during_imports
        for process, counts in by_process(trace).items()
    }
    work, consumer_s = found.work, limits.consumer_s if limits else None
    return demand(
        trace,
        found.fetched,
        found.computed_ns,
        work.stages,
        by_kernel,
        received,
        made_ns=work.total_ns,
        unsure=unsure,
        consumer_s=consumer_s,
    )


def _with_limits(
    answer: Verdict, trace: Trace, evidence: Evidence, complete: Capture, whole: Ledger
) -> Verdict:
    """The verdict with what was not seen of the steps, what limits their cores, and what took
    longer than they did.
    """
    doubted = with_doubt(
        answer, complete, evidence.steps, fetched_in_steps(trace), evidence.run.device_name
    )
    return with_phase(with_cpu_limit(doubted, evidence.cpu, evidence.run), evidence, whole)


def _later(
    trace: Trace, charged: Charges, evidence: Evidence, work: Making, received: pl.DataFrame
) -> Evidence | None:
    """The evidence of the steps after the first epoch, without what is known of the whole run
    alone. None: there are none, or the first epoch was not kept.
    """
    if trace.run.whole_job is not None and trace.run.whole_job.is_part:
        return None
    last = (
        epochs(trace, received)
        .filter(pl.col("epoch") == 0)
        .group_by("rank")
        .agg(until_ns=pl.col("end_ns").max())
    )
    table = (
        charged.steps.join(last, on="rank")
        .filter(pl.col("start_ns") >= pl.col("until_ns"))
        .drop("until_ns")
    )
    if not len(_charged(table)) or len(table) == len(charged.steps):
        return None
    found = _steps(trace, replace(charged, steps=table, details=Details()), work)
    before = evidence.charged.get("storage")
    waited = {entry.cause: entry.seconds or 0.0 for entry in found.causes}
    still = waited["storage"] / before.seconds if before and before.seconds else 0.0
    ratio = len(table) / len(charged.steps)
    making_ns = {
        cause: round(took_ns * (still if cause == "storage" else ratio))
        for cause, took_ns in evidence.making_ns.items()
    }
    return replace(
        evidence,
        steps=found,
        making_ns=making_ns,
        warmup_ratio={},
        code=(),
    )


def _shares_of(found_ns: Mapping[str, int], charged: Charges) -> dict[str, float]:
    """Times of causes of waiting for batches as shares of the steps' time, see `Evidence.own` and
    `Evidence.threads`.
    """
    table = _charged(charged.steps)
    total_ns = int((table["end_ns"] - table["start_ns"]).sum())
    return {cause: took_ns / total_ns for cause, took_ns in found_ns.items() if cause in LEAVES}


def _run(run: RunRecord) -> RunSummary:
    config, dataset = run.config, run.dataset
    parts = (
        dataset.name if dataset else None,
        dataset.layout if dataset else None,
        config.loader,
        run.device_name,
    )
    ratios = [host.others_cpu_ratio for host in run.hosts if host.others_cpu_ratio is not None]
    return RunSummary(
        name=run.name or " ".join(part for part in parts if part) or "run",
        command=run.command,
        status=run.status,
        device=run.device_name,
        device_basis=run.device_basis,
        loader=config.loader,
        dataset=dataset,
        ranks=config.ranks,
        workers=config.workers,
        batch_size=config.batch_size,
        started=run.started,
        failures=run.failures,
        others_cpu_ratio=max(ratios, default=None),
        job=run.job_kind,
        libraries=config.libraries,
        loading_rank=config.loading_rank,
        parallel=config.parallel,
        stages=config.stages,
        microbatches=config.microbatches if config.stages else None,
        changed=changes_text(run.loaders),
        imported_from=run.capture.imported_from,
        attempts=run.attempts,
    )


def _with_tokens(trace: Trace) -> pl.DataFrame:
    """The batches whose tokens were counted, see `schema.TOKENS`; `wanted`: see `LONGEST`."""
    is_text = pl.col("name").cast(pl.String) == TOKENS, pl.col("offset") > 0
    whole = trace.rows(pl.col("rank").is_not_null(), *is_text, kinds=["deliver"])
    is_longest = pl.col("name").cast(pl.String) == LONGEST
    wanted = trace.rows(pl.col("rank").is_not_null(), is_longest, kinds=["deliver"])
    return whole.join(
        wanted.select("rank", "batch", wanted="bytes"), on=["rank", "batch"], how="left"
    )


def _throughput(
    run: RunRecord,
    table: pl.DataFrame,
    received: pl.DataFrame,
    made: Fetched | None,
    seen: pl.DataFrame,
) -> Throughput:
    """`made`: what was read for batches; None: reading took next to nothing of making them."""
    own, num_steps = run.device_samples_per_s, _num_steps(table)
    whole, left_out = _rate(run, table, received), warmup(num_steps)
    steady = _rate(run, _without_drain(_steady(table)), received) if left_out else None
    at_start = None
    # after an epoch all is of later ones, which the page cache serves
    is_later = left_out >= (run.config.steps_per_epoch or num_steps + 1)
    is_faster = steady is not None and whole is not None and steady > whole
    if is_faster and not is_later and made and made.tenths and made.comes_from_storage:
        at_start = made.tenths.read_at_start(math.ceil(TENTHS * left_out / num_steps))
    best = whole if steady is None or at_start is not None else steady
    return Throughput(
        samples_per_s=whole,
        steady_samples_per_s=steady if at_start is None else whole,
        read_at_start_ratio=at_start,
        device_samples_per_s=own * (run.config.ranks or 1) if own else None,
        basis=run.device_basis if len(table) else "unknown",
        **_tokens(seen, received, best),
    )


def _excess(found: pl.DataFrame) -> float | None:
    known = found.filter(pl.col("wanted").is_not_null())
    positions = int(known["offset"].sum())
    return max(0.0, 1 - int(known["wanted"].sum()) / positions) if positions else None


def _tokens(
    seen: pl.DataFrame, received: pl.DataFrame, samples_per_s: float | None
) -> dict[str, Any]:
    """What batches with tokens say, as fields of the throughput; nothing, where there are none."""
    training = received.filter(~pl.col("validates"), pl.col("samples") > 0)
    found = seen.join(training.select("rank", "batch", "samples"), on=["rank", "batch"])
    if found.is_empty() or not samples_per_s:
        return {}
    positions, samples = int(found["offset"].sum()), int(found["samples"].sum())
    known = found.filter(pl.col("bytes").is_not_null())
    ratio = 1 - int(known["bytes"].sum()) / int(known["offset"].sum()) if len(known) else None
    return {
        "tokens_per_s": samples_per_s * positions / samples * (1 - (ratio or 0.0)),
        "padding_ratio": ratio,
        "excess_ratio": _excess(found),
        "batches_looked_at": len(found),
    }


def _rate(run: RunRecord, table: pl.DataFrame, received: pl.DataFrame) -> float | None:
    """Samples of all ranks per second, over these steps.

    Those of the batches that ranks received, where their sizes are known; else a step is one batch
    on every rank of the job. Of the stages of a pipeline one, or several, or all may load what all
    of them train on.
    """
    wall_s = _of_attempts_s(table, run)
    if not wall_s:
        return None
    if run.config.loading_rank is None:
        _, samples = samples_in(received, table)
        if samples is not None and run.config.stages and run.config.replicas:
            return samples / received["rank"].n_unique() * run.config.replicas / wall_s
        if samples is not None:
            return samples / wall_s
    if not run.config.batch_size:
        return None
    return (
        _num_steps(table)
        * run.config.batch_size
        * (run.config.replicas or table["rank"].n_unique())
        / wall_s
    )


def _of_attempts_s(table: pl.DataFrame, run: RunRecord) -> float:
    """`span_s` of the steps of each attempt, added up: ranks that are started again make none."""
    firsts = [attempt.first_step for attempt in run.attempts[1:]]
    parts = table.with_columns(
        attempt=sum(((pl.col("step") >= first) for first in firsts), pl.lit(0))
    )
    return sum(span_s(part) for part in parts.partition_by("attempt"))


def _num_steps(table: pl.DataFrame) -> int:
    """Steps of the rank that made most."""
    return max(table.group_by("rank").len()["len"].to_list(), default=0)


def _steady(table: pl.DataFrame) -> pl.DataFrame:
    """The steps after warm-up."""
    return table.filter(pl.col("step").rank("ordinal").over("rank") > warmup(_num_steps(table)))


def _without_drain(table: pl.DataFrame) -> pl.DataFrame:
    """All but each rank's last step, which ends with waiting for all work that is still queued on
    the device.
    """
    return table.filter(pl.col("step") < pl.col("step").max().over("rank"))


def _warmup_ratio(table: pl.DataFrame) -> dict[str, float]:
    table = _charged(table)
    steady = _steady(table)
    sums = {cause: int(table[f"{cause}_ns"].sum()) for cause in CAUSES}
    return {
        cause: 1 - int(steady[f"{cause}_ns"].sum()) / total
        for cause, total in sums.items()
        if total
    }


def _steps(trace: Trace, charged: Charges, work: Making) -> Steps:
    table = charged.steps
    walls = (table["end_ns"] - table["start_ns"]).sort()
    return Steps(
        count=_num_steps(table),
        warmup=warmup(_num_steps(table)),
        mean_s=int(walls.sum()) / len(walls) / 1e9 if len(walls) else None,
        p50_s=_quantile_s(walls, 0.50),
        p95_s=_quantile_s(walls, 0.95),
        found_by=trace.run.capture.steps_by,
        period_kernels=trace.run.capture.period_kernels,
        causes=tuple(_with_work(entry, work) for entry in _causes(trace, charged)),
        per_rank=tuple(
            _of_rank(part) for part in _charged(table).partition_by("rank", maintain_order=True)
        ),
        straggler_wait_s={
            str(rank): {cause: ns / 1e9 for cause, ns in found.items()}
            for rank, found in charged.straggler_wait_ns.items()
        },
    )


def _with_work(entry: CauseShare, work: Making) -> CauseShare:
    """The entry, with its share of the workers' time if it is a stage of making batches."""
    stages = {**work.stages, "loader": work.total_ns - sum(work.stages.values())}
    if not work.total_ns or entry.seconds is None or entry.cause not in stages:
        return entry
    return entry.replace(workers_share=stages[entry.cause] / work.total_ns)


def _charged(table: pl.DataFrame) -> pl.DataFrame:
    """The steps that are charged to causes: those in which the GPU was recorded, if it was recorded
    in windows.
    """
    return table.filter(pl.col("host_ns").is_not_null())


def _quantile_s(sorted_ns: pl.Series, ratio: float) -> float | None:
    return int(sorted_ns[round(ratio * (len(sorted_ns) - 1))]) / 1e9 if len(sorted_ns) else None


def _of_rank(part: pl.DataFrame) -> RankTime:
    wall_s = int((part["end_ns"] - part["start_ns"]).sum()) / 1e9
    return RankTime(
        int(part["rank"][0]), len(part), wall_s, *(_seconds(part, cause) for cause in CAUSES)
    )


def _seconds(table: pl.DataFrame, cause: str) -> float | None:
    column = table[f"{cause}_ns"]
    return None if column.null_count() == len(column) else int(column.sum()) / 1e9


def _causes(trace: Trace, charged: Charges) -> tuple[CauseShare, ...]:
    table = _charged(charged.steps)
    reasons, total_ns = unmeasured(trace), int((table["end_ns"] - table["start_ns"]).sum())
    if not len(table) and len(charged.steps):
        reasons = dict.fromkeys(CAUSES, Reason.NO_STEP_IN_GPU_WINDOW)
    found = (
        _with_details(_cause(cause, table, total_ns, trace.run, reasons), charged, total_ns, trace)
        for cause in CAUSES
    )
    included = _included(trace, reasons)
    with_reasons = (
        entry
        if entry.reason_code or entry.cause not in included
        else entry.replace(**included[entry.cause])
        for entry in found
    )
    hidden = may_be_hidden(trace)
    by_mode = by_mode_s(trace)
    with_reasons = (_with_mode(entry, by_mode) for entry in with_reasons)
    return tuple(
        _with_lock_waits(_with_threads(_with_hidden(entry) if hidden else entry, charged), charged)
        for entry in with_reasons
    )


def _with_lock_waits(entry: CauseShare, charged: Charges) -> CauseShare:
    """The entry, `derived` if waits for the interpreter's lock were taken from it."""
    moved_s = charged.lock_ns.get(entry.cause, 0) / 1e9
    if (
        entry.cause == "host"
        or entry.seconds is None
        or moved_s < _LEAST_TOLD_S
        or moved_s < _LEAST_DERIVED_RATIO * (entry.seconds + moved_s)
    ):
        return entry
    return _derived(entry, Reason.WITHOUT_LOCK_WAITS, seconds=moved_s)


def _with_hidden(entry: CauseShare) -> CauseShare:
    """The entry, `derived` if it is time with other ranks: the device may have computed
    meanwhile.
    """
    if entry.cause not in ("exchange", "straggler") or not entry.seconds:
        return entry
    return _derived(entry, Reason.MAY_BE_HIDDEN)


def _with_mode(entry: CauseShare, by_mode: float) -> CauseShare:
    """The entry, `derived` if it is an evaluation that the model's mode alone shows."""
    if (
        entry.cause != "validation"
        or not entry.seconds
        or by_mode < _LEAST_DERIVED_RATIO * entry.seconds
    ):
        return entry
    return _derived(entry, Reason.BY_MODE)


def _derived(entry: CauseShare, code: Reason, **facts: Any) -> CauseShare:
    return entry.replace(basis="derived", reason_code=code, reason_facts=facts)


def _cause(
    cause: str, table: pl.DataFrame, total_ns: int, run: RunRecord, reasons: Mapping[str, Reason]
) -> CauseShare:
    if cause in reasons or not len(table):
        reason = reasons.get(cause, Reason.NO_STEP)
        return CauseShare(cause, None, None, "unknown", reason_code=reason)
    charged_ns = int(table[f"{cause}_ns"].sum())
    share = charged_ns / total_ns if total_ns else 0.0
    basis = (
        run.device_basis if cause in _OF_DEVICE else "derived" if cause == "host" else "measured"
    )
    return CauseShare(cause, charged_ns / 1e9, share, basis)


def _with_details(entry: CauseShare, charged: Charges, total_ns: int, trace: Trace) -> CauseShare:
    if not entry.seconds:
        return entry
    parts = charged.details.of_cause(entry.cause, round(entry.seconds * 1e9), trace)
    return entry.replace(
        details=tuple(
            CauseDetail(code.label(subject), ns / 1e9, ns / total_ns, code, subject)
            for (code, subject), ns in parts
        )
    )


def _with_threads(entry: CauseShare, charged: Charges) -> CauseShare:
    """The entry, `derived` where part of its time is charged to it only because threads did that at
    the same time.
    """
    if not entry.seconds:
        return entry
    derived_ns = charged.derived_ns.get(entry.cause, 0)
    if derived_ns >= _LEAST_DERIVED_RATIO * entry.seconds * 1e9:
        facts = {"seconds": derived_ns / 1e9, "by_tasks": charged.by_tasks}
        return _derived(entry, Reason.INCLUDES_THREADS_BY_TIME, **facts)
    if entry.cause == "host" and charged.threads_ns >= _LEAST_DERIVED_RATIO * entry.seconds * 1e9:
        return entry.replace(
            reason_code=Reason.THREADS_MAY_BE_AWAITED,
            reason_facts={"seconds": charged.threads_ns / 1e9},
        )
    return entry


def _unexplained_ratio(charged: Charges, code: Sequence[CodeShare]) -> float | None:
    """See `Summary.unexplained_ratio`."""
    table = _charged(charged.steps)
    total_ns = int((table["end_ns"] - table["start_ns"]).sum())
    if not total_ns:
        return None
    explained = charged.details.explained_ns
    left = {
        cause: int(table[f"{cause}_ns"].sum()) - explained.get(cause, 0)
        for cause in ("host", "loader")
    }
    named_ns = {
        cause: 1e9 * sum(line.seconds for line in code if line.cause == cause and line.is_own)
        for cause in left
    }
    return sum(max(0.0, left[cause] - named_ns[cause]) for cause in left) / total_ns


def _included(trace: Trace, reasons: Mapping[str, Reason]) -> dict[str, dict[str, Any]]:
    """What causes include that their names do not say: reasons with facts."""
    unknown = unknown_read_ratio(trace)
    inside = [cause for cause, reason in reasons.items() if reason.time_is_in == "loader"]
    pageable = 1.0 if trace.run.config.copy == "pageable" else pageable_ratio(trace) or 0.0
    found = (
        ("storage", bool(unknown), Reason.INCLUDES_UNKNOWN_SOURCES, {"ratio": unknown}),
        ("loader", bool(inside), Reason.INCLUDES_UNMEASURED, {"causes": inside}),
        (
            "h2d",
            pageable >= _LEAST_PAGEABLE_RATIO,
            Reason.INCLUDES_PAGEABLE_COPIES,
            {"ratio": pageable},
        ),
    )
    return {
        cause: {"reason_code": code, "reason_facts": facts}
        for cause, is_so, code, facts in found
        if is_so
    }
