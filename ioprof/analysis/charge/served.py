"""Whether workers mostly wait for what another process of the job answers, such as a manager of
multiprocessing.

That process answers all of them. How many answers it can give per second is not known, so nothing
is known of more workers.
"""

from collections import Counter
from typing import Final

import polars as pl

from ioprof.analysis.charge.interpreter_lock import of_threads
from ioprof.analysis.cpu.code_lines import asks_process
from ioprof.analysis.cpu.stacks import place_of
from ioprof.format.trace import Trace

_MOSTLY: Final = 0.5
"""Part of the samples of workers in the user's own code that are at one line."""
_FEWEST: Final = 10
"""Samples below which nothing is said."""


def are_served(trace: Trace) -> bool:
    """By the line with most samples of the workers' stacks, and by what most of these samples are
    in.

    Those of a worker that has nothing to do have no line of the user's own code.
    """
    pids = [
        process.pid
        for process in trace.run.processes
        if process.role == "worker" and process.pid is not None
    ]
    stacks = of_threads(trace.stacks).filter(pl.col("pid").is_in(pids))
    lines: dict[tuple[str, int], Counter[str | None]] = {}
    for stack, count in stacks.group_by(pl.col("stack").cast(pl.String)).len().iter_rows():
        if (place := place_of(stack)).is_own:
            lines.setdefault((place.file, place.line), Counter())[place.library] += count
    most, total = (
        max(lines.values(), key=Counter.total, default=Counter()),
        sum(map(Counter.total, lines.values())),
    )
    return (
        total >= _FEWEST
        and most.total() >= _MOSTLY * total
        and asks_process(most.most_common(1)[0][0])
    )
