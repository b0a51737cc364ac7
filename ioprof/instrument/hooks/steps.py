"""The steps of a training loop: marked by the loop itself, or else by its optimizer's steps, or
else by its batches.

An optimizer's step ends a step of the job, which began where the one before ended; the first begins
with the first wait for a batch. Only one optimizer counts: the first that steps in this process,
with all that others do between its steps (a second network's, the one that it wraps), until it is
used no longer: then the next one does, and its steps up to then count too. A loop that never steps
an optimizer is counted by batches: a step lasts from one wait to the next. A loop that marks its
steps (`ioprof.instrument.manual`) has those, and neither optimizers nor batches count.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ioprof.instrument.hooks.native_numbers import StepNumbers
from ioprof.instrument.span import emit as emit_span

if TYPE_CHECKING:
    from ioprof.instrument.hooks.loader_use import LoaderUse

SURE_WITHOUT_OPTIMIZER: Final = 3
"""Batches after which a process that has made no optimizer is counted by batches."""
SURE_WITH_OPTIMIZER: Final = 1000
"""Batches that one which has made an optimizer may take before that steps for the first time:
gradients may be accumulated."""
REPLACED_AFTER: Final = 64
"""Steps of other optimizers in a row after which the one that counted is taken as no longer used,
and those count."""
_FEWEST_LEFT: Final = 16
"""The same at the end of the recording, and for one that comes after another."""


class Steps(StepNumbers):
    """The steps of this process. Times are CLOCK_MONOTONIC ns.

    What the step of an optimizer does as a rule, the extension does by itself (`steps_end` of
    `native/spans/steps.c`).
    """

    def __init__(self, emit: Callable[..., None] | None = None) -> None:
        self.number = 0
        """Of the step in progress."""
        self.known_number = -1
        """The same, once it is certain what makes a step; -1 before that, and where batches are
        counted."""
        self.begun = False
        """Whether a step is in progress: some batch was waited for, or some optimizer stepped."""
        self.trains = False
        """Whether an optimizer has made a step here."""
        self.ended: Callable[[int], Any] | None = None
        """Called with the number of a step that ends. It returns the time until which that need not
        be done again."""
        self.looks_ahead = False
        """A loop waits for batches that it will use later. Who observes it calls `consume` again
        when the loop is given each."""
        self.waited = (-1, -1)
        """The batch that was waited for before the last one, and the last one."""
        self._use: LoaderUse | None = None
        """Of the loader of the last batch that was not one to validate on."""
        self._has_stepped = False
        """A step has ended since that batch."""
        self._emit_elsewhere = emit
        self._emit = emit or emit_span
        self._begin_ns = self._ready_ns = 0
        self._batch = -1
        self._waits: list[tuple[int, int | None]] = []
        """Start of the wait for each batch, while it is not certain what makes a step; None: a
        loader had no more."""
        self._by_marks = False
        self._by_batches = False
        self._counted: weakref.ref[Any] | None = None
        self._others: list[tuple[weakref.ref[Any], int, int]] = []
        """Steps of others since the one that counts stepped last: of which, its end, and the
        batch."""
        self._has_optimizer = False

    @property
    def expected_number(self) -> int:
        """Number of the step in progress if an optimizer was made or the loop marks its steps; -1
        if batches may be counted.
        """
        return self.number if self._has_optimizer or self.known_number >= 0 else -1

    @property
    def batch(self) -> int:
        """The batch that the loop got last; -1: none, or its number is not known."""
        return self._batch

    @batch.setter
    def batch(self, number: int) -> None:
        self._batch = number

    def begin(self, start_ns: int, ready_ns: int = 0) -> None:
        """The loop began to wait for a batch, or for the workers that will make it, which were
        there at `ready_ns`; ignored while a step is in progress.
        """
        if not self.begun:
            self.begun, self._begin_ns, self._ready_ns = True, start_ns, ready_ns

    def add_optimizer(self) -> None:
        """An optimizer was made: steps of it are likely to follow."""
        self._has_optimizer = True

    def consume(self, start_ns: int, batch: int) -> None:
        """The loop got a batch for which it had waited since `start_ns`."""
        if not self.begun:
            self.begin(start_ns)
        if self._ready_ns:
            # a loader that starts its workers when it is made is no part of the first step
            if start_ns - self._ready_ns > self._ready_ns - self._begin_ns:
                self._begin_ns = start_ns
            self._ready_ns = 0
        if self.looks_ahead:
            self.waited = (self.waited[1], batch)
            return
        if self._by_batches:
            self._end_batch(start_ns)
        elif self._counted is None and not self._by_marks:
            self._waits.append((start_ns, batch))
            if len(self._waits) > (
                SURE_WITH_OPTIMIZER if self._has_optimizer else SURE_WITHOUT_OPTIMIZER
            ):
                self._count_batches()
        self._batch = batch

    def take_from(self, use: "LoaderUse") -> None:
        """The loop waited for a batch of that loader, and not to validate, as far as is known."""
        if use is self._use and not self._has_stepped:
            use.add("no step")
        self._use, self._has_stepped = use, False

    def take(self, batch: int) -> None:
        """The loop took what a thread of its process made: the batch of the step in progress,
        unless a loader gives batches.
        """
        if self._batch < 0:
            self._batch = batch

    def end_epoch(self, now_ns: int) -> None:
        """A loader has no more batches: where batches are counted, the step of its last one ends
        here.
        """
        if self.looks_ahead:
            return
        if self._by_batches:
            self._end_batch(now_ns)
            self.begun = False
        elif self._counted is None and self._waits:
            self._waits.append((now_ns, None))

    def step_optimizer(self, optimizer: Any, start_ns: int, end_ns: int) -> None:
        """An optimizer made a step that is not part of another's."""
        if not self._counts(optimizer, end_ns) or self._by_marks:
            return
        if not self.begun:
            self.begin(start_ns)
        if self._waits:
            self._waits.clear()
        self._by_batches = False
        self._end(end_ns)
        self.known_number = self.number

    def restart(self) -> None:
        """What was done up to now was no part of the training, whose first step is still to
        come.
        """
        if not (self.trains or self._by_marks or self._by_batches):
            self.begun = False
            self._waits.clear()

    def begin_marked(self, now_ns: int) -> None:
        """From now on the loop marks its steps, of which one begins here; what was in progress is
        dropped.
        """
        self._by_marks, self._by_batches = True, False
        self._waits.clear()
        self.begun, self._begin_ns, self._batch, self.known_number = True, now_ns, -1, self.number

    def mark_end(self, now_ns: int) -> None:
        """A marked step ends, and the next begins; it belongs to the batch that was consumed
        last.
        """
        self._end(now_ns)
        self.known_number = self.number

    def finish(self, now_ns: int) -> None:
        """The recording ends: emit what is not decided yet."""
        self._count_others(_FEWEST_LEFT)
        if self._counted is None and not self._by_batches and self._waits:
            self._count_batches()
        if self._by_batches:
            self._end_batch(now_ns)

    def _counts(self, optimizer: Any, end_ns: int) -> bool:
        counted = self._counted() if self._counted is not None else None
        if self._others and counted is not optimizer:
            self._count_others(REPLACED_AFTER if counted is not None else 1)
            counted = self._counted() if self._counted is not None else None
        if counted is not None and counted is not optimizer:
            self._others.append((weakref.ref(optimizer), end_ns, self._batch))
            return False
        self._others.clear()
        if counted is not optimizer:
            self._counted, self.trains = weakref.ref(optimizer), True
        return True

    def _count_others(self, fewest: int) -> None:
        """Emit the steps of those that came after the one that counted, one after the other, if
        there are so many; the last of them counts from now on. Of those that step in turn the first
        counts.
        """
        if len(self._others) < fewest or self._by_marks:
            return
        others, batch = self._others, self._batch
        last = {id(which): place for place, (which, _, _) in enumerate(others)}
        current = others[0][0]
        for place, (which, end_ns, self._batch) in enumerate(others):
            if which is not current and last[id(current)] < place <= len(others) - _FEWEST_LEFT:
                current = which
            if which is current:
                self._end(end_ns)
        self._others = others[last[id(current)] + 1 :]
        self._counted, self._batch, self.known_number = current, batch, self.number

    def _count_batches(self) -> None:
        self._by_batches = True
        waits, self._waits, self._batch = self._waits, [], -1
        for now_ns, batch in waits:
            if batch is None:
                self.end_epoch(now_ns)
            else:
                self.consume(now_ns, batch)

    def _end_batch(self, end_ns: int) -> None:
        if self._batch >= 0:
            self._end(end_ns)
        self._batch = -1

    def _end(self, end_ns: int) -> None:
        end_ns = max(end_ns, self._begin_ns)
        self._emit("step", self._begin_ns, end_ns, step=self.number, batch=self._batch)
        self._begin_ns = end_ns
        self.number += 1
        if self._use is not None and not self._has_stepped:
            self._use.add("step")
            self._has_stepped = True
        if self.ended is not None:
            self.ended(self.number - 1)
