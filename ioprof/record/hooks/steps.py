"""Which steps a loop makes, found from outside of it: by its optimizer's steps, or where there is none by its batches.

An optimizer's step ends a step of the job, which began where the one before ended; the first begins with the first wait for a
batch. Only one optimizer counts: the first that steps in this process, with all that others do between its steps (a second
network's, the one that it wraps). A loop that never steps an optimizer is counted by batches: a step reaches from one wait to the
next.
"""

import weakref
from collections.abc import Callable
from typing import Any, Final

from ioprof.record import gpu
from ioprof.record.hooks.session import session
from ioprof.record.span import emit as emit_span

SURE_WITHOUT_OPTIMIZER: Final = 3
"""Batches after which a process that has made no optimizer is counted by batches."""
SURE_WITH_OPTIMIZER: Final = 1000
"""Batches that one which has made an optimizer may take before that steps for the first time: gradients may be accumulated."""
REPLACED_AFTER: Final = 64
"""Steps of other optimizers in a row after which the one that counted is taken for retired."""


class Steps:
    """The steps of this process. Times are CLOCK_MONOTONIC ns."""

    def __init__(self, emit: Callable[..., None] = emit_span, ended: Callable[[int], Any] = gpu.step) -> None:
        self.number = 0
        """Of the step that is under way."""
        self.begun = False
        """Whether a step is under way: some batch was waited for, or some optimizer stepped."""
        self.trains = False
        """Whether an optimizer has made a step here."""
        self._emit, self._ended = emit, ended
        self._begin_ns = 0
        self._batch = -1
        self._waits: list[tuple[int, int | None]] = []
        """Since when each batch was waited for, while it is not known what makes a step; no number: a loader had no more."""
        self._by_batches = False
        self._counted: weakref.ref[Any] | None = None
        self._others = 0
        self._has_optimizer = False

    def began(self, start_ns: int) -> None:
        """The loop began to wait for a batch, or for the workers that will make it; says nothing new while a step is under way."""
        if not self.begun:
            self.begun, self._begin_ns = True, start_ns

    def made_optimizer(self) -> None:
        """An optimizer was made: steps of it are likely to follow."""
        self._has_optimizer = True

    def consumed(self, start_ns: int, batch: int) -> None:
        """The loop got a batch for which it had waited since `start_ns`."""
        if not self.begun:
            self.began(start_ns)
        if self._by_batches:
            self._end_batch(start_ns)
        elif self._counted is None:
            self._waits.append((start_ns, batch))
            if len(self._waits) > (SURE_WITH_OPTIMIZER if self._has_optimizer else SURE_WITHOUT_OPTIMIZER):
                self._count_batches()
        self._batch = batch

    def exhausted(self, now_ns: int) -> None:
        """A loader has no more batches: what its last one was for ends here where batches are counted."""
        if self._by_batches:
            self._end_batch(now_ns)
            self.begun = False
        elif self._counted is None and self._waits:
            self._waits.append((now_ns, None))

    def stepped(self, optimizer: Any, start_ns: int, end_ns: int) -> None:
        """An optimizer made a step that is not part of another's."""
        if not self._counts(optimizer):
            return
        if not self.begun:
            self.began(start_ns)
        if self._waits:
            self._waits.clear()
        self._by_batches = False
        self._end(end_ns)

    def finish(self, now_ns: int) -> None:
        """The recording ends: whatever was not yet decided is."""
        if self._counted is None and not self._by_batches and self._waits:
            self._count_batches()
        if self._by_batches:
            self._end_batch(now_ns)

    def _counts(self, optimizer: Any) -> bool:
        counted = self._counted() if self._counted is not None else None
        if counted is not None and counted is not optimizer and self._others < REPLACED_AFTER:
            self._others += 1
            return False
        self._others = 0
        if counted is not optimizer:
            self._counted, self.trains = weakref.ref(optimizer), True
        return True

    def _count_batches(self) -> None:
        self._by_batches = True
        waits, self._waits, self._batch = self._waits, [], -1
        for now_ns, batch in waits:
            if batch is None:
                self.exhausted(now_ns)
            else:
                self.consumed(now_ns, batch)

    def _end_batch(self, end_ns: int) -> None:
        if self._batch >= 0:
            self._end(end_ns)
        self._batch = -1

    def _end(self, end_ns: int) -> None:
        self._emit("step", self._begin_ns, max(end_ns, self._begin_ns), step=self.number, batch=self._batch)
        self._begin_ns = max(end_ns, self._begin_ns)
        self.number += 1
        self._ended(self.number - 1)


steps = Steps()


def _anew() -> None:
    steps.__init__()  # type: ignore[misc]  # the same object, since others hold it


session.renew(_anew)
