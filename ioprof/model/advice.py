"""Findings with their predicted gain, or the reason why there is none, the largest gain first.

To the verdict's own findings come changes that only a replay can propose: another number of
workers, a deeper queue, workers that stay.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from ioprof.analysis.answer.finding import finding
from ioprof.analysis.answer.queue_advice import MOST_AHEAD
from ioprof.analysis.answer.read_advice import READ_LESS
from ioprof.errors import CommandError
from ioprof.format.run_record import Cost, CpuLimit, Facts, Finding, JobChange, JobKind, NoGain
from ioprof.model.accuracy import (
    Kind,
    changes_competition,
    error_of,
    further_error,
    kinds,
)
from ioprof.model.assumptions import check_change, starts_anew
from ioprof.model.changed import (
    changed,
    with_factors,
    with_kept_data,
    with_kept_workers,
    without_lock,
)
from ioprof.model.changes import Change, change_of
from ioprof.model.cores.after_waits import unbroken_ratio
from ioprof.model.equal_ranks import with_equal_ranks, with_mixed_ranks
from ioprof.model.gains import Replays
from ioprof.model.pace import replayed
from ioprof.model.pipeline import Iteration, Pipeline
from ioprof.model.prediction import QUANTILES

LEAST_AT_ALL: Final = 1.02
"""Of any change: one that brings less is no advice."""
_SAME_GAIN: Final = (1.0, 0.95)
"""Part of the largest gain from which on a cheaper change comes first: before a setting, and before
one of the code or other hardware."""
_SAME_SAVING: Final = 0.9
"""And part of the time that it saves: of small gains nearly all are alike."""
_SAME_GAIN_WITHOUT_MAKERS: Final = (1.0, 0.75)
"""The same where those who make batches are not replayed."""
_ENOUGH: Final = 0.98
"""Part of the best speedup from which on fewer workers are preferred."""
_LEAST_FAULTED: Final = 0.05
"""Part of the computations that the kernel spent on memory which had been freed, from which on they
may be faster by it in a run with a change: what is on top of the heap decides that."""
_HALF: Final = 0.5
"""Part of the time of a line or stage that work on it may save: so much counts where what is done
for nothing is compared with a cause at no cost."""
_MANY_EPOCHS: Final = 100
_TIMES: Final = (2, 4)
"""As many workers as there are now are tried."""
_LESS_IS_DONE: Final = (
    "discard",
    "unused_samples",
    "shards",
    "own_lock",
    f"cpu_{CpuLimit.THREADS}",
    f"cpu_{CpuLimit.PROCESSES}",
    *READ_LESS,
)
"""Batches of no use, workers without work or that wait for each other, processes of the job that
take each other's cores, and bytes that no batch has: what they cost is lost, whatever else is
changed."""
_FREE: Final = (
    "loader_workers",
    "prefetch",
    "persistent_workers",
    "keep_cache",
    "validation_workers",
    "pin_memory",
    "keep_memory",
    "anomalies",
    "cpu_threads",
    "cpu_quota",
    "cpu_worker_affinity",
    "cpu_rank_affinity",
)
_HARDWARE: Final = ("device", "storage", "cores", "slow_file")
_MEASURED: Final = (
    "phase",
    "anomalies",
    "share_reads",
    "discard",
    *(f"cpu_{limit}" for limit in CpuLimit),
)
"""Time outside of the steps that is longer than what they lost, debugging that was left on, and a
lack of CPU time: they are facts, and the replay of the steps knows none of them."""
_NO_CHANGE: Final = (NoGain.OF_RECORDING, NoGain.NOT_OF_STEPS)


class Predictor:
    """Predictions of many changes of one run."""

    def __init__(
        self, recorded: Pipeline, baseline_error: float, replays: Replays | None = None
    ) -> None:
        self._whole, self._error = recorded, abs(baseline_error)
        self._as_recorded = replays or Replays(recorded)

    @cached_property
    def _sharing_cores(self) -> Replays:
        """For changes after which others share the cores: see `prediction.as_replayed`."""
        if self._whole.shares_cores:
            return self._as_recorded
        return Replays(replace(self._whole, shares_cores=True))

    @cached_property
    def _faster(self) -> dict[str, float]:
        """What may remain of the loop's own causes in a run with a change. Empty: all."""
        unbroken, faulted = unbroken_ratio(self._whole), self._whole.faulted
        kept = 1 - faulted if faulted >= _LEAST_FAULTED else 1.0
        found = {"compute": unbroken * kept, "host": unbroken}
        return found if min(found.values()) < 1 else {}

    def _replays(self, change: Change) -> Replays:
        return self._sharing_cores if changes_competition(change) else self._as_recorded

    def speedup(self, change: Change) -> float:
        """Of the replay with a change."""
        replays = self._replays(change)
        return replays.base.step_s / replayed(changed(replays.recorded, change)).step_s

    def in_long_job(self, change: Change) -> float:
        """The same at most, by the error of such predictions, in one of many epochs, for a change
        whose gain is not that of the first.
        """
        replays = self._replays(change)
        kept = with_kept_data(with_kept_workers(replays.recorded), change, _MANY_EPOCHS)
        speedup = replays.base.step_s / replayed(kept).step_s
        return speedup * (1 + error_of((Kind.STAGE,)))

    def with_kept_validation(self, advice: Finding) -> Finding:
        """The advice to keep the workers of validation, in addition to those of training where
        these are started anew too.
        """
        of_kinds = (Kind.PERSISTENT,)
        return self._predicted(
            advice,
            lambda each: with_kept_workers(with_kept_workers(each), of_validation=True),
            of_kinds,
            1.0,
            self._as_recorded,
        )

    def with_equal_ranks(self, advice: Finding) -> Finding:
        """The advice to look at the ranks that others wait for: no more than without any wait.
        Where they have more to do than the others, it is to divide that, which may leave one of
        them late in each step.
        """
        found, recorded = self.of_cause(advice, "straggler"), self._as_recorded.recorded
        mixed = with_mixed_ranks(recorded)
        if found.gain is None or mixed is None:
            return found
        least = self._as_recorded.base.step_s / replayed(mixed).step_s / (1 + (found.error or 0.0))
        if advice.code == "equal_ranks" or advice.facts.get("larger"):
            equal = self._predicted(
                advice,
                lambda each: with_equal_ranks(each) or each,
                (Kind.STAGE,),
                1.0,
                self._as_recorded,
            )
            found = equal.replace(high=max(equal.high or 1.0, found.gain))
        return found.replace(low=min(found.low or 1.0, least))

    def with_own_locks(self, advice: Finding) -> Finding:
        """The advice that workers share no lock; whether they can do without is not known."""
        found = self._predicted(advice, without_lock, (Kind.STAGE,), 1.0, self._as_recorded)
        return found.replace(is_bound=True, low=1.0) if found.gain else found

    def _without(
        self, cause: str, part: float, waits: float | None, replays: Replays | None = None
    ) -> float:
        """The speedup without a part of a cause, of which so much waits."""
        replays = replays or self._as_recorded
        after = replayed(with_factors(replays.recorded, {cause: 1 - part}, waits))
        return replays.base.step_s / after.step_s

    def of_change(self, advice: Finding, change: Change) -> Finding:
        """The advice with what the change would bring."""
        try:
            check_change(self._whole, change)
        except CommandError as error:
            return without_gain(advice, NoGain.NOT_MODELLED, str(error))
        larger = (
            change.batch / self._whole.batch_size
            if change.batch and self._whole.batch_size
            else 1.0
        )
        of_kinds, replays = kinds(change, self._whole), self._replays(change)
        found = self._predicted(
            advice, lambda each: changed(each, change), of_kinds, larger, replays
        )
        if advice.is_bound and not change.reused and found.low:
            return found.replace(low=min(1.0, found.low))  # only known to bring no more
        if not (advice.is_bound and change.reused and found.low):
            return found
        least = self.of_change(advice.replace(is_bound=False), replace(change, reused=0.0))
        return found.replace(low=min(found.low, least.low or found.low))

    def of_cause(self, advice: Finding, cause: str) -> Finding:
        """The advice with what the job would gain if a cause, or the part of it that the advice is
        of, cost nothing.
        """
        part, kind = _part(advice), Kind.STORAGE if cause == "storage" else Kind.STAGE
        waits = advice.waits
        found = self._predicted(
            advice,
            lambda each: with_factors(each, {cause: 1 - part}, waits),
            (kind,),
            1.0,
            self._as_recorded,
        )
        if found.gain is None or found.low is None or found.high is None:
            return found
        error = advice.part_error or 0.0
        least, most = (
            self._without(cause, min(1.0, max(0.0, part + off)), waits) for off in (-error, error)
        )
        if not self._whole.shares_cores:
            # the cores that the cause needs may go to the loop
            shared = self._without(cause, part, waits, self._sharing_cores) * (
                1 + (found.error or 0.0)
            )
            most = max(most, shared)
        return found.replace(is_bound=True, low=min(found.low, least), high=max(found.high, most))

    def _predicted(
        self,
        advice: Finding,
        change: Callable[[Pipeline], Pipeline],
        of_kinds: tuple[Kind, ...],
        larger: float,
        replays: Replays,
    ) -> Finding:
        after, speedups = replays.speedups(change)
        speedups = [larger * each for each in speedups]
        speedup, new = speedups[0], change(replays.recorded)
        low, high = (float(value) for value in np.quantile(speedups, QUANTILES))
        shown = error_of(of_kinds) + further_error(self._whole, new, after.total_s, of_kinds)
        if faster := self._faster:
            high = max(
                high, larger * replays.base.step_s / replayed(with_factors(new, faster)).step_s
            )
        wide = (1 + self._error) * (1 + shown)
        return advice.replace(
            gain=speedup,
            basis="predicted",
            error=shown,
            low=min(low, speedup) / wide,
            high=max(high, speedup) * wide,
        )


def without_gain(advice: Finding, code: NoGain, text: str | None = None) -> Finding:
    """The advice with the reason why nothing is predicted, in words where the code does not say it;
    one that has a reason keeps it.
    """
    return advice if advice.no_gain else advice.replace(no_gain=code, reason=text)


def ranked(
    found: tuple[Finding, ...],
    recorded: Pipeline,
    baseline_error: float,
    job: JobKind,
    *,
    replays: Replays | None = None,
    candidates: tuple[Finding, ...] = (),
    bound: str | None = None,
    proposes: bool = True,
    most_workers: int | None = None,
) -> tuple[Finding, ...]:
    """Each finding with its gain, and those of the `candidates` that bring something, by gain; then
    those without a gain.

    `replays`: those of the pipeline, if there are any. `proposes`: changes of the loader that only
    a replay can propose come to it. `most_workers`: more have nothing to read.
    """
    predictor, done = Predictor(recorded, baseline_error, replays), list[Finding]()
    in_long_job = dict[str, float]()
    more: Iterator[Finding] = iter(())
    if proposes:
        more = (
            _proposals(recorded, job, predictor, most_workers)
            if recorded.has_loader
            else _kept_workers(recorded)
        )
    told = [*found]
    for each in candidates:
        told += [] if _is_there(each, told, recorded) else [each]
    proposed = [each for each in more if not _is_there(each, told, recorded)]
    for number, one in enumerate((*told, *proposed)):
        each = _with_prediction(one, predictor)
        if number >= len(found) and (each.gain or 0.0) < LEAST_AT_ALL:
            continue
        if each.gain is not None and each.gain < LEAST_AT_ALL and not each.is_least:
            if number or each.code == "device" or _cost(each) is Cost.FREE:
                continue
            each = one.replace(no_gain=NoGain.DISAGREES)
        done.append(_with_costs(each, recorded))
        if each.gain and each.change is not None and each.change.reused:
            in_long_job[each.code] = predictor.in_long_job(change_of(each.change))
    return ordered(done, bound, knows_makers=recorded.knows_makers, in_long_job=in_long_job)


def _with_costs(found: Finding, recorded: Pipeline) -> Finding:
    if found.no_gain in _NO_CHANGE:
        return found
    number = (found.change.workers if found.change else None) or 0
    added = number - min(_workers_of_ranks(recorded).values())
    facts = {**found.facts, "added": added} if added > 0 < number else found.facts
    return found.replace(costs=_cost(found), facts=facts)


def _cost(found: Finding) -> Cost:
    """What a change takes."""
    if found.code in _HARDWARE:
        return Cost.HARDWARE
    sets_workers = found.change is not None and found.change.workers is not None
    is_free = found.code in _FREE or (sets_workers and found.code not in _LESS_IS_DONE)
    return Cost.FREE if is_free else Cost.CODE


def ordered(
    found: Sequence[Finding],
    bound: str | None = None,
    *,
    knows_makers: bool = True,
    in_long_job: Mapping[str, float] | None = None,
) -> tuple[Finding, ...]:
    """Those with a gain by it, of those that bring as much the cheapest first, see
    docs/decisions/verdicts.md; then those without a gain. What was measured, though no replay knows
    it, stays first, as does what the replay contradicts, unless it finds a gain in the `bound`.
    `in_long_job`: by code, the gain in a job of many epochs, where that is larger.
    """
    agrees = any(each.gain is not None and each.cause == bound for each in found)
    is_measured = [
        each.gain is None
        and (not agrees if each.no_gain is NoGain.DISAGREES else each.code in _MEASURED)
        for each in found
    ]
    number = (*is_measured, False).index(False)
    first, rest = found[:number], found[number:]
    gains = {
        at: max(each.gain, (in_long_job or {}).get(each.code, 0.0))
        for at, each in enumerate(rest)
        if each.gain is not None
    }
    same = _SAME_GAIN if knows_makers else _SAME_GAIN_WITHOUT_MAKERS
    top = max(gains.values(), default=1.0)

    def effort(at: int) -> int:
        """What the change takes; nothing where the verdict tells more than small differences."""
        each = rest[at]
        is_bound = not knows_makers and each.cause == bound
        return 0 if is_bound else list(Cost).index(each.costs or Cost.CODE)

    def brings(at: int) -> float:
        """Its gain; of less that is done, as much as the best that work on the rest may bring."""
        gain, is_less = gains[at], rest[at].code in _LESS_IS_DONE
        return math.inf if is_less and 1 - 1 / gain >= _HALF * (1 - 1 / top) else gain

    left, order = sorted(gains, key=lambda at: -brings(at)), list[int]()
    while left:
        best = left[0]
        least = same[min(effort(best), 1)] * brings(best)
        saves = _SAME_SAVING * (1 - 1 / brings(best)) if knows_makers else 0.0
        alike = [
            at for at in left if at == best or (brings(at) >= least and 1 - 1 / brings(at) >= saves)
        ]
        order.append(min(alike, key=lambda at: (effort(at), -brings(at))))
        left.remove(order[-1])
    return (*first, *(rest[at] for at in order), *(each for each in rest if each.gain is None))


def _part(found: Finding) -> float:
    """The part of its cause that a finding is of."""
    return 1.0 if found.part is None else found.part


def _is_there(proposed: Finding, found: list[Finding], recorded: Pipeline) -> bool:
    """Whether a finding changes the same setting already. Work that costs less is none: a faster
    device and less padding both make computing faster, and each adds to the other.
    """
    mine = _changed(proposed, recorded)
    return any(mine & _changed(each, recorded) for each in found)


def _changed(found: Finding, recorded: Pipeline) -> set[Kind | str]:
    """The settings that a finding changes."""
    if (change := found.change) is None or change.speeds:
        return set()
    settings = set(kinds(change_of(change), recorded)) - {Kind.STORAGE, Kind.STAGE}
    return settings | ({"discarded"} if change.skip_discarded else set())


def _with_prediction(advice: Finding, predictor: Predictor) -> Finding:
    if advice.no_gain:
        return advice
    if advice.gain is not None:  # known without a replay
        return advice
    if advice.change is not None and not advice.change.pin_memory:
        return predictor.of_change(advice, change_of(advice.change))
    if advice.code in ("late_rank", "equal_ranks"):
        return predictor.with_equal_ranks(advice)
    if advice.cause is None:
        return advice.replace(no_gain=NoGain.NOT_MODELLED)
    return predictor.of_cause(advice, advice.cause)


# ---------------------------------------------------------------------- what only a replay proposes


def _training(recorded: Pipeline) -> list[Iteration]:
    return [each for rank in recorded.ranks for each in rank.iterations if not each.is_validation]


def _numbers(recorded: Pipeline) -> tuple[int, int]:
    """Workers and prefetch depth of the training loaders."""
    iterations = _training(recorded)
    return max((each.workers for each in iterations), default=0), max(
        (each.prefetch for each in iterations), default=2
    )


def _workers_of_ranks(recorded: Pipeline) -> dict[int, int]:
    """Of each rank the workers of its training loaders."""
    found = {rank.rank: 0 for rank in recorded.ranks}
    for rank in recorded.ranks:
        training = (each.workers for each in rank.iterations if not each.is_validation)
        found[rank.rank] = max(training, default=0)
    return found


def _ahead(prefetch: int, predictor: Predictor) -> int | None:
    """The fewest batches ahead per worker that bring nearly all that more of them bring; None:
    nothing.
    """
    most = max(2 * prefetch, MOST_AHEAD)
    best = predictor.speedup(Change(prefetch=most))
    if best < LEAST_AT_ALL:
        return None
    ahead = 2 * prefetch
    while ahead < most and predictor.speedup(Change(prefetch=ahead)) < _ENOUGH * best:
        ahead *= 2
    return min(ahead, most)


def _kept_workers(recorded: Pipeline) -> Iterator[Finding]:
    if starts_anew(recorded):
        change = JobChange(persistent_workers=True)
        yield finding("persistent_workers", cause="loader", change=change)


def _proposals(
    recorded: Pipeline,
    job: JobKind,
    predictor: Predictor,
    most_workers: int | None,
) -> Iterator[Finding]:
    if recorded.takes_turns:
        return
    workers, prefetch = _numbers(recorded)
    tried = [times * max(workers, 1) for times in _TIMES]
    rank, fewest = min(_workers_of_ranks(recorded).items(), key=lambda each: (each[1], each[0]))
    if fewest < workers:  # then the others' number for all
        tried = [workers, *tried]
    if most_workers is not None:
        tried = [
            number
            for number in sorted({min(number, most_workers) for number in tried})
            if number > fewest
        ]
    speedups = {number: predictor.speedup(Change(workers=number)) for number in tried}
    best = max(speedups.values(), default=0.0)
    if best >= LEAST_AT_ALL:
        least = min(number for number, speedup in speedups.items() if speedup >= _ENOUGH * best)
        facts: Facts = {"workers": least, "now": workers}
        if fewest < workers:
            facts |= {"lacking": rank, "fewest": fewest}
        yield finding("workers", change=JobChange(workers=least), **facts)
    if locked := [each for each in _training(recorded) if each.has_lock]:
        held_s = sum(float(each.tasks.serial_s.sum()) for each in locked)
        own_s = sum(float(each.tasks.serial_own_s.sum()) for each in locked)
        made_s = own_s + sum(float(each.tasks.stages_s.sum()) for each in locked)
        yield predictor.with_own_locks(finding("own_lock", part=min(1.0, held_s / made_s)))
    if job is JobKind.BUILT_IN or not workers:
        return
    if (ahead := _ahead(prefetch, predictor)) is not None:
        facts = {"prefetch": ahead, "now": prefetch, "more_batches": (ahead - prefetch) * workers}
        if all(each.together for each in _training(recorded)):
            facts["when_wanted"] = True
        yield finding("prefetch", change=JobChange(prefetch=ahead), **facts)
    yield from _kept_workers(recorded)
    validations = [
        each
        for rank in recorded.ranks
        for each in rank.iterations
        if each.is_validation and each.starts_workers
    ]
    if len(validations) > len(recorded.ranks):
        kept = finding("validation_workers", cause="validation", of_training=starts_anew(recorded))
        yield predictor.with_kept_validation(kept)
