"""A job whose ranks get as much work as each other."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ioprof.model.pipeline import Pipeline, Rank, Seconds


def with_equal_ranks(pipeline: Pipeline) -> Pipeline | None:
    """The pipeline where each step, and each batch, takes every rank what it took them on average.
    None: they did not do the same things in the same order.
    """
    return _with_rows(pipeline, lambda rows: np.broadcast_to(rows.mean(0), rows.shape))


def with_mixed_ranks(pipeline: Pipeline) -> Pipeline | None:
    """The same where each rank gets the work of one of them for each step, by chance: as much in
    the end, but not in each step.
    """
    random = np.random.default_rng(0)

    def mixed(rows: Seconds) -> Seconds:
        order = np.argsort(random.random(rows.shape[:2]), axis=0)
        shape = (*order.shape, *(1 for _ in rows.shape[2:]))
        return np.take_along_axis(rows, order.reshape(shape), axis=0)

    return _with_rows(pipeline, mixed)


def _with_rows(pipeline: Pipeline, change: Callable[[Seconds], Seconds]) -> Pipeline | None:
    """`change` takes and gives what each rank took for each row, shape (ranks, rows, ...)."""
    ranks = pipeline.ranks
    if len(ranks) < 2 or len({_order(rank) for rank in ranks}) > 1:
        return None
    before = np.stack([rank.program.after_s for rank in ranks])
    own, arrived = change(before), np.stack([rank.program.arrive_s for rank in ranks])
    arrived = arrived * own.sum(2) / np.maximum(before.sum(2), 1e-12)
    made = [
        change(np.stack([each.tasks.stages_s for each in iterations]))
        for iterations in zip(*(rank.iterations for rank in ranks), strict=True)
    ]
    return replace(
        pipeline,
        ranks=tuple(
            _rank(rank, own[number], arrived[number], [each[number] for each in made])
            for number, rank in enumerate(ranks)
        ),
    )


def _order(rank: Rank) -> tuple[object, ...]:
    """What it did, in order."""
    program = rank.program
    tasks = tuple(len(each.tasks) for each in rank.iterations)
    return program.ops, program.iterations, program.step.tobytes(), tasks


def _rank(rank: Rank, after_s: Seconds, arrive_s: Seconds, stages_s: Sequence[Seconds]) -> Rank:
    iterations = tuple(
        replace(each, tasks=replace(each.tasks, stages_s=made))
        for each, made in zip(rank.iterations, stages_s, strict=True)
    )
    program = replace(rank.program, after_s=after_s, arrive_s=arrive_s)
    return replace(rank, program=program, iterations=iterations)
