"""Batches that threads of the training process make, and hand over to its loop: as results of
futures, or through queues.

A thread is a worker of the loop if the loop has taken something that it made. Until then what it
made is held back, and nothing is said of it: most thread pools and queues have nothing to do with
training. What the loop takes gets a number. The `fetch` span is the maker's, which emits it with
its next one, or at once when it is known to be a worker.
"""

from typing import Any, Final

from ioprof.instrument.hooks.products import Maker, Product
from ioprof.instrument.hooks.state import HookState, ThreadState
from ioprof.instrument.span import emit

SHORTEST_WAIT_NS: Final = 100_000
"""A shorter wait of the loop for something of an unknown maker is not recorded."""


def maker_of(thread: ThreadState) -> Maker:
    """What this thread makes."""
    if thread.maker is None:
        thread.maker = Maker()
    return thread.maker


def may_make(state: HookState, thread: ThreadState) -> bool:
    """Whether this thread may be one that makes batches for a loop in the same process."""
    return (
        state.is_on
        and not state.is_deferred
        and not thread.trains
        and not thread.fetching
        and state.identity.role != "worker"
    )


def is_loop(state: HookState, thread: ThreadState) -> bool:
    """Whether this thread is in a step of a training loop."""
    if thread.waiting and not thread.takes_part:
        return False
    return thread.trains and state.steps.begun and state.is_on and not thread.fetching


def take(
    state: HookState,
    thread: ThreadState,
    product: Product | None,
    start_ns: int,
    end_ns: int,
    name: str,
) -> None:
    """The loop has taken a product, or something of an unknown maker, for which it has waited since
    `start_ns`.
    """
    number = -1
    if product is not None:
        if product.number < 0:
            product.number = state.take_number()
        product.maker.feeds_loop = True
        number = thread.taken = product.number
    take_numbered(state, thread, number, start_ns, end_ns, name)


def take_numbered(
    state: HookState,
    thread: ThreadState,
    number: int,
    start_ns: int,
    end_ns: int,
    name: str,
    step: int = -1,
) -> None:
    """The loop has taken what has this number (-1: it is not known), for which it has waited since
    `start_ns`. Of a batch that has a number it is recorded even if it was there: the replay needs
    to know when each was taken.

    `step`: it did so in that step, which has ended since; -1: just now.
    """
    if thread.waiting:
        return
    if number >= 0 or end_ns - start_ns >= SHORTEST_WAIT_NS:
        emit(
            "wait",
            start_ns,
            end_ns,
            name,
            batch=number,
            step=state.steps.known_number if step < 0 else step,
        )
        if step < 0:
            thread.loop.add_gap(start_ns, end_ns)
    if number >= 0 and step < 0:
        state.steps.take(number)


def product_of(thing: Any) -> Product | None:
    """What `mark` has written to a future."""
    product: Product | None = vars(thing).get(_PRODUCT)
    return product


def mark(thing: Any, product: Product) -> None:
    """Write to a future who made its result."""
    vars(thing)[_PRODUCT] = product


_PRODUCT: Final = "_ioprof_product"
