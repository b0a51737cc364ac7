"""Waits for batches, whichever library makes the batches."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.pytorch.evaluations import wants_gradients
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.span import emit

if TYPE_CHECKING:
    from ioprof.instrument.hooks.loader_use import LoaderUse

NO_GRADIENTS: Final = "no gradients"
"""What batches were received for before the first step of training, if no gradients were wanted:
not known yet."""


def end_wait(
    state: HookState,
    thread: ThreadState,
    start_ns: int,
    end_ns: int,
    number: int,
    was_recorded: bool = False,
    use: "LoaderUse | None" = None,
) -> None:
    """The thread waited for the batch of that number, and has it; the span of the wait may have
    been recorded before.

    `use` is of the loader that the batch came from, if that is known.
    """
    thread.loop.have_batch()
    steps = state.steps
    thread.trains = True
    thread.num_waits += 1
    if not was_recorded:
        validates = state.validates or (steps.trains and _evaluates(thread, use))
        evaluation = thread.loop.evaluation
        if validates:
            evaluation.was_fed = True
        elif evaluation.num_passes:
            evaluation.end(start_ns, steps.number, steps.trains)
        purpose = "validate" if validates else None
        emit("wait", start_ns, end_ns, purpose, batch=number, step=steps.known_number)
        if use is not None:
            use.add(purpose or ("train" if steps.trains or wants_gradients() else NO_GRADIENTS))
            if not validates:
                steps.take_from(use)
    steps.consume(start_ns, number)
    thread.loop.end_wait(start_ns, end_ns)


def _evaluates(thread: ThreadState, use: "LoaderUse | None") -> bool:
    """Whether a process that trains wants the batch to validate on; of others nothing is known."""
    if not wants_gradients():
        return True
    return thread.loop.evaluation.is_in_progress and not (use is not None and use.trains)


def end_wait_without_batch(
    state: HookState, thread: ThreadState, start_ns: int, end_ns: int
) -> None:
    """The thread waited to learn that there is no further batch."""
    thread.num_waits += 1
    emit("wait", start_ns, end_ns, "end")
    state.steps.end_epoch(start_ns)
    thread.loop.end_wait(start_ns, end_ns)


def wait_for(
    take: Callable[[], Any],
    state: HookState,
    number_of: Callable[[Any], int] | None,
    end: type[Exception] = StopIteration,
) -> Any:
    """What `take` returns, for which the training loop waits in this thread; it raises `end` where
    there is no further batch.

    `number_of` tells the number of the batch that is there; None: it gets a new one.
    """
    thread = state.per_thread.current
    state.start_rank()
    thread.loop.begin_wait()
    start_ns = monotonic_ns()
    thread.waiting = thread.trains = True
    try:
        batch = take()
    except end:
        end_wait_without_batch(state, thread, start_ns, monotonic_ns())
        raise
    except BaseException:
        emit("wait", start_ns, monotonic_ns())
        raise
    finally:
        thread.waiting = False
    end_ns = monotonic_ns()
    thread.taken = state.take_number() if number_of is None else number_of(batch)
    end_wait(state, thread, start_ns, end_ns, thread.taken)
    return batch


def with_waits(
    batches: Iterator[Any], state: HookState, number_of: Callable[[Any], int] | None = None
) -> Iterator[Any]:
    """The same batches, each with a wait for it where the training loop takes it, see `wait_for`;
    `batches` is closed in the end.
    """
    try:
        while True:
            thread = state.per_thread.current
            is_observed = state.is_consumer(thread) and not thread.waiting
            try:
                batch = (
                    wait_for(batches.__next__, state, number_of) if is_observed else next(batches)
                )
            except StopIteration:
                return
            yield batch
            del batch
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
