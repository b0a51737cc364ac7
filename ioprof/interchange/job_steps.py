"""The steps of a job whose profiler did not mark them: between calls of the optimizer, between
batches of the loader, or else by the period in which the kernels of the device recur.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.run_record import StepsBy

Numbers = npt.NDArray[np.int64]

_FEWEST_PERIODS: Final = 3
"""Of two a recurrence may be a coincidence."""
_MOST_KERNELS: Final = 1 << 18
"""Of which the period is looked for: the transforms of more take seconds."""
_LEAST_ALIKE: Final = 0.9
"""Part of the kernels that must recur one period later. In traces of training, nine in ten and more
do; of kernels in random order, as many as the most frequent ones have of all."""
_AS_ALIKE: Final = 0.01
"""Two periods are as good as each other if not more than this part of the kernels recurs in one and
not in the other. The layers of a model recur too, and their ends do not: 2 % of the kernels of 100
layers."""
_UNEVEN: Final = 2.0
"""Times as much as chance would spread the lengths of a part of a period: then it is a part of one,
such as one of six equal kernels, of which the first waits for data."""
_EVEN: Final = 0.1
"""Spread of the lengths of steps that are of one kind."""
_WORD: Final = 3
_SHIFT: Final = 2
"""Kernels that a step may have more or less than the one before it."""
_MOST_CANDIDATES: Final = 1_000
_TRIALS: Final = 4
"""Of random phases."""


@dataclass(frozen=True)
class JobSteps:
    """Steps of one process."""

    by: StepsBy
    table: pl.DataFrame
    """`step`, `start_ns`, `end_ns`; in order, and none overlaps another."""
    num_kernels: int | None = None
    """Kernels and copies of a period."""


def steps_of_ranges(optimizer: pl.DataFrame, loader: pl.DataFrame) -> JobSteps | None:
    """Steps by ranges of the host, `start_ns end_ns` by start; None: there are too few.

    A step ends with the last call of an optimizer before the next batch is asked for: a job may
    have several optimizers, and may use several batches for one call. Without an optimizer it ends
    when the next batch is asked for.
    """
    ends = _outermost(optimizer)
    asked = loader["start_ns"].to_numpy()
    if len(ends) > 1:
        if len(asked):
            until = np.searchsorted(asked, ends)
            ends = ends[np.append(until[1:] > until[:-1], True)]
        first = asked[asked < ends[0]][:1]
        bounds = np.concatenate([first, ends])
        by = StepsBy.OPTIMIZER
    else:
        bounds, by = asked, StepsBy.LOADER
    return JobSteps(by, _between(bounds)) if len(bounds) > 1 else None


def _outermost(ranges: pl.DataFrame) -> Numbers:
    """The ends of ranges that lie in no other: an optimizer may call another one."""
    ends = ranges["end_ns"].to_numpy()
    before = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], ends]))[:-1]
    return np.asarray(ends[ends > before], np.int64)


def _between(bounds: Numbers) -> pl.DataFrame:
    numbers = np.arange(len(bounds) - 1)
    return pl.DataFrame({"step": numbers, "start_ns": bounds[:-1], "end_ns": bounds[1:]})


def steps_of_kernels(wall: pl.DataFrame) -> JobSteps | None:
    """Steps by the period in which the work of the busiest stream recurs; None: it has none.

    `wall` has `name device stream wall_ns dur_ns`. A step begins where the stream is idle for
    longest, when the work before it has ended. Whether the period is a step of the job, or a layer
    or micro-batch of one, is not known.
    """
    streams = wall.group_by("device", "stream").agg(pl.len()).sort("len", "device", "stream")
    if streams.is_empty():
        return None
    busiest = wall.join(
        streams.tail(1).select("device", "stream"), on=["device", "stream"], nulls_equal=True
    )
    busiest = busiest.sort("wall_ns").head(_MOST_KERNELS)
    codes = busiest["name"].cast(pl.String).rank("dense").to_numpy().astype(np.int64)
    begins = busiest["wall_ns"].to_numpy()
    ends = np.maximum.accumulate(begins + busiest["dur_ns"].to_numpy())
    period = _period(codes, begins)
    if period is None:
        return None
    idle = np.maximum(begins[1:] - ends[:-1], 0)
    places = _starts(codes, period, idle)
    # from the end of the work before: what the device waited for is of the step that follows
    bounds = np.where(places > 0, ends[np.maximum(places, 1) - 1], begins[0])
    return JobSteps(StepsBy.PERIOD, _between(np.unique(bounds)), period)


def _period(codes: Numbers, begins: Numbers) -> int | None:
    """After how many activities they recur."""
    most = len(codes) // _FEWEST_PERIODS
    if most < 1:
        return None
    words = _words(codes)
    alike = {lag: _alike(words, lag) for lag in _candidates(words, most)}
    best = max(alike.values(), default=0.0)
    if best < _LEAST_ALIKE:
        return None
    shortest = min(lag for lag, part in alike.items() if part >= best - _AS_ALIKE)
    near = range(shortest, min(shortest + 2 * _SHIFT, most) + 1)
    period = max(near, key=lambda lag: float((codes[lag:] == codes[:-lag]).mean()))
    spread = _spread(begins, period)
    for times in range(2, most // period + 1):
        longer = _spread(begins, times * period)
        if spread > _UNEVEN * np.sqrt(times) * longer + _EVEN and longer <= _EVEN:
            return times * period
    return period


def _words(codes: Numbers) -> Numbers:
    """A number for each sequence of `_WORD` activities, at its first: one alone recurs often."""
    if len(codes) < _WORD:
        return codes
    windows = np.lib.stride_tricks.sliding_window_view(codes, _WORD)
    return np.unique(windows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _alike(words: Numbers, lag: int) -> float:
    """The part of the words that recur after so many activities, or some more or less."""
    found = np.zeros(max(len(words) - lag, 0), np.bool_)
    for shift in range(max(1, lag - _SHIFT), lag + _SHIFT + 1):
        same = words[shift:] == words[:-shift]
        size = min(len(same), len(found))
        found[:size] |= same[:size]
    return float(found.mean()) if len(found) else 0.0


def _candidates(words: Numbers, most: int) -> list[int]:
    """Lags after which many words recur, by the autocorrelation of random phases, one for each
    word.
    """
    random, size = np.random.default_rng(1), 1 << int(2 * len(words) - 1).bit_length()
    power = np.zeros(size)
    for _ in range(_TRIALS):
        phases = np.exp(2j * np.pi * random.random(int(words.max()) + 1))
        power += np.abs(np.fft.fft(phases[words], size)) ** 2 / _TRIALS
    recurring = np.fft.ifft(power).real[1 : most + _SHIFT + 1]
    part = recurring / np.maximum(len(words) - np.arange(1, len(recurring) + 1), 1)
    near = np.convolve(part, np.ones(2 * _SHIFT + 1), "same")[:most]
    # what does not recur has a mean of nothing, and with so few trials up to a tenth
    found: list[int] = (np.flatnonzero(near >= near.max() - 0.1 * (2 * _SHIFT + 1)) + 1)[
        :_MOST_CANDIDATES
    ].tolist()
    return found


def _spread(begins: Numbers, period: int) -> float:
    """Of the lengths of periods, over their median. Half of the distance between the quartiles is
    not moved by a few long ones.
    """
    lengths = np.diff(begins[::period])
    low, middle, high = np.quantile(lengths, (0.25, 0.5, 0.75))
    extent = float(np.quantile(lengths, 0.95) - np.quantile(lengths, 0.05)) / 4
    return max(float(high - low) / 2, extent) / max(float(middle), 1.0)


def _starts(codes: Numbers, period: int, idle: Numbers) -> Numbers:
    """Where periods start: before the words that most idle time precedes, of which one recurs in
    each period.
    """
    words = _words(codes)
    waited = np.bincount(words[1:], idle[: len(words) - 1])
    places = np.flatnonzero(words[1:] == np.argmax(waited)) + 1
    if not waited.any():
        places = np.array([0], np.int64)
    early = places[places < places[0] + period]
    first = int(early[np.argmax(idle[early - 1])]) if early[0] else 0
    starts = [first]
    while starts[-1] + period <= len(codes):
        aim = starts[-1] + period
        near = places[np.abs(places - aim) <= max(_SHIFT, period // 4)]
        starts.append(int(near[np.argmin(np.abs(near - aim))]) if len(near) else aim)
    return np.array([start for start in starts if start <= len(codes)], np.int64)
