"""Advice with its predicted gain, or the reason why it has none, the largest gain first.

To the verdict's own advice come changes that only a replay can propose: another number of workers,
a deeper queue, workers that stay.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from ioprof.analysis.answer.options import JobOptions
from ioprof.errors import CommandError
from ioprof.format.run_record import Advice, JobChange, JobKind, NoGain
from ioprof.model.accuracy import (
    Kind,
    changes_competition,
    error_of,
    further_error,
    kinds,
    why_not,
)
from ioprof.model.assumptions import check_change
from ioprof.model.changed import (
    changed,
    resampled,
    shortened,
    with_factors,
    with_kept_data,
    with_kept_workers,
)
from ioprof.model.changes import Change, change_of
from ioprof.model.pace import replayed
from ioprof.model.pipeline import Iteration, Op, Pipeline
from ioprof.model.prediction import QUANTILES

_RESAMPLES: Final = 6
_MOST_ACTIONS: Final = 1_000
_RESAMPLED_ACTIONS: Final = 200
_LEAST_SPEEDUP: Final = 1.03
"""Of a change that only the replay proposes."""
LEAST_AT_ALL: Final = 1.02
"""Of any change: one that brings less is no advice."""
_SAME_GAIN: Final = (1.0, 0.95)
"""Part of the largest gain from which on a cheaper change comes first: before a setting, and before
one of the code. Other hardware comes after both where the job does not mostly compute."""
_SAME_GAIN_WITHOUT_MAKERS: Final = (1.0, 0.75)
"""The same where those who make batches are not replayed."""
_ENOUGH: Final = 0.98
"""Part of the best speedup from which on fewer workers are preferred."""
_MANY_EPOCHS: Final = 100
_TIMES: Final = (2, 4)
"""As many workers as there are now are tried."""
_ONCE: Final = "work on the code, once"
_COSTS: Final = {
    "storage": "another device, space and time for a copy, or work on the code",
    "page_cache": "a conversion of the dataset, once",
    "decode": "a conversion of the dataset, once, or another decoder",
    "exchange": "other results of the training, if the batch size changes",
    "h2d": _ONCE,
    "checkpoint": "less often: more work is lost if the job fails",
    "validation": "less often: later news of how training goes",
}
"""What a change of a cause costs; of any other, work on the code."""
_MEMORY_OF_WORKERS: Final = "the memory of the workers between epochs"


class _Replays:
    """A run to be replayed with changes, itself and drawn anew."""

    def __init__(self, recorded: Pipeline) -> None:
        self.recorded = shortened(recorded, _MOST_ACTIONS)
        self.base_s = replayed(self.recorded).step_s
        short = shortened(recorded, _RESAMPLED_ACTIONS)
        self.drawn = [(seed, resampled(short, seed)) for seed in range(1, _RESAMPLES + 1)]
        self.bases_s = [replayed(each, seed).step_s for seed, each in self.drawn]


class Predictor:
    """Predictions of many changes of one run."""

    def __init__(self, recorded: Pipeline, baseline_error: float) -> None:
        self._whole, self._error = recorded, abs(baseline_error)
        self._as_recorded = _Replays(recorded)

    @cached_property
    def _sharing_cores(self) -> _Replays:
        """For changes after which others share the cores: see `prediction.as_replayed`."""
        if self._whole.shares_cores:
            return self._as_recorded
        return _Replays(replace(self._whole, shares_cores=True))

    def _replays(self, change: Change) -> _Replays:
        return self._sharing_cores if changes_competition(change) else self._as_recorded

    def speedup(self, change: Change) -> float:
        """Of the replay with a change."""
        replays = self._replays(change)
        return replays.base_s / replayed(changed(replays.recorded, change)).step_s

    def in_long_job(self, change: Change) -> float:
        """The same at most, by the error of such predictions, in one of many epochs, for a change
        whose gain is not that of the first.
        """
        replays = self._replays(change)
        kept = with_kept_data(with_kept_workers(replays.recorded), change, _MANY_EPOCHS)
        return replays.base_s / replayed(kept).step_s * (1 + error_of((Kind.STAGE,)))

    def with_kept_validation(self, advice: Advice) -> Advice:
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

    def _without(self, cause: str, part: float) -> float:
        """The speedup without a part of a cause."""
        replays = self._as_recorded
        return replays.base_s / replayed(with_factors(replays.recorded, {cause: 1 - part})).step_s

    def of_change(self, advice: Advice, change: Change) -> Advice:
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
        if not (advice.is_bound and change.reused and found.low):
            return found
        least = self.of_change(advice.replace(is_bound=False), replace(change, reused=0.0))
        return found.replace(low=min(found.low, least.low or found.low))

    def of_cause(self, advice: Advice, cause: str) -> Advice:
        """The advice with what the job would gain if a cause, or the part of it that the advice is
        of, cost nothing.
        """
        part, kind = _part(advice), Kind.STORAGE if cause == "storage" else Kind.STAGE
        found = self._predicted(
            advice,
            lambda each: with_factors(each, {cause: 1 - part}),
            (kind,),
            1.0,
            self._as_recorded,
        )
        if found.predicted_speedup is None or found.low is None or found.high is None:
            return found
        error = advice.part_error or 0.0
        least, most = (
            self._without(cause, min(1.0, max(0.0, part + off))) for off in (-error, error)
        )
        return found.replace(is_bound=True, low=min(found.low, least), high=max(found.high, most))

    def _predicted(
        self,
        advice: Advice,
        change: Callable[[Pipeline], Pipeline],
        of_kinds: tuple[Kind, ...],
        larger: float,
        replays: _Replays,
    ) -> Advice:
        new = change(replays.recorded)
        after = replayed(new)
        if refused := why_not(self._whole, of_kinds):
            return without_gain(advice, *refused)
        speedup = larger * replays.base_s / after.step_s
        others = [
            larger * base_s / replayed(change(each), seed).step_s
            for (seed, each), base_s in zip(replays.drawn, replays.bases_s, strict=True)
        ]
        low, high = (float(value) for value in np.quantile([speedup, *others], QUANTILES))
        shown = error_of(of_kinds) + further_error(self._whole, new, after.total_s, of_kinds)
        wide = (1 + self._error) * (1 + shown)
        return advice.replace(
            predicted_speedup=speedup,
            error=shown,
            low=min(low, speedup) / wide,
            high=max(high, speedup) * wide,
        )


def without_gain(advice: Advice, code: NoGain, text: str) -> Advice:
    """The advice with the reason why nothing is predicted; one that has a reason keeps it."""
    return advice if advice.no_gain else advice.replace(no_gain=code, reason=text)


_REASONS: Final = {
    NoGain.NOT_MODELLED: "the replay does not model this change",
    NoGain.NOT_OF_STEPS: (
        "it is time of the job outside of its steps, which the replay does not cover"
    ),
    NoGain.OF_RECORDING: "it shows more, and changes nothing in the job",
    NoGain.DISAGREES: (
        "the replay finds nothing to gain in what took most of the time, so one of the two is wrong"
    ),
}


def with_reason(advice: Advice) -> Advice:
    """The advice, its reason in words as well."""
    return (
        advice.replace(reason=_REASONS.get(advice.no_gain))
        if advice.no_gain and not advice.reason
        else advice
    )


def ranked(
    found: tuple[Advice, ...],
    recorded: Pipeline,
    baseline_error: float,
    job: JobKind,
    options: JobOptions,
    *,
    candidates: tuple[Advice, ...] = (),
    bound: str | None = None,
    proposes: bool = True,
    most_workers: int | None = None,
) -> tuple[Advice, ...]:
    """Each advice with its gain, and those of the `candidates` that bring something. Those with a
    prediction by gain; those without one keep their places.

    `proposes`: changes of the loader that only a replay can propose come to it. `most_workers`:
    more have nothing to read.
    """
    predictor, keys = Predictor(recorded, baseline_error), list[float]()
    more = (
        _proposals(recorded, job, options, predictor, most_workers)
        if proposes and recorded.has_loader
        else ()
    )
    further = list[Advice]()
    for each in candidates:
        if not _is_there(each, (*found, *further), recorded):
            further.append(each)
    proposed = [each for each in more if not _is_there(each, (*found, *further), recorded)]
    known = [*found, *further, *proposed]
    done = list[Advice]()
    for number, advice in enumerate(known):
        each = _with_prediction(advice, predictor)
        is_own = number >= len(found) + len(further)
        least = _LEAST_SPEEDUP if is_own else LEAST_AT_ALL
        if number >= len(found) and (each.predicted_speedup or 0.0) < least:
            continue
        if _brings_nothing(each):
            if number or _sets_loader(each) or _is_of_device(each):
                continue
            each = with_reason(advice.replace(no_gain=NoGain.DISAGREES))
        done.append(each.replace(costs=each.costs or _costs(each, recorded)))
        keys.append(each.predicted_speedup or 0.0)
        if keys[-1] and each.change is not None and each.change.reused:
            keys[-1] = max(keys[-1], predictor.in_long_job(change_of(each.change)))
    # what has no number comes after what has one, but for what the verdict begins with
    is_known = [each.predicted_speedup is not None for each in done]
    order_of = sorted(range(len(done)), key=lambda place: place > 0 and not is_known[place])
    done, keys = [done[place] for place in order_of], [keys[place] for place in order_of]
    places = [place for place, each in enumerate(done) if each.predicted_speedup is not None]
    by_gain, efforts = sorted(places, key=lambda place: -keys[place]), list(map(_effort, done))
    same = _SAME_GAIN
    if not recorded.knows_makers:  # then the verdict tells more than small differences
        same = _SAME_GAIN_WITHOUT_MAKERS
        efforts = [
            0 if each.cause == bound else effort for each, effort in zip(done, efforts, strict=True)
        ]
    order = cheapest_first(by_gain, keys, efforts, (*same, same[-1] * (bound == "compute")))
    for place, each in zip(places, [done[best] for best in order], strict=True):
        done[place] = each
    return tuple(done)


def cheapest_first(
    order: list[int], gains: list[float], efforts: list[int], alike_from: tuple[float, ...]
) -> list[int]:
    """The order by gain, but of changes that bring nearly the same the cheaper one first.
    `alike_from`: part of the largest gain from which on, by its effort.
    """
    found = list[int]()
    while order:
        least = gains[order[0]] * alike_from[efforts[order[0]]]
        alike = [place for place in order if gains[place] >= least]
        best = min(alike, key=lambda place: (efforts[place], -gains[place]))
        found.append(best)
        order = [place for place in order if place != best]
    return found


def _effort(advice: Advice) -> int:
    """What a change takes: 0 a setting, 1 work on the code or data, 2 other hardware."""
    if _sets_loader(advice):
        return 0
    return 2 if advice.change is not None and advice.change.speeds else 1


def _part(advice: Advice) -> float:
    """The part of its cause that an advice is of."""
    return 1.0 if advice.part is None else advice.part


def _brings_nothing(advice: Advice) -> bool:
    """Whether the replay says so; where it knows a part of the cost, the rest may bring more."""
    gain = advice.predicted_speedup
    return gain is not None and gain < LEAST_AT_ALL and not advice.is_least


def _is_of_device(advice: Advice) -> bool:
    """Whether it is a faster device."""
    return advice.change is not None and bool(advice.change.speeds.get("compute"))


def _sets_loader(advice: Advice) -> bool:
    """Whether it is about a setting of the loader, and not about what the time went to."""
    change = advice.change or JobChange()
    return bool(change.workers is not None or change.prefetch or change.persistent_workers)


def _is_there(proposed: Advice, found: tuple[Advice, ...], recorded: Pipeline) -> bool:
    """Whether an advice changes the same already."""
    if proposed.change is None:
        return False
    mine = set(kinds(change_of(proposed.change), recorded))
    return any(
        each.change is not None and mine & set(kinds(change_of(each.change), recorded))
        for each in found
    )


def _with_prediction(advice: Advice, predictor: Predictor) -> Advice:
    if advice.no_gain:
        return with_reason(advice)
    if advice.predicted_speedup is not None:  # known without a replay
        return advice
    if advice.change is not None and not advice.change.pin_memory:
        return predictor.of_change(advice, change_of(advice.change))
    if advice.cause is None:
        return with_reason(advice.replace(no_gain=NoGain.NOT_MODELLED))
    return predictor.of_cause(advice, advice.cause)


def _costs(advice: Advice, recorded: Pipeline) -> str | None:
    if advice.no_gain in (NoGain.OF_RECORDING, NoGain.NOT_OF_STEPS):
        return None
    change = advice.change
    if change is not None and change.workers is not None:
        more = change.workers - max(_numbers(recorded)[0], 0)
        if more <= 0:
            return "nothing"
        processes = "1 more process" if more == 1 else f"{more} more processes"
        return f"{processes} per rank, each with the dataset object and its batches in memory"
    if change is not None and change.speeds.get("compute"):
        return "another model or device"
    if change is not None and change.persistent_workers:
        return _MEMORY_OF_WORKERS
    return _COSTS.get(advice.cause or "", _ONCE)


# ---------------------------------------------------------------------- what only a replay proposes


def _training(recorded: Pipeline) -> list[Iteration]:
    return [each for rank in recorded.ranks for each in rank.iterations if not each.is_validation]


def _numbers(recorded: Pipeline) -> tuple[int, int]:
    """Workers and prefetch depth of the training loaders."""
    iterations = _training(recorded)
    return max((each.workers for each in iterations), default=0), max(
        (each.prefetch for each in iterations), default=2
    )


def _proposals(
    recorded: Pipeline,
    job: JobKind,
    options: JobOptions,
    predictor: Predictor,
    most_workers: int | None,
) -> Iterator[Advice]:
    if recorded.takes_turns:
        return
    workers, prefetch = _numbers(recorded)
    tried = [times * max(workers, 1) for times in _TIMES]
    if recorded.asks_process and workers:
        most_workers = workers
    if most_workers is not None:
        tried = [
            number
            for number in sorted({min(number, most_workers) for number in tried})
            if number > workers
        ]
    speedups = {number: predictor.speedup(Change(workers=number)) for number in tried}
    best = max(speedups.values(), default=0.0)
    if best >= _LEAST_SPEEDUP:
        fewest = min(number for number, speedup in speedups.items() if speedup >= _ENOUGH * best)
        text = f"Use {options.with_workers.format(fewest)} instead of {workers}"
        yield Advice(text, change=JobChange(workers=fewest))
    if job is JobKind.BUILT_IN or not workers:
        return
    if predictor.speedup(Change(prefetch=2 * prefetch)) >= _LEAST_SPEEDUP:
        text = (
            f"Prepare more batches ahead: {options.prefetch}{2 * prefetch} instead of {prefetch}"
            " per worker"
        )
        yield Advice(
            text,
            change=JobChange(prefetch=2 * prefetch),
            costs=f"memory for {prefetch * workers} more batches per rank",
        )
    starts = sum(op is Op.START for op in recorded.ranks[0].program.ops)
    starts_anew = starts > 1 and sum(each.starts_workers for each in _training(recorded)) > len(
        recorded.ranks
    )
    if starts_anew:
        yield Advice(
            f"{options.keep_workers}", cause="loader", change=JobChange(persistent_workers=True)
        )
    validations = [
        each
        for rank in recorded.ranks
        for each in rank.iterations
        if each.is_validation and each.starts_workers
    ]
    if len(validations) > len(recorded.ranks):
        text = (
            f"{options.keep_workers} to validate"
            f" from{', and in that to train from' if starts_anew else ''}"
        )
        yield predictor.with_kept_validation(
            Advice(text, cause="validation", costs=_MEMORY_OF_WORKERS)
        )
