"""Samples of an epoch that the loop chooses when the epoch starts, which is no start of workers."""

from dataclasses import replace
from typing import Final

import polars as pl

from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.intervals import covered, union
from ioprof.analysis.selection import intervals
from ioprof.model.pipeline import OWN, Op, Program, Seconds

_LEAST_CHOSEN: Final = 0.1
"""Part of the start of an epoch that choosing its samples must take to be told from it."""


def chosen_s(waits: pl.DataFrame, spans: pl.DataFrame) -> Seconds:
    """Of each wait of a loop: what its thread spent meanwhile on choosing samples, those of the
    epoch included.
    """
    chosen = spans.filter(pl.col("kind") == "sampler", in_main_thread(spans))
    return covered(intervals(waits), union(intervals(chosen))) / 1e9


def with_choices(program: Program, waits: pl.DataFrame, spans: pl.DataFrame) -> Program:
    """The program in which the loop chooses the samples of an epoch by itself, after START: it does
    so for kept workers, too.

    A DataLoader that makes workers asks its sampler for an iterator twice, and for kept ones once.
    """
    chosen = spans.filter(pl.col("kind") == "sampler")
    begins, ends, is_whole = (
        chosen.select(each).to_series().to_numpy()
        for each in ("start_ns", "end_ns", pl.col("batch").is_null())
    )
    spent, after = program.spent_s.copy(), program.after_s.copy()
    for row, op in enumerate(program.ops):
        if op is not Op.START:
            continue
        begin_ns, end_ns = waits["start_ns"][row], waits["end_ns"][row]
        inside = (begins >= begin_ns) & (ends <= end_ns)
        took_ns, wholes_ns = (
            ends[inside] - begins[inside],
            ends[inside & is_whole] - begins[inside & is_whole],
        )
        kept_s = (int(took_ns.sum()) - (int(wholes_ns.max()) if len(wholes_ns) > 1 else 0)) / 1e9
        if kept_s >= _LEAST_CHOSEN * spent[row] > 0:
            spent[row] -= kept_s
            after[row, OWN.index("loader")] += kept_s
    return replace(program, spent_s=spent, after_s=after)
