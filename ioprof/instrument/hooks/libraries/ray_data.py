"""Observes Ray Data where batches are consumed: `wait` spans of the loop that iterates over a
dataset or a shard of one.

Batches are made by tasks in processes of Ray, which carry no number of the batch: what those
processes read and decoded meanwhile is found by time. The numbers here tie a wait to its step only.
What a task takes to make its next block is a `transform` span named "Ray Data task"; reads and
decoding within it are counted as such.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.waits import with_waits
from ioprof.instrument.span import emit

LIBRARY: Final = Library("ray", "ray")
TASK: Final = "Ray Data task"


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `ray.data._internal.block_batching.iter_batches`, or the module of what tasks do."""
    if module.__name__.endswith(".map_transformer"):
        state.wrap(module, "MapTransformer.apply_transform", _observe_task)
    else:
        state.wrap(module, "BatchIterator.__iter__", _observe_iter)


def _observe_iter(original: Function, state: HookState) -> Function:
    def iterate(self: Any) -> Iterator[Any]:
        if not state.is_consumer(state.per_thread.current):
            return original(self)  # type: ignore[no-any-return]
        LIBRARY.use(state)
        size = getattr(self, "_batch_size", None)
        state.record_fact(
            loader="Ray Data",
            batch_size=size if isinstance(size, int) else None,
            prefetch=getattr(self, "_prefetch_batches", None),
        )
        return with_waits(original(self), state)

    return iterate


def _observe_task(original: Function, state: HookState) -> Function:
    def apply_transform(*args: Any, **kwargs: Any) -> Any:
        blocks = original(*args, **kwargs)
        if not state.is_on or state.identity.role == "rank":
            return blocks
        state.start_deferred()
        return _blocks(iter(blocks))

    return apply_transform


def _blocks(blocks: Iterator[Any]) -> Iterator[Any]:
    """The same blocks, each with the time that the task took for it."""
    while True:
        start_ns = monotonic_ns()
        try:
            block = next(blocks)
        except StopIteration:
            return
        finally:
            emit("transform", start_ns, monotonic_ns(), TASK)
        yield block
