"""Whether what processes of a pool return are the batches of the training loop, or something else:
metrics, checkpoints.

They are batches if they may hold data, if the tasks were not given results of computation
(`holds_values`), and if the loop waits for them in most of its steps. Until that is known, in the
third such step, waits are held back. A pool of which it never becomes known is left alone: nothing
is said of its tasks, and a wait for them is Python of the loop, at the line that waits.
"""

import weakref
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from ioprof.instrument.hooks.batch_numbering import Series
from ioprof.instrument.hooks.handover import is_loop, take_numbered
from ioprof.instrument.hooks.state import HookState

FEWEST_STEPS: Final = 3
"""Steps in which the loop must have waited for a result of a pool,"""
LEAST_RATIO: Final = 0.5
"""and the part of all steps since the first of them that these must be."""
_FEWEST_VALUES: Final = 8
"""Numbers or bytes below which a result is no batch, but a few values of a metric."""
_MOST_ENTRIES: Final = 64
"""Entries of a container that are looked at,"""
_DEEPEST: Final = 4
"""and levels of containers."""
_AHEAD: Final = 512
"""Tasks that may have been sent before the loop waits for the next result."""
_MOST_HELD: Final = 64
_MOST_TASKS: Final = 64
"""Tasks of a pool whose arguments are looked at."""
_SUPPLY: Final = "_ioprof_supply"
_SERIES: Final = "_ioprof_series"
_NUMBERS: Final = (bool, int, float, complex)


class Supply:
    """What is known of one pool."""

    def __init__(self) -> None:
        self.feeds_loop = False
        """Its results are the batches of the loop."""
        self.pipe = 0
        """Inode of the pipe of the results; 0: it is not known, or threads make them."""
        self.workers = 0
        """Its processes."""
        self.evaluates = False
        """Its tasks are given results of computation, so they compute metrics, or write what the
        loop made."""
        self._num_tasks = 0
        self._given: list[Callable[[Any], bool]] = []
        """Of each argument of the task before, see `_same_as`."""
        self._first = self._last = -1
        self._count = 0
        self._held: list[tuple[Callable[[], int], int, int, int]] = []
        """Waits whose number is not known yet: what takes it, start, end and step."""

    def give(self, *arguments: Any) -> None:
        """A task with these arguments is sent to the pool. What the task before had too was not
        computed since: a dataset.
        """
        if self._num_tasks < _MOST_TASKS and not self.evaluates:
            fresh = [each for each in arguments if not any(is_it(each) for is_it in self._given)]
            self.evaluates = self._num_tasks > 0 and holds_values(fresh)
            self._num_tasks += 1
            self._given = [_same_as(each) for each in arguments[:_MOST_ENTRIES]]

    def end_wait(
        self,
        state: HookState,
        number: Callable[[], int],
        result: Any,
        start_ns: int,
        end_ns: int,
        name: str,
    ) -> None:
        """The loop waited for a result; `number` is called for the number of its task, once the
        pool is known to feed the loop.
        """
        thread = state.per_thread.current
        if not may_be_batch(result):
            return
        if thread.takes_part:
            self.feeds_loop = True
        elif self.evaluates and not self.feeds_loop:
            return
        if not self.feeds_loop:
            step = state.steps.number
            self._count_step(step)
            if len(self._held) < _MOST_HELD:
                self._held.append((number, start_ns, end_ns, step))
            if not self.feeds_loop:
                return
            held, self._held = self._held, []
            for of_earlier, begin_ns, finish_ns, of_step in held[:-1]:
                take_numbered(state, thread, of_earlier(), begin_ns, finish_ns, name, of_step)
        take_numbered(state, thread, number(), start_ns, end_ns, name)

    def numbers(
        self, owner: Any, loader: str, place: int, state: HookState, job: int = 0
    ) -> Series | None:
        """The numbers of the tasks of a job, from the first place that this was asked for up to
        those that may have been sent when the loop gets the task of this place; kept with `owner`.
        None: threads make them.

        Which of these tasks there are is not known, so that none of their numbers is given back.
        """
        series: Series | None = vars(owner).get(_SERIES)
        if series is None:
            if not self.pipe:
                return None
            state.start_rank()
            if state.steps.batch < 0:
                state.record_fact(loader=loader, workers=self.workers)
            series = vars(owner)[_SERIES] = Series(state.batch_numbers, self.pipe)
            series.epoch = job - 1
            series.begin_epoch()
            series.limit = place
        if place + _AHEAD > series.limit:
            series.sent = place + _AHEAD
            series.reach(state.spool, state.identity.rank)
            series.sent = series.limit
        return series

    def _count_step(self, step: int) -> None:
        if self._first < 0:
            self._first = step
        if step != self._last:
            self._last, self._count = step, self._count + 1
        self.feeds_loop = self._count >= FEWEST_STEPS and self._count >= LEAST_RATIO * (
            step - self._first + 1
        )
        if self._count >= FEWEST_STEPS and not self.feeds_loop:
            self._first, self._count, self._held = step, 1, []  # it may begin to


def _same_as(value: Any) -> Callable[[Any], bool]:
    """What says of another value whether it is this one, which it does not keep. Of a container of
    Python by its address and those of its entries.
    """
    try:
        known = weakref.ref(value)
    except TypeError:
        addresses = _addresses(value)
        return lambda other: addresses == _addresses(other)
    return lambda other: known() is other


def _addresses(value: Any) -> list[int]:
    entries = list(dict.values(value)) if isinstance(value, dict) else value
    entries = entries[:_MOST_ENTRIES] if type(entries) in (list, tuple) else ()
    return [id(value), *map(id, entries)]


def supply_of(pool: Any) -> Supply:
    """What is known of this pool."""
    supply: Supply | None = vars(pool).get(_SUPPLY)
    if supply is None:
        supply = vars(pool)[_SUPPLY] = Supply()
    return supply


def is_fed(state: HookState) -> bool:
    """Whether this thread is in a training loop to which no loader gives batches: else the pool
    works on something else.
    """
    thread = state.per_thread.current
    return is_loop(state, thread) and (thread.num_waits == 0 or thread.takes_part)


def holds_values(arguments: Any, depth: int = 0) -> bool:
    """Whether arguments hold what a model may have computed: floating-point numbers, at least
    `_FEWEST_VALUES` in one container.

    What a loader's tasks get are indices, names, encoded files and pixels.
    """
    if isinstance(arguments, Mapping):
        arguments = list(arguments.values())
    if isinstance(arguments, list | tuple):
        entries = arguments[:_MOST_ENTRIES]
        num_values = sum(isinstance(entry, float) for entry in entries)
        return num_values >= _FEWEST_VALUES or (
            depth < _DEEPEST and any(holds_values(entry, depth + 1) for entry in entries)
        )
    shape = getattr(arguments, "shape", None)
    if not isinstance(shape, tuple) or "float" not in str(getattr(arguments, "dtype", "")):
        return False
    return all(isinstance(length, int) for length in shape) and prod(shape) >= _FEWEST_VALUES


def may_be_batch(result: Any, depth: int = 0) -> bool:
    """Whether a result may hold data to train with: not a number, a text, nothing at all, or few of
    these.

    An object of a class that is not known may.
    """
    if result is None or isinstance(result, (*_NUMBERS, str)):
        return False
    if isinstance(result, bytes | bytearray | memoryview):
        return len(result) >= _FEWEST_VALUES
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple | set | frozenset):
        entries = list(result)[:_MOST_ENTRIES]
        is_data = sum(isinstance(entry, _NUMBERS) for entry in entries) >= _FEWEST_VALUES
        return is_data or (
            depth < _DEEPEST and any(may_be_batch(entry, depth + 1) for entry in entries)
        )
    shape = getattr(result, "shape", None)
    if isinstance(shape, tuple) and all(isinstance(length, int) for length in shape):
        return prod(shape) >= _FEWEST_VALUES
    return True
