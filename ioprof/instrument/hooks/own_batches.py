"""The next batch of a loader that only the user knows; see `ioprof.batches`."""

from collections.abc import Iterator
from typing import TypeVar

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.hooks.waits import end_wait, end_wait_without_batch
from ioprof.instrument.span import emit

Batch = TypeVar("Batch")


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
        emit("fetch", start_ns, end_ns, batch=number)
    end_wait(state, thread, start_ns, end_ns, number)
    return batch
