"""Batch numbers: no two batches of a process share one, and the worker knows the consumer's without
being told in its tasks."""

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ioprof.format.schema import BATCHES_OF_SERIES
from ioprof.instrument.hooks.batch_numbering import Allotment, PublishedNumbers, Series

EPOCHS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            [
                0,
                1,
                7,
                BATCHES_OF_SERIES - 1,
                BATCHES_OF_SERIES,
                BATCHES_OF_SERIES + 1,
                2 * BATCHES_OF_SERIES + 3,
            ]
        ),
    ),
    max_size=12,
)
"""Which loader begins an epoch next, and how many tasks it sends before another does."""


@given(EPOCHS, st.booleans())
def test_numbers_are_unique_and_known_to_workers(
    epochs: list[tuple[int, int]], ended: bool
) -> None:
    """Loaders that take turns, end their epochs or leave them open: each task has a number of its
    own, which its worker finds."""
    allotment = Allotment()
    loaders = [Series(allotment, pipe) for pipe in (11, 12, 13)]
    with tempfile.TemporaryDirectory() as folder:
        workers = [PublishedNumbers(Path(folder), os.getpid(), loader.pipe) for loader in loaders]
        seen: list[int] = []
        begun = [False] * 3
        for place, num_tasks in epochs:
            loader, worker = loaders[place], workers[place]
            loader.begin_epoch()
            if begun[place]:
                worker.begin_epoch()
            begun[place] = True
            for task in range(num_tasks):
                loader.sent = task + 1
                loader.reach(Path(folder), 5)
                assert worker.number(task) == loader.number(task) >= 0
                seen.append(loader.number(task))
            if ended:
                loader.end_epoch()
            if num_tasks:
                assert 5 == worker.rank
    assert len(seen) == len(set(seen))
    if ended:
        assert [*range(len(seen))] == seen


def test_a_task_that_nobody_speaks_of_has_no_number(tmp_path: Path) -> None:
    """A worker whose consumer is not recorded, or left a file that was cut, says -1."""
    worker = PublishedNumbers(tmp_path, 1, 11)
    assert -1 == worker.number(0)
    (tmp_path / f"batches-{os.uname().nodename}-1").write_bytes(b"half an entry")
    assert -1 == worker.number(0)
    assert -1 == Series(Allotment()).number(3)


def test_what_was_not_sent_is_given_back() -> None:
    """The number of a task for which there was nothing to load is the next task's."""
    allotment = Allotment()
    first, second = Series(allotment), Series(allotment)
    first.begin_epoch()
    assert [0, 1] == [first.take(Path(), -1) for _ in range(2)]
    first.take_back()
    first.end_epoch()
    second.begin_epoch()
    assert (0, 1) == (first.number(0), second.take(Path(), -1))


@given(st.integers(0, BATCHES_OF_SERIES), st.integers(0, 3), st.booleans())
def test_numbers_ahead_of_what_is_sent_are_nobody_elses(
    sent: int, ahead: int, between: bool
) -> None:
    """A loader may have taken a block for tasks that it then does not send; another one that took a
    block before that keeps it."""
    allotment = Allotment()
    first, second = Series(allotment), Series(allotment)
    first.begin_epoch()
    first.sent = BATCHES_OF_SERIES
    first.reach(Path(), -1)
    second.begin_epoch()
    seen = [first.number(task) for task in range(sent)]
    seen += [second.take(Path(), -1)] if between else []
    first.sent = sent + ahead
    first.reach(Path(), -1)
    first.sent = sent
    first.end_epoch()
    first.begin_epoch()
    seen += [first.take(Path(), -1), second.take(Path(), -1)]
    assert len(seen) == len(set(seen))
