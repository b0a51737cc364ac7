"""Manual instrumentation: what a job says itself where no hook can see it. Without hooks in the
process nothing happens.

    manual.start_rank()
    manual.begin_steps()                        # the loop marks its steps: optimizers and batches
                                                are not counted as steps
    for number in range(steps):
        with manual.wait_for_batch(number):     # only for loaders that the hooks do not know
            batch = make(number)
        train(batch)
        manual.end_step()
    manual.stop()

What took time is a span, see `ioprof.instrument.span`:
`span("fault", file=..., batch=manual.current_batch())`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ioprof.clock import monotonic_ns
from ioprof.instrument import hooks
from ioprof.instrument.hooks.observers import transforming as transforming
from ioprof.instrument.span import emit

__all__ = [
    "begin_steps", "consumed_batch", "current_batch", "end_step", "flush", "making_batch",
    "new_batch_number", "start_rank", "stop", "transforming",
    "unrecorded_collectives", "validating", "wait_for_batch",
]  # fmt: skip


def start_rank(gpu_window: str | None = None) -> None:
    """Record this process as a training rank; `gpu_window` overrides when its GPU is recorded, see
    `ioprof.instrument.gpu.plan`.
    """
    state = hooks.installed()
    if state is not None and state.is_on:
        state.start_rank(gpu_window)


def stop() -> None:
    """End the recording of this process, as its normal end would: for processes that leave by
    `os._exit`.
    """
    state = hooks.installed()
    if state is not None:
        state.end()


def flush() -> None:
    """Emit what the hooks hold back until more is known of it: the last backward pass of a DDP
    model, which must still exist.
    """
    state = hooks.installed()
    if state is not None and state.is_on:
        state.flush()


def current_batch() -> int:
    """Number of the batch that this thread is fetching; -1: it is fetching none, or its number is
    not known.
    """
    state = hooks.installed()
    return -1 if state is None else state.per_thread.current.batch


@contextmanager
def wait_for_batch(number: int) -> Iterator[None]:
    """The training loop waits for a batch in this block; a loader that runs in it, and is known to
    the hooks, adds no wait.
    """
    state = hooks.installed()
    thread = None if state is None else state.per_thread.current
    if state is None or thread is None or not state.is_consumer(thread):
        yield
        return
    from ioprof.instrument.hooks.waits import end_wait

    state.start_rank()
    thread.begin_batch(number)
    start_ns = monotonic_ns()
    try:
        yield
    finally:
        thread.end_batch()
    end_wait(state, thread, start_ns, monotonic_ns(), number)


def new_batch_number(default: int) -> int:
    """A number for a batch that a thread of this process will make, which no other batch has;
    `default` without hooks.
    """
    state = hooks.installed()
    if state is None or not state.is_on:
        return default
    return int(state.take_number())


@contextmanager
def making_batch(number: int) -> Iterator[None]:
    """Make the batch of that number in this block, for the training loop in another thread: a
    `fetch` span.
    """
    state = hooks.installed()
    if state is None or not state.is_on:
        yield
        return
    thread = state.per_thread.current
    thread.begin_batch(number)
    start_ns = monotonic_ns()
    try:
        yield
    finally:
        emit("fetch", start_ns, monotonic_ns(), batch=number)
        thread.end_batch()


def begin_steps(first: int = 0) -> None:
    """The training loop begins its first step, which has the number `first`; from now on `end_step`
    ends each.
    """
    state = hooks.installed()
    if state is not None and state.is_on:
        state.steps.number = first
        state.steps.begin_marked(monotonic_ns())


def end_step() -> None:
    """The training loop ends a step, and begins the next one. The step belongs to the batch that
    was consumed last.
    """
    state = hooks.installed()
    if state is not None and state.is_on:
        state.steps.mark_end(monotonic_ns())


def consumed_batch(default: int) -> int:
    """The number of the batch that the training loop got last, as spans have it; `default` where
    the hooks do not know it.

    It differs from a loader's own number where several loaders took turns, or where a loader began
    with a later batch.
    """
    state = hooks.installed()
    return (
        default if state is None or not state.is_on or state.steps.batch < 0 else state.steps.batch
    )


@contextmanager
def validating() -> Iterator[None]:
    """The training loop evaluates its model in this block: a `validate` span. Its batches are not
    those of the step in progress.
    """
    state = hooks.installed()
    if state is None or not state.is_on:
        yield
        return
    before, state.validates, batch = state.validates, True, state.steps.batch
    start_ns = monotonic_ns()
    try:
        yield
    finally:
        state.validates, state.steps.batch = before, batch
        emit("validate", start_ns, monotonic_ns(), "validation")


@contextmanager
def unrecorded_collectives() -> Iterator[None]:
    """Collectives that this thread calls in the block are not recorded: they are no part of the
    training.
    """
    state = hooks.installed()
    if state is None:
        yield
        return
    loop = state.per_thread.current.loop
    before, loop.in_collective = loop.in_collective, True
    try:
        yield
    finally:
        loop.in_collective = before
