"""The next batch of a loader that only the user knows; see `ioprof.batches`."""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.hooks.waits import end_wait, end_wait_without_batch
from ioprof.instrument.span import emit

Batch = TypeVar("Batch")
_MOST_PARTS: Final = 16
_UNKNOWN: Final = -1


def take_batch(iterator: Iterator[Batch], state: HookState, thread: ThreadState) -> Batch:
    """The next batch, with a `wait` for it, and a `fetch` of the same number where this thread made
    it itself.

    Where an observed loader has handed out a batch meanwhile, its wait is the one that counts.
    Where another thread has made the batch, its number is the one that counts.
    """
    state.start_rank()
    state.steps.begin(start_ns := monotonic_ns())
    num_waits, thread.taken = thread.num_waits, -1
    number = state.take_number()
    thread.begin_product(number)
    is_nested = thread.waiting
    thread.trains = thread.waiting = thread.takes_part = True
    try:
        batch = next(iterator)
    except StopIteration:
        end_ns = monotonic_ns()
        if thread.num_waits == num_waits:
            end_wait_without_batch(state, thread, start_ns, end_ns)
        raise
    finally:
        end_ns = monotonic_ns()
        thread.waiting, thread.takes_part = is_nested, False
        thread.end_product()
    if thread.num_waits != num_waits:
        return batch
    if thread.taken >= 0:
        number = thread.taken
    else:
        emit("fetch", start_ns, end_ns, batch=number, offset=_num_samples(batch))
    end_wait(state, thread, start_ns, end_ns, number)
    return batch


def _num_samples(batch: Any) -> int:
    """The first dimension that all arrays of a batch share; -1: there is none, or it need not be
    the number of samples: a list of equal shapes may be the samples themselves.
    """
    try:
        parts = batch.values() if isinstance(batch, dict) else batch
        if not isinstance(batch, dict | list | tuple):
            parts = (batch,)
        elif len(batch) > _MOST_PARTS:
            return _UNKNOWN
        shapes = [tuple(shape) for each in parts if (shape := getattr(each, "shape", None))]
        first = {int(shape[0]) for shape in shapes}
    except Exception:  # an object of the job may do anything when it is asked
        return _UNKNOWN
    is_shared = len(first) == 1 and (len(shapes) == 1 or len(set(shapes)) > 1)
    return first.pop() if is_shared else _UNKNOWN
