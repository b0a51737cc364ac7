"""`batches`: a loader that the hooks do not know, observed where the training loop takes its
batches.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ioprof.instrument import hooks

if TYPE_CHECKING:
    from ioprof.instrument.hooks.state import HookState

Batch = TypeVar("Batch")


def batches(iterable: Iterable[Batch]) -> Iterable[Batch]:
    """The batches of `iterable`, each observed as what the training loop waits for.

        for images, labels in ioprof.batches(my_loader):
            train(images, labels)

    Every batch that the loop takes is a wait, with a number of its own. What the same thread does
    in the meantime (reads, decoding) is the work for that batch; what other threads and processes
    do is found by time. A loader that ioprof knows, such as torch's DataLoader, may be wrapped too,
    or used by `iterable`: nothing is counted twice. Wrap it once, and iterate as often as you like.

    In a process that is not recorded `iterable` itself is returned, so that it costs nothing.
    Iterators, `len` and all attributes of `iterable` are available in both cases.
    """
    state = hooks.installed()
    return iterable if state is None or not state.is_on else _Observed(iterable, state)


class _Observed(Generic[Batch]):
    def __init__(self, iterable: Iterable[Batch], state: "HookState") -> None:
        self._iterable = iterable
        self._state = state

    def __iter__(self) -> "Iterator[Batch]":
        return _Iterator(iter(self._iterable), self._state)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # as it is with the iterable itself: a TypeError where it has none

    def __next__(self) -> Batch:
        iterable: Any = self._iterable
        if not isinstance(iterable, Iterator):
            raise TypeError(f"{type(iterable).__name__!r} object is not an iterator")
        iterator: _Iterator[Batch] = _Iterator(iterable, self._state)
        return next(iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


class _Iterator(Generic[Batch]):
    def __init__(self, iterator: Iterator[Batch], state: "HookState") -> None:
        self._iterator = iterator
        self._state = state

    def __iter__(self) -> "Iterator[Batch]":
        return self

    def __next__(self) -> Batch:
        state = self._state
        thread = state.per_thread.current
        # as in a loader that takes from this one
        if thread.waiting or not state.is_consumer(thread):
            return next(self._iterator)
        from ioprof.instrument.hooks.own_batches import take_batch

        return take_batch(self._iterator, state, thread)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
