"""The samples of Python's stacks in the page: the user's functions one by one, libraries folded.

Of the frames of a library that follow each other, the one that was called from outside of it
remains, and at the end of a stack also its innermost one. Frames of libraries that called the
user's outermost function are left out.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof.analysis.cpu.frames import Frame, frames_of, module_path
from ioprof.format.trace import Trace
from ioprof.report.page.encoding import block, differences, ticks, varints
from ioprof.report.texts.units import NAME_LENGTH, clean

MOST_SAMPLES: Final = 300_000
"""Samples of a page; of more, one of each few. They take some 3 bytes each: 1 MB in all."""
MOST_NODES: Final = 20_000
"""Different beginnings of stacks. Programs have some hundreds; more are those of a recursion whose
stacks differ each time, and end earlier."""
MOST_FRAMES: Final = 48
"""Of one folded stack, its outermost and innermost ones; more than a screen has room for."""
_IMPORTING: Final = "<frozen importlib"
_LONGEST_PATH: Final = 300

Step = tuple[str, str, int, bool]
"""Of a folded stack: function, file, line (0: of a library), and whether it is the user's own."""


@dataclass(frozen=True)
class StackBlocks:
    """Samples of stacks as a block of columns, and the threads that they are of."""

    threads: list[dict[str, Any]]
    """Of each thread `rank pid tid role name`, and `count`, its samples in the block."""
    text: str | None
    """Columns: the functions as JSON; for each node of the tree of stacks its parent plus one, its
    function and its line; then for each thread the times and the innermost nodes of its samples.
    None: there are none."""
    every: int
    """One of so many samples is in the page."""


def folded(stack: str) -> tuple[Step, ...]:
    """The steps of a stack of `schema.STACK_COLUMNS`, outermost first; never empty."""
    frames = frames_of(stack)
    runs = [(is_library, list(run)) for is_library, run in groupby(frames, lambda f: f.is_library)]
    if len(runs) > 1 and runs[0][0]:
        runs = runs[1:]
    steps: list[Step] = []
    for place, (is_library, run) in enumerate(runs):
        kept = _of_library(run, place == len(runs) - 1) if is_library else run
        for frame in kept:
            step = _step(frame, is_library)
            if steps and steps[-1][:2] == step[:2]:
                steps.pop()  # a recursion: its innermost line
            steps.append(step)
    half = MOST_FRAMES // 2
    return tuple(steps if len(steps) <= MOST_FRAMES else (*steps[:half], *steps[-half:]))


def _of_library(run: list[Frame], is_last: bool) -> list[Frame]:
    named = [frame for frame in run if not frame.file.startswith(_IMPORTING)] or run
    return [named[0], named[-1]] if is_last and len(named) > 1 else named[:1]


def _step(frame: Frame, is_library: bool) -> Step:
    if is_library:
        return frame.function, module_path(frame.file), 0, False
    return frame.function, frame.file, frame.line, True


def stack_blocks(trace: Trace, ranks: Collection[int | None]) -> StackBlocks:
    """The samples of these ranks."""
    samples = trace.stacks.filter(
        pl.any_horizontal([pl.col("rank").eq_missing(rank) for rank in ranks] or [pl.lit(False)])
    )
    if samples.is_empty():
        return StackBlocks([], None, 1)
    every = -(-len(samples) // MOST_SAMPLES)
    tree = _Tree()
    numbers = samples["stack"].value_counts(sort=True).with_columns(pl.col("stack"))
    nodes = pl.DataFrame(
        {
            "stack": numbers["stack"],
            "node": [tree.node(folded(text)) for text in numbers["stack"].cast(pl.String)],
        }
    )
    coded = samples.join(nodes, on="stack", how="left").sort("time_ns")
    threads: list[dict[str, Any]] = []
    columns: list[bytes] = []
    is_main = (pl.col("tid") == pl.col("pid")).fill_null(False)
    ordered = coded.with_columns(is_main=is_main).sort(
        "rank", "role", ~is_main, "pid", "tid", maintain_order=True, nulls_last=True
    )
    keys = ("rank", "host", "pid", "tid", "role", "is_main")
    for (rank, _, pid, tid, role, main), own in ordered.group_by(*keys, maintain_order=True):
        kept = own.gather_every(every)
        name = "code" if main else f"thread {tid}"
        threads.append(
            {"rank": rank, "pid": pid, "tid": tid, "role": role, "name": name, "count": len(kept)}
        )
        columns += [
            differences(ticks(kept["time_ns"].to_numpy())),
            varints(kept["node"].to_numpy().astype(np.int64)),
        ]
    return StackBlocks(threads, block([*tree.columns(), *columns]), every)


class _Tree:
    """Stacks as a tree, of which each node is a step within its parent."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, bool], int] = {}
        self._nodes: dict[tuple[int, int, int], int] = {}

    def node(self, steps: tuple[Step, ...]) -> int:
        """The innermost node of a stack."""
        node = -1
        for name, file, line, is_own in steps:
            key = (name, file, is_own)
            function = self._functions.setdefault(key, len(self._functions))
            place = (node, function, line)
            if place not in self._nodes and len(self._nodes) >= MOST_NODES and node >= 0:
                break
            node = self._nodes.setdefault(place, len(self._nodes))
        return node

    def columns(self) -> Iterator[bytes]:
        """The functions, and parents, functions and lines of the nodes."""
        functions = [
            [clean(name, NAME_LENGTH), clean(file, _LONGEST_PATH), int(is_own)]
            for name, file, is_own in self._functions
        ]
        yield json.dumps(functions).encode()
        table = np.array(list(self._nodes), np.int64).reshape(-1, 3)
        yield from (varints(column) for column in (table[:, 0] + 1, table[:, 1], table[:, 2]))
