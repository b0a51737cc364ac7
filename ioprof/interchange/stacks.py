"""Samples of Python's stacks as slices: a function that is in consecutive samples of a thread, with
the same callers, is one slice.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.schema import HOLDER

PYTHON: Final = "python"
"""The category of slices that are functions of sampled stacks, and no spans."""
_MOST_PERIODS: Final = 3
"""A sample stands for the time until the next one, but for no more than so many times the median of
these times."""
IS_HOLDER: Final = pl.col("stack").cast(pl.String).str.starts_with(f"{HOLDER}:").alias("is_holder")
"""Whether a sample is of a thread that held the interpreter's lock while the main one waited."""

_Slice = tuple[int, int, int, str]
"""Start, depth, end and label."""


def durations(times: npt.NDArray[np.int64]) -> list[int]:
    """Nanoseconds that each of a thread's samples stands for; the times are in order."""
    gaps = np.diff(times)
    longest = int(np.median(gaps) * _MOST_PERIODS) if len(gaps) else 0
    return [*np.minimum(gaps, longest).tolist(), longest // _MOST_PERIODS]


def slices(samples: pl.DataFrame) -> pl.DataFrame:
    """The slices of the samples of one thread: columns `start_ns end_ns label`, ordered by start,
    callers first. The label is function and file.
    """
    ordered = samples.sort("time_ns")
    texts = ordered["stack"].cast(pl.String)
    labels = {text: tuple(map(_label, text.split("\n"))) for text in texts.unique()}
    times = ordered["time_ns"].to_numpy()
    found = sorted(_merged(times.tolist(), durations(times), [labels[text] for text in texts]))
    rows = [(start, end, label) for start, _, end, label in found]
    schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, "label": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _merged(
    times: Sequence[int], lengths: Sequence[int], stacks: Sequence[tuple[str, ...]]
) -> Iterator[_Slice]:
    opened: list[tuple[int, str]] = []
    until = 0
    for time, length, stack in zip(times, lengths, stacks, strict=True):
        shared = 0
        if time <= until:
            for (_, label), other in zip(opened, stack, strict=False):
                if label != other:
                    break
                shared += 1
        yield from _closed(opened, shared, min(until, time))
        opened += [(time, label) for label in stack[shared:]]
        until = time + length
    yield from _closed(opened, 0, until)


def _closed(opened: list[tuple[int, str]], least: int, end: int) -> Iterator[_Slice]:
    while len(opened) > least:
        start, label = opened.pop()
        yield start, len(opened), end, label


def _label(frame: str) -> str:
    file, _, function = frame.rsplit(":", 2)
    return f"{function} ({file.rpartition('/')[2]})"
