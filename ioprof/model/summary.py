"""The summary of a run with the three columns of each cause: what was waited for, the workers'
time, and the gain.
"""

from dataclasses import replace
from typing import Final, TypeVar

from polars.exceptions import PolarsError

from ioprof.analysis.answer.provable import can_be_proved
from ioprof.analysis.loader_use import made_anew
from ioprof.analysis.run import Run
from ioprof.format.run_record import (
    CauseGain,
    CauseShare,
    CpuLimit,
    EpochPrediction,
    Finding,
    NoGain,
    ReplayRecord,
    Verdict,
)
from ioprof.model.accuracy import MOST_BASELINE_ERROR
from ioprof.model.advice import ranked, without_gain
from ioprof.model.extrapolation.whole import asked_of
from ioprof.model.gains import Gains, Replays, gains_of
from ioprof.model.pipeline import STAGES, Pipeline
from ioprof.model.recorded import pipeline
from ioprof.model.refusals import Refusal, ReplayError

AnyRun = TypeVar("AnyRun", bound=Run)
_MOST_RANKS: Final = 32
"""Of a run that is replayed without being asked for: a rank takes 0.3 s of CPU time, in the 140
replays of a job whose workers make its batches."""
_MOST_SPANS: Final = 4_000_000
"""The same: a million take a second or two of CPU time, and 0.4 GB of memory."""
_FAILURES: Final = (
    ArithmeticError,
    AssertionError,
    LookupError,
    TypeError,
    ValueError,
    PolarsError,
)


def with_gains(run: AnyRun, is_asked: bool = True) -> AnyRun:
    """The same run; its summary says what each cause costs and what each advice would bring, or why
    that is not known.

    Of a run with very many spans or ranks only where it `is_asked` for.
    """
    is_wide = len(run.summary.steps.per_rank) > _MOST_RANKS
    may_replay = is_asked or not (is_wide or run.trace.num_spans > _MOST_SPANS)
    found = _replayed(run, may_replay)
    verdict = found.summary.verdict
    told = tuple(
        each.replace(can_be_proved=can_be_proved(run.trace.run, each)) for each in verdict.findings
    )
    verdict = verdict.replace(findings=told, candidates=())
    summary = found.summary.replace(verdict=verdict, prediction=_extrapolated(run, may_replay))
    return run.with_summary(summary)


def _extrapolated(run: Run, may_replay: bool) -> EpochPrediction | None:
    """The time of a whole training, where the run asked for it (`--predict-epochs`)."""
    try:
        return asked_of(run, may_replay)
    except _FAILURES:  # of a damaged run; what was recorded must not be lost for it
        return None


def _replayed(run: Run, may_replay: bool) -> Run:
    if not may_replay:
        return _without(run, NoGain.RUN_TOO_LARGE)
    if not run.summary.steps.count:
        return _without(run, NoGain.NOT_REPLAYED, Refusal.NO_STEP.text())
    run = _asked_again(run)
    try:
        recorded = pipeline(run.trace.with_facts())  # a copy: of a stored run spans are loaded
        replays = Replays(recorded)
        found = gains_of(recorded, replays)
        error = found.baseline_error
        if abs(error) > MOST_BASELINE_ERROR:
            return _without(run, NoGain.BASELINE_ERROR, baseline_error=error)
        verdict, job = run.summary.verdict, run.trace.run.job_kind
        proposes = verdict.first_epoch is None  # else it would be of that epoch
        told = ranked(
            verdict.findings,
            recorded,
            error,
            job,
            replays=replays,
            candidates=verdict.candidates if proposes else (),
            bound=verdict.bound_by,
            proposes=proposes,
            most_workers=_most_workers(run),
        )
    except ReplayError as failure:
        return _without(run, NoGain.NOT_REPLAYED, failure.refusal.text(failure.found))
    except _FAILURES as failure:  # of a damaged run; what was recorded must not be lost for it
        return _without(
            run,
            NoGain.NOT_REPLAYED,
            Refusal.FAILED.text(f"{type(failure).__name__}: {failure}"[:200]),
        )
    passes = max(sum(not each.is_validation for each in rank.iterations) for rank in recorded.ranks)
    made_at = made_anew(run.trace.run.loaders, passes)
    told = tuple(_made_anew(_bounded(each, run, recorded), made_at) for each in told)
    verdict = _with_device(verdict.replace(findings=told))
    run = _with_verdict(run, verdict)
    causes = tuple(
        _with_gain(entry, found, _most_gain(entry, run, recorded))
        for entry in run.summary.steps.causes
    )
    return _with_replay(run, ReplayRecord(found.baseline_error), causes)


def _most_workers(run: Run) -> int | None:
    """Workers of a rank beyond which none would have anything to read, or a core, or would repeat
    what the others do. None: not known.
    """
    verdict = run.summary.verdict
    if set(verdict.cpu_limits) - {CpuLimit.CORES}:
        return run.trace.run.config.workers
    shared = run.summary.findings.reads.by_each_worker
    if shared is not None and shared.repeated is not None:
        return run.trace.run.config.workers
    for each in (*verdict.findings, *verdict.candidates):
        if each.code == "shards":
            return int(each.facts["workers"] - each.facts["idle"])
    return run.trace.run.config.shards


def _with_device(verdict: Verdict) -> Verdict:
    """The verdict of a job that mostly computes, which says so where a faster device would not make
    it faster.
    """
    has_device = any(each.change and each.change.speeds.get("compute") for each in verdict.findings)
    if verdict.bound_by != "compute" or has_device:
        return verdict
    return verdict.said("device_waits").replace(device_waits=True)


def _asked_again(run: Run) -> Run:
    """The run, whose advice was without gains because nobody had asked for them."""
    verdict = run.summary.verdict
    told = tuple(
        each.replace(no_gain=None, reason=None) if each.no_gain is NoGain.RUN_TOO_LARGE else each
        for each in verdict.findings
    )
    return _with_verdict(run, verdict.replace(findings=told))


def _without(
    run: Run, code: NoGain, reason: str | None = None, baseline_error: float | None = None
) -> Run:
    """The run with the reason why there are no gains, for its causes and for its advice; in words
    where the code does not say it.
    """
    verdict = run.summary.verdict
    told = tuple(
        each if each.gain is not None else without_gain(each, code, reason)
        for each in verdict.findings
    )
    run = _with_verdict(run, verdict.replace(findings=told))
    return _with_replay(run, ReplayRecord(baseline_error, reason, code), run.summary.steps.causes)


def _with_verdict(run: Run, verdict: Verdict) -> Run:
    return replace(run, summary=run.summary.replace(verdict=verdict))


def _with_replay(run: Run, record: ReplayRecord, causes: tuple[CauseShare, ...]) -> Run:
    summary = run.summary
    return replace(
        run, summary=summary.replace(replay=record, steps=summary.steps.replace(causes=causes))
    )


def _with_gain(entry: CauseShare, found: Gains, most: float) -> CauseShare:
    """A cause that was not measured gets no gain: it was not replayed as itself. What took no time
    has none to gain, whatever the replay's error.
    """
    if entry.seconds is None:
        return entry
    if not entry.seconds and not entry.workers_share:
        return entry.replace(gain=CauseGain(0.0, 0.0, 0.0, 0.0))
    gain = next(each for each in found.gains if each.cause == entry.cause)
    lies = gain.range_up_to(most)
    return entry.replace(gain=CauseGain(gain.seconds, gain.share, lies.low, lies.high))


def _made_anew(advice: Finding, made_at: str | None) -> Finding:
    """The advice, if it is to keep workers, with the line that makes their loader anew for each
    pass: no argument of it keeps them.
    """
    keeps = made_at and advice.change is not None and advice.change.persistent_workers
    return advice.replace(facts={**advice.facts, "made_at": made_at}) if keeps else advice


def _bounded(advice: Finding, run: Run, recorded: Pipeline) -> Finding:
    """The advice, if it is of what a cause costs, with a range of what a cause may cost: see
    `Gain.range_up_to`.
    """
    if not advice.is_bound or advice.low is None or advice.high is None or advice.gain is None:
        return advice
    entry = next((each for each in run.summary.steps.causes if each.cause == advice.cause), None)
    part = 1.0 if advice.part is None else min(1.0, advice.part + (advice.part_error or 0.0))
    most = part * _most_gain(entry, run, recorded) if entry else 1.0
    high = min(advice.high, 1 / (1 - most)) if most < 1 else advice.high
    speedup = advice.gain
    return advice.replace(low=min(max(advice.low, 1.0), speedup), high=max(high, speedup))


def _most_gain(entry: CauseShare, run: Run, recorded: Pipeline) -> float:
    """The part of the time in which the cause was waited for or worked on, and that of the shared
    cores that it may have used. Validation may be any stage of a loader.
    """
    workers = sum(
        max((each.workers for each in rank.iterations), default=0) for rank in recorded.ranks
    )
    waited, worked = entry.share or 0.0, (entry.workers_share or 0.0) if workers else 0.0
    total_s = sum(each.seconds or 0.0 for each in run.summary.steps.causes)
    of_late_s = sum(
        each.get(entry.cause, 0.0) for each in run.summary.steps.straggler_wait_s.values()
    )
    waited += of_late_s / total_s if total_s else 0.0  # which others waited for, too
    used = 0.0
    if recorded.shares_cores and recorded.cores:
        used = (waited * len(recorded.ranks) + worked * workers) / sum(recorded.cores.values())
    validated = 0.0
    if entry.cause in STAGES:
        validated = sum(
            each.share or 0.0 for each in run.summary.steps.causes if each.cause == "validation"
        )
    return min(1.0, waited + worked + used + validated)
