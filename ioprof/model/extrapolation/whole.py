"""The time of a whole training, as the sum of its epochs."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.run import Run
from ioprof.errors import CommandError, IoprofError
from ioprof.format.run_record import EpochPrediction, ExtrapolatedPart, NextRecording, RunRecord
from ioprof.format.trace import Trace
from ioprof.model.assumptions import check_change
from ioprof.model.changes import Change
from ioprof.model.extrapolation.asked import Extrapolated
from ioprof.model.extrapolation.cut import BETWEEN, Cut, Epoch, bound, cut
from ioprof.model.prediction import Prediction, predict
from ioprof.model.recorded import pipeline
from ioprof.model.simulator.cache import Hits, hit_ratio, hits

WANTED_ERROR: Final = 0.15
"""Of the time, up to which nothing further is to be recorded: what users asked for."""
_WARM: Final = 0.05
"""Share of an epoch's bytes from storage, up to which it is one from memory: no more of the time
can hang on it than what is asked of the whole."""
_SAME: Final = 0.02
"""Difference of two numbers of samples that a last, smaller batch may make, and more."""
_ROOM: Final = 0.1
"""Error of the room that a memory limit leaves to the page cache."""
MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class _Range:
    """A value, and the ends of where it lies; `high` infinite: it has no bound that is known."""

    low: float
    value: float
    high: float
    basis: str = MEASURED

    @property
    def width(self) -> float:
        """Of the range."""
        return self.high - self.low

    def times(self, factor: float) -> "_Range":
        """All of it so many times."""
        return replace(
            self, low=self.low * factor, value=self.value * factor, high=self.high * factor
        )


def asked_of(run: Run, may_replay: bool = True) -> EpochPrediction | None:
    """What the run itself asked for (`--predict-epochs`). None: nothing, or it does not say it."""
    config = run.trace.run.config
    if not config.predict_epochs:
        return None
    asked = Extrapolated(
        epochs=config.predict_epochs, records=config.as_of, from_cut=config.as_of is not None
    )
    try:
        return extrapolate(run, asked, may_replay=may_replay)
    except IoprofError:
        return None


def extrapolate(
    run: Run, asked: Extrapolated, from_steps: int | None = None, may_replay: bool = True
) -> EpochPrediction:
    """The time of a whole training, from what was recorded of it.

    CommandError where the recording does not say it. `from_steps`: as if the run had made only its
    first so many steps, so that a longer run tells the error of the prediction itself. Without
    `may_replay` the range is wider where only the first epoch was recorded.
    """
    found = cut(run, from_steps)
    steps = _steps_per_epoch(run, found, asked)
    records = asked.records or round(steps * (found.samples_per_step or 0)) or None
    is_whole = bool(found.complete) and abs(found.complete[0].steps - steps) <= _SAME * steps
    if found.complete and not is_whole and not asked.from_cut:
        raise CommandError(
            f"--records {asked.records}: the recorded epochs had"
            f" {found.complete[0].steps * (found.samples_per_step or 0):,.0f} samples; add"
            " --from-cut if these were a part of the data"
        )
    first, later = found.epochs[0], found.epochs[1:]
    dataset_bytes = _dataset_bytes(run.trace.run, found, records)
    kept = _kept(run.trace.run, dataset_bytes, asked.epochs)
    pace = _later_pace(run, first, later, kept, is_whole, may_replay)
    start = _later_start(found)
    num_later = asked.epochs - 1
    parts = {
        "start and end": _once(found.fixed_s),
        "first epoch": _first(first, steps),
        "later epochs": pace.times(num_later * steps),
        "epoch starts": start.times(num_later),
    }
    if is_whole and len(found.complete) > 1:  # the whole of them was measured
        parts["later epochs"] = _whole_epochs(found.complete[1:]).times(num_later)
        parts["epoch starts"] = _Range(0.0, 0.0, 0.0)
    counts, unseen = {}, []
    for cause in BETWEEN:
        each = found.between[cause]
        counts[cause] = _count(run.trace.run, found, cause, steps, asked.epochs)
        lies = _Range(each.seconds - each.error_s, each.seconds, each.seconds + each.error_s)
        parts[f"{cause}s"] = lies.times(counts[cause])
        if not each.number:
            unseen.append(cause)
    whole = _sum(parts.values())
    error_s = max(whole.high - whole.value, whole.value - whole.low)
    is_bounded = math.isfinite(error_s)
    return EpochPrediction(
        epochs=asked.epochs,
        made=len(found.complete),
        seconds=whole.value,
        error_s=error_s if is_bounded else 0.0,
        fixed_s=found.fixed_s,
        first_epoch_s=parts["first epoch"].value,
        later_epoch_s=(parts["later epochs"].value + parts["epoch starts"].value)
        / max(1, num_later),
        evaluations=counts["validation"],
        checkpoints=counts["checkpoint"],
        between_s=sum(parts[f"{cause}s"].value for cause in BETWEEN),
        storage_bytes=tuple(each.storage_bytes for each in found.complete),
        dataset_bytes=dataset_bytes,
        records=records,
        steps_per_epoch=steps,
        recorded_steps=found.steps,
        low_s=whole.low,
        high_s=whole.high if is_bounded else None,
        later_basis=pace.basis,
        memory_ratio=kept.value,
        is_cold=None if first.storage_ratio is None else first.storage_ratio > _WARM,
        parts=tuple(
            ExtrapolatedPart(
                name, each.value, each.low, each.high if math.isfinite(each.high) else None
            )
            for name, each in parts.items()
        ),
        not_seen=tuple(unseen),
        record_next=_next(parts, whole, found),
    )


def _steps_per_epoch(run: Run, found: Cut, asked: Extrapolated) -> int:
    if asked.records is None:
        per_epoch = run.trace.run.config.steps_per_epoch
        steps = per_epoch or (found.complete[-1].steps if found.complete else 0)
        if not steps:
            raise CommandError(
                "no epoch of the run is complete, so that it does not say how long one is; give"
                " --records, the number of samples of the dataset"
            )
        return steps
    if not found.samples_per_step:
        raise CommandError(
            f"--records {asked.records}: the run does not say how many samples a step takes; record"
            " a whole epoch, and leave --records out"
        )
    return math.ceil(asked.records / found.samples_per_step)


def _dataset_bytes(record: RunRecord, found: Cut, records: int | None) -> int | None:
    """Of all records: by the manifest of the dataset, or by what was read for the batches."""
    data = record.dataset
    if records is None:
        return data.bytes if data else None
    if data and data.bytes and data.records:
        return round(data.bytes / data.records * records)
    first = found.epochs[0]
    read = first.read_bytes + first.unknown_bytes
    samples = (found.samples_per_step or 0) * first.steps
    return round(read / samples * records) if read and samples else None


def _kept(record: RunRecord, dataset_bytes: int | None, epochs: int) -> Hits:
    """Share of a later epoch's bytes that memory has."""
    room = record.page_cache_room_bytes
    if not dataset_bytes or not room:
        return Hits(1.0, 1.0, 1.0)
    nodes = max(1, len(record.hosts))
    if record.limit is None or record.limit.asked_bytes is None:
        return hits(dataset_bytes, room / nodes, nodes, "global", epochs)
    ends = [
        hit_ratio(room * each / nodes / dataset_bytes, nodes) for each in (1 - _ROOM, 1, 1 + _ROOM)
    ]
    return Hits(*ends)


def _first(first: Epoch, steps: int) -> _Range:
    """The first epoch, of so many steps."""
    pace = _of_epochs([first]).times(steps)
    return _Range(first.start_s + pace.low, first.start_s + pace.value, first.start_s + pace.high)


def _later_pace(
    run: Run, first: Epoch, later: Sequence[Epoch], kept: Hits, is_whole: bool, may_replay: bool
) -> _Range:
    """A step of a later epoch: as recorded, where later epochs of the same data were, or nothing
    changes after the first one; else with less of the first one's reading.
    """
    known = [each for each in later if each.is_complete]
    if known:
        return _by_later(first, known, kept, is_whole)
    found = _by_first(run, first, kept, may_replay)
    if later:  # of the beginning of one, which may be few steps
        found = min(found, _by_later(first, later, kept, is_whole), key=lambda each: each.width)
    return found


def _by_later(first: Epoch, known: Sequence[Epoch], kept: Hits, is_whole: bool) -> _Range:
    """From recorded later epochs."""
    storage = first.storage_ratio
    warm = _of_epochs(known)
    if is_whole or kept.worse >= 1 or storage is None or storage <= _WARM:
        is_sure = is_whole or kept.better >= 1 or storage is None or storage > _WARM
        return warm if is_sure else replace(warm, high=math.inf)
    return _mixed(_of_epochs([first]), warm, kept)


def _by_first(run: Run, first: Epoch, kept: Hits, may_replay: bool) -> _Range:
    """From the first epoch alone."""
    storage, cold = first.storage_ratio, _of_epochs([first])
    if storage is None or not first.read_bytes or (storage <= _WARM and kept.worse >= 1):
        return cold
    if storage <= _WARM:
        # what is not in memory takes a time that this recording does not have
        return replace(cold, high=cold.high if kept.better >= 1 else math.inf)
    return cold if kept.better <= 0 else _with_less_reading(run, cold, kept, may_replay)


def _of_epochs(known: Sequence[Epoch]) -> _Range:
    """The mean of recorded epochs, with the error that their steps leave, and they themselves where
    there are several.
    """
    steps = sum(each.steps for each in known)
    step_s = sum(each.step_s * each.steps for each in known) / steps
    error_s = float(np.mean([each.error_s for each in known])) / math.sqrt(len(known))
    if len(known) > 1:
        error_s = max(error_s, bound([each.step_s for each in known]))
    return _Range(step_s - error_s, step_s, step_s + error_s)


def _mixed(cold: _Range, warm: _Range, kept: Hits) -> _Range:
    """Between the two epochs that were recorded. Reads that take turns with the rest of the work
    take their share of the difference, the most that they can; such that bound the loop alone take
    their share of its whole time, the least.
    """

    def least(ratio: float, warmest: float, coldest: float) -> float:
        return max(warmest, (1 - ratio) * coldest)

    def most(ratio: float, warmest: float, coldest: float) -> float:
        return warmest + (1 - ratio) * max(0.0, coldest - warmest)

    low = least(kept.better, warm.low, cold.low)
    high = most(kept.worse, warm.high, cold.high)
    middle = [each(kept.value, warm.value, cold.value) for each in (least, most)]
    return _Range(low, sum(middle) / 2, high, PREDICTED)


def _with_less_reading(run: Run, cold: _Range, kept: Hits, may_replay: bool) -> _Range:
    """The first epoch, replayed with only what memory has not read from storage. Where it is not
    replayed: with no waits for storage, or all of them.
    """
    shares = {each.cause: each.share or 0.0 for each in run.summary.steps.causes}
    found = _replayed(run.trace, {kept.worse, kept.value, kept.better}) if may_replay else {}
    if not found:
        least = cold.low * (1 - shares.get("storage", 0.0))
        return _Range(least, (least + cold.high) / 2, cold.high, PREDICTED)
    worst, usual, best = found[kept.worse], found[kept.value], found[kept.better]
    # whatever the workers do faster, the loop saves no more than it waited for batches
    waited = sum(shares.get(cause, 0.0) for cause in LEAVES)
    least = cold.low * (1 - waited)
    return _Range(
        max(least, cold.low / max(1.0, best.speedup_range.high)),
        max(cold.value * (1 - waited), cold.value / max(1.0, usual.speedup)),
        cold.high / max(1.0, worst.speedup_range.low),
        PREDICTED,
    )


def _replayed(trace: Trace, ratios: set[float]) -> dict[float, Prediction]:
    """The run, by the share of its reading that memory has. Empty: it cannot be replayed."""
    found = dict[float, Prediction]()
    try:
        recorded = pipeline(trace)
        for ratio in ratios:
            kept = (
                Change(cache="warm") if ratio >= 1 else Change(speeds={"storage": 1 / (1 - ratio)})
            )
            check_change(recorded, kept)
            found[ratio] = predict(recorded, kept)
    except IoprofError:
        return {}
    return found


def _once(seconds: float) -> _Range:
    """What was recorded once, which does not show how much it varies: by the half of it."""
    half = abs(seconds) / 2
    return _Range(seconds - half, seconds, seconds + half)


def _whole_epochs(known: Sequence[Epoch]) -> _Range:
    """The mean of complete epochs, with their starts."""
    mean_s = float(np.mean([each.seconds for each in known]))
    error_s = float(np.mean([each.steps * each.error_s for each in known])) / math.sqrt(len(known))
    if len(known) > 1:
        error_s = max(error_s, bound([each.seconds for each in known]))
    return _Range(mean_s - error_s, mean_s, mean_s + error_s)


def _later_start(found: Cut) -> _Range:
    """What a later epoch takes besides its steps: as recorded; else no more than the first one took
    for that, and no less than its first batch if it starts no workers.
    """
    complete = [each.start_s for each in found.complete[1:]]
    if len(complete) > 1:
        error_s, value = bound(complete), float(np.mean(complete))
        return _Range(value - error_s, value, value + error_s)
    if complete:
        return _once(complete[0])
    if len(found.epochs) > 1:
        recorded = found.epochs[1].start_s
        return _Range(min(0.0, recorded), recorded, max(0.0, 2 * recorded), MEASURED)
    most = max(0.0, found.epochs[0].start_s)
    usual = 0.0 if found.keeps_workers else min(most, found.first_batch_s)
    return _Range(0.0, usual, most, PREDICTED)


def _count(record: RunRecord, found: Cut, cause: str, steps: int, epochs: int) -> int:
    """How many validations, or checkpoints, the whole training has."""
    seen, config = found.between[cause].number, record.config
    every = config.evaluate_every if cause == "validation" else config.checkpoint_every
    if not seen:
        return 0
    if every and every != config.steps_per_epoch:
        return math.ceil(epochs * steps / every)
    if every:
        return epochs
    if found.complete:  # those of an epoch of a part of the data do not depend on its length
        return round(seen / len(found.complete) * epochs)
    return max(1, round(seen / found.steps * steps * epochs))


def _sum(each: Collection[_Range]) -> _Range:
    """The sum of parts that do not depend on each other."""
    value = sum(part.value for part in each)
    low = math.hypot(*(part.value - part.low for part in each))
    high = math.hypot(*(part.high - part.value for part in each))
    return _Range(max(0.0, value - low), value, value + high)


def _next(parts: dict[str, _Range], whole: _Range, found: Cut) -> tuple[NextRecording, ...]:
    """What to record so that the range becomes as small as wanted: of the widest part first."""
    if max(whole.high - whole.value, whole.value - whole.low) <= WANTED_ERROR * whole.value:
        return ()
    widths = {
        name: max(each.high - each.value, each.value - each.low) for name, each in parts.items()
    }
    codes = dict[str, NextRecording]()
    for name in sorted(widths, key=lambda name: -widths[name]):
        if widths[name] < WANTED_ERROR * whole.value / 2:
            break
        what, steps = _what(name, parts[name], found), None
        if what == "steps":  # the error of a mean falls with the root of their number
            times = (widths[name] / (WANTED_ERROR * whole.value / 2)) ** 2
            steps = math.ceil(found.steps * times)
        codes.setdefault(what, NextRecording(what, steps))
    return tuple(codes.values())


def _what(name: str, part: _Range, found: Cut) -> str:
    """What a part of the time lacks, see `NextRecording.what`."""
    if math.isinf(part.high):
        return "cold"
    if name == "start and end":
        return "epochs"  # of which it is a smaller part
    if name == "epoch starts":
        return "two epochs" if len(found.complete) < 2 else "epochs"
    if name == "later epochs" and part.basis == PREDICTED:
        return "two epochs"
    return "steps" if name in ("first epoch", "later epochs") else name
